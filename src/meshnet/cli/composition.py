"""A head over nodes at given URLs, and the API over that head: who is handed to whom.

urls, members ─▶ HttpHopClient ─▶ Directory ─▶ Head ─▶ gateway_app
                                      text ─────┘
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from meshnet import __version__
from meshnet.cli.credentials import tls_of, token_of
from meshnet.cli.head_cost import HeadCost
from meshnet.cli.machine import machine_id
from meshnet.cli.settings import Settings
from meshnet.core.generation.limits import AdmissionLimits, GenerationLimits, StepTimeout
from meshnet.core.planning import Mesh
from meshnet.core.protocol.limits import Limits
from meshnet.core.routing import NoRoute
from meshnet.core.vocabulary import (
    MEMBERS_MAX,
    LayerRange,
    MeshnetError,
    ModelId,
    NodeDescription,
    NodeId,
    SessionId,
)
from meshnet.gateway.ports import Readiness
from meshnet.head import Directory, Head, HeadLimits, HopClient
from meshnet.head.lingering import PrefixLimits
from meshnet.mesh.grouped import unwrapped
from meshnet.telemetry.events import Record
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.links import LinkBook

if TYPE_CHECKING:
    from meshnet.engine.text import HFText

SESSION_ID_BYTES = 24
"""192 random bits: whoever guesses an id could extend that session."""

URLS_MAX = 2 * MEMBERS_MAX
ROUTE_WAIT_S = 10.0
DRAIN_S = 5.0
KNOWN_LOOK_S = 1.0
RESTART_WAIT_S = 60.0
"""Where a launcher starts dead nodes again, waiting for one is better than refusing."""


def new_session_id() -> SessionId:
    """Mint an id that nobody can guess and that sorts by age: nodes rank sessions by their ids."""
    milliseconds = time.time_ns() // 1_000_000
    return SessionId(f"{milliseconds:012x}{secrets.token_hex(SESSION_ID_BYTES)}")


@dataclass(frozen=True, slots=True)
class Composition:
    """A running head and what it was made of. `names` are what users call the nodes."""

    model: ModelId
    text: HFText
    client: HopClient
    directory: Directory
    head: Head
    names: Mapping[NodeId, str]
    links: LinkBook
    """The ways from here to those of the nodes that measured themselves."""
    drain: Callable[[NodeId, bool], Awaitable[NodeDescription]]
    """Ask a node to take no new sessions, or, if True, to take them again. Raises HopLost."""
    urls: dict[NodeId, str] = field(default_factory=dict)
    """Whom the client may dial."""
    cost: HeadCost = field(default_factory=HeadCost)

    def name_of(self, node: NodeId) -> str:
        """Return what users call a node: its address, if it joined by itself."""
        return self.names.get(node) or urlsplit(node).netloc

    def know(self, members: Mapping[NodeId, str]) -> None:
        """Route over these nodes too, and no longer over those that are not among them.

        With each goes a text that is another one once it has something new to say. Who left may
        still be dialled: generations that run there end by what they find.
        """
        self.directory.joined(members)
        self.urls.update({node: node for node in members})
        past = [node for node in self.urls if node not in members and node not in self.names]
        for node in past[: len(self.urls) - URLS_MAX]:
            del self.urls[node]

    def readiness(self) -> Readiness:
        route = self.directory.route(self.model)
        if isinstance(route, NoRoute):
            return Readiness(False, str(route))
        return Readiness(True)

    def measured(self) -> Mesh:
        """Return what the nodes measured of themselves, and the ways to them from here."""
        told = {each.node: each.capacity for each in self.directory.snapshot()}
        known = {node: capacity for node, capacity in told.items() if capacity is not None}
        return Mesh(known, self.links.links, head_machine=machine_id(), head_s=self.cost.token_s)

    def fingerprint(self) -> str:
        """Return `system_fingerprint`: equal while cuts, formats and arithmetic are equal."""
        digest = hashlib.blake2b(f"{__version__} {self.model}".encode(), digest_size=8)
        for node in self.directory.snapshot():
            for shard in node.shards:
                if shard.model == self.model:
                    digest.update(f"{shard.layers} {shard.fingerprint} {shard.arithmetic}".encode())
        return f"fp_{digest.hexdigest()}"


@asynccontextmanager
async def composed(
    settings: Settings,
    model: ModelId,
    text: HFText,
    nodes: Mapping[str, str],
    record: Record,
    *,
    declared: Mapping[NodeId, LayerRange] | None = None,
    route_wait_s: float = ROUTE_WAIT_S,
    through: Callable[[HopClient], HopClient] = lambda client: client,
) -> AsyncIterator[Composition]:
    """Run a head over `nodes` (name to URL) until the block is left.

    `declared` are the layers of nodes too old to be asked. `route_wait_s` is how long a request
    waits for layers that nobody serves now. `through` may put something between the head and its
    client, to measure it.
    """
    urls = {NodeId(url): url for url in nodes.values()}
    token, tls = token_of(settings), tls_of(settings)
    with unwrapped():
        async with HttpHopClient(urls, limits=Limits(), token=token, tls=tls) as http:
            client = through(http)
            directory = Directory(
                client,
                tuple(urls),
                clock=time.monotonic,
                declared=declared,
                chained=settings.routes == "chain",
            )
            known = partial(_measured, directory, urls)
            links = LinkBook(known, token=token, clock=time.monotonic, tls=tls)
            await directory.refresh()
            limits = head_limits(settings, route_wait_s)
            head = _head(model, text, client, directory, limits, record)
            names = {NodeId(url): name for name, url in nodes.items()}
            drain, cost = partial(_drain, http), HeadCost()
            parts = (model, text, client, directory, head, names, links, drain, urls, cost)
            async with directory, head, measuring(cost, links, known):
                yield Composition(*parts)


async def _drain(client: HttpHopClient, node: NodeId, undo: bool) -> NodeDescription:
    return await client.drain(node, DRAIN_S, undo=undo)


def _measured(directory: Directory, urls: Mapping[NodeId, str]) -> dict[NodeId, str]:
    """Return the addresses of the nodes that measured themselves."""
    told = [each.node for each in directory.snapshot() if each.capacity is not None]
    return {node: urls[node] for node in told if node in urls}


@asynccontextmanager
async def measuring(
    cost: HeadCost, links: LinkBook, known: Callable[[], Collection[NodeId]]
) -> AsyncIterator[None]:
    """Measure this end while the block runs, from when somebody has measured the other."""

    async def keep() -> None:
        while not known():  # noqa: ASYNC110  # what a directory knows tells nobody that it changed
            await asyncio.sleep(KNOWN_LOOK_S)
        with suppress(MeshnetError):  # then the head counts for nothing in plans
            await cost.measure()
        await links.keep()

    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()


def _head(
    model: ModelId,
    text: HFText,
    client: HopClient,
    directory: Directory,
    limits: HeadLimits,
    record: Record,
) -> Head:
    return Head(
        client,
        directory,
        model=model,
        encode_text=lambda words: tuple(text.encode(words, special=False)),
        new_session_id=new_session_id,
        clock=time.monotonic,
        jitter=secrets.SystemRandom().random,
        limits=limits,
        record=record,
    )


def head_limits(settings: Settings, route_wait_s: float) -> HeadLimits:
    return HeadLimits(
        generation=GenerationLimits(
            prefill_chunk=settings.prefill_chunk,
            drafts=_drafts(settings.drafts),
            chains=settings.routes != "star",
            step=StepTimeout(base_s=settings.hop_timeout_seconds),
        ),
        admission=AdmissionLimits(route_wait_s=route_wait_s),
        prefixes=PrefixLimits(
            settings.prefix_seconds, settings.prefix_sessions, settings.prefix_sessions_total
        ),
        waiting_max=settings.queue_length,
    )


def _drafts(setting: str) -> int | None:
    """Return how many guesses a step brings; None: as many as pay."""
    if setting == "auto":
        return None
    return 0 if setting == "off" else int(setting)
