"""Ask the gateway, then its nodes, and tell what is found.

    settings ──▶ gateway: GET /mesh ──▶ each node: GET /node, POST /link ──▶ findings

Everything is asked as any head would ask it. Invariant: it ends, whoever is silent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from meshnet.cli.api_client import ApiError, NothingThere
from meshnet.cli.credentials import api_client, tls_of, token_of
from meshnet.cli.doctor import nodes as of_nodes
from meshnet.cli.doctor.findings import Finding, Level, bad, credentials, ok, warn
from meshnet.cli.options import print_json
from meshnet.cli.plan_file import NODES_MAX, mesh_of
from meshnet.cli.planning import Ask, shape_of, wanted_of
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings, base_url
from meshnet.core.generation.chunking import Chunking
from meshnet.core.planning import NoPlan, plan
from meshnet.core.protocol.fields import Fields
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import (
    BadField,
    HopLost,
    Link,
    MeshnetError,
    NodeDescription,
    NodeId,
)
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.links import LinkBook
from meshnet.wire.serving import AddressInUse, bind

DESCRIBE_S = 10.0
LINKS_S = 60.0
_SIGNS = {Level.OK: ("ok", "green"), Level.WARN: ("warn", "yellow"), Level.BAD: ("BAD", "bold red")}


class Asked(NamedTuple):
    answers: dict[NodeId, NodeDescription | HopLost]
    links: tuple[Link, ...]


def examine(settings: Settings, url: str, given: Sequence[str], *, as_json: bool) -> None:
    """Print what is found; exit with 1 if something keeps the mesh from working."""
    found, told = _gateway(settings, url)
    urls = [base_url(node, "--node") for node in given]
    if told is not None:
        urls += [node.text("url") for node in told.objects("nodes", count_max=NODES_MAX)]
    urls = list(dict.fromkeys(urls))
    found = credentials(settings, urls) + found
    if urls:
        found += _nodes(settings, urls)
    if told is not None:
        found += _plan(settings, told)
    well = all(each.level is not Level.BAD for each in found)
    if as_json:
        print_json({"url": url, "ok": well, "findings": [each.values() for each in found]})
    else:
        _show(found)
    if not well:
        raise typer.Exit(1)


def _gateway(settings: Settings, url: str) -> tuple[list[Finding], Fields | None]:
    """Ask the gateway what it knows; where there is none, see whether one could be."""
    try:
        with api_client(settings, url) as client:
            told = Fields.of(client.mesh(), url)
        if told.truth("ready"):
            return [ok("gateway", f"{url} serves {told.text('model')}")], told
        text = f"{url} is not ready: {told.text('detail')}"
        return [bad("gateway", text, "start nodes for what is missing: meshnet node --join")], told
    except NothingThere:
        return [_port(settings, url)], None
    except ApiError as error:
        advice = "see that --url names a gateway, and MESHNET_API_KEYS a key it knows"
        return [bad("gateway", str(error), advice)], None
    except BadField as error:
        return [bad("gateway", str(error), "run one version of meshnet here and there")], None


def _port(settings: Settings, url: str) -> Finding:
    try:
        bind(settings.host, settings.port).close()
    except AddressInUse as error:
        return bad("port", str(error), "choose another --port, or end what listens there")
    text = f"nothing answers at {url}; port {settings.port} is free here"
    return warn("gateway", text, "start a mesh with `meshnet up`, or name a gateway by --url")


def _nodes(settings: Settings, urls: Sequence[str]) -> list[Finding]:
    asked = run_loop(lambda: _asked(settings, urls))
    nodes = {n: told for n, told in asked.answers.items() if isinstance(told, NodeDescription)}
    far = [("here", link) for link in asked.links]
    for node, told in nodes.items():
        far += [
            (of_nodes.name(node), link) for link in (told.capacity.links if told.capacity else ())
        ]
    measured = {link.node for link in asked.links}
    return [
        *of_nodes.reached(asked.answers),
        *of_nodes.versions(nodes),
        *of_nodes.models(nodes),
        *of_nodes.memory(nodes),
        *of_nodes.links(far, [node for node in nodes if node not in measured]),
    ]


async def _asked(settings: Settings, urls: Sequence[str]) -> Asked:
    token, tls = token_of(settings), tls_of(settings)
    known = {NodeId(url): url for url in urls}
    async with HttpHopClient(known, limits=Limits(), token=token, tls=tls) as client:

        async def described(node: NodeId) -> NodeDescription | HopLost:
            try:
                return await client.describe(node, DESCRIBE_S)
            except HopLost as lost:
                return lost

        async with asyncio.TaskGroup() as asking:
            tasks = {node: asking.create_task(described(node)) for node in known}
    answers = {node: task.result() for node, task in tasks.items()}
    there = {n: known[n] for n, told in answers.items() if isinstance(told, NodeDescription)}
    book = LinkBook(lambda: there, token=token, clock=time.monotonic, tls=tls)
    with suppress(TimeoutError):
        async with asyncio.timeout(LINKS_S):
            await book.round()
    return Asked(answers, book.links)


def _plan(settings: Settings, told: Fields) -> list[Finding]:
    """Hold the memory of the gateway's nodes against what its model needs."""
    try:
        measured = told.object("measured") if told.has("measured") else None
        if measured is None or not measured.objects("nodes", count_max=NODES_MAX):
            text = "no node has measured itself, so no plan can be made"
            return [warn("plan", text, "start nodes with MESHNET_MEASURE=1")]
        chosen = settings.model_copy(update={"model": told.text("model")})
        shape = shape_of(chosen)
        wanted = wanted_of(Ask(None, 1, None), shape)
        made = plan(shape, mesh_of(measured), wanted, cutting=Chunking().ends)
    except (MeshnetError, OSError) as error:
        return [warn("plan", f"not made: {error}", "see `meshnet plan`")]
    if isinstance(made, NoPlan):
        return [bad("plan", made.reason, "add nodes or memory: `meshnet plan` says for what")]
    rate = made.prediction.tokens_per_s
    text = f"{wanted.context} tokens of context fit; the best plan predicts {rate:.1f} tokens/s"
    return [ok("plan", text)]


def _show(found: Sequence[Finding]) -> None:
    console = Console()
    for each in found:
        sign, style = _SIGNS[each.level]
        line = Text.assemble((f"{sign:<5}", style), f"{each.check:<12}", each.text)
        console.print(line, soft_wrap=True)
        if each.advice:
            console.print(Text(f"{'':17}-> {each.advice}"), soft_wrap=True)
    worst = sum(each.level is Level.BAD for each in found)
    console.print(f"{len(found)} checks, {worst} of them bad", highlight=False)
