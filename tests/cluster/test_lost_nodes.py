"""Node processes that are killed under a generation: the same ids, and no old position twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cluster.api import counted, get
from tests.heads import greedy, head_over
from tests.processes import MeshnetProcess
from tests.reference import prompt_ids, unsplit_greedy

from meshnet.cli.local_nodes import free_ports
from meshnet.core.generation.limits import GenerationLimits
from meshnet.head import Head, HeadLimits, TokenEvent

PROMPT = "Who runs the layers in the middle? One node does, then another, then two of them."
TOKENS = 24
CHUNK = 16
AGAIN = 1
"""A step that was under way when a node died is run again by whoever had run it. A chain that
cannot be handed on may tell so before the death shows, and then costs a recovery of its own."""
FORMS = [("fp32", "chain"), pytest.param("int8", "star", marks=pytest.mark.slow)]


@contextmanager
def processes(model: Path, ranges: Sequence[str], weights: str) -> Iterator[list[MeshnetProcess]]:
    """Nodes that know each other."""
    ports = free_ports(len(ranges))
    peers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        started = []
        for layers, port in zip(ranges, ports, strict=True):
            process = MeshnetProcess(
                ["node", "--model", str(model), "--layers", layers, "--port", str(port),
                 "--json-ready"],
                {"MESHNET_WEIGHTS": weights, "MESHNET_PEERS": peers},
            )  # fmt: skip
            stack.callback(process.stop)
            started.append(process)
        for process in started:
            process.wait_ready()
        yield started


def limits_of(routes: str) -> HeadLimits:
    generation = GenerationLimits(prefill_chunk=CHUNK, drafts=0, chains=routes == "chain")
    return replace(HeadLimits(), generation=generation)


async def generated(
    head: Head, prompt: list[int], seen: Callable[[int], object] = lambda count: None
) -> list[int]:
    """The ids of one generation; `seen` is told how many there are, while none is asked for."""
    ids: list[int] = []
    async with aclosing(head.generate(greedy(prompt, TOKENS))) as events:
        async for event in events:
            if isinstance(event, TokenEvent):
                ids.append(event.token.token_id)
                await asyncio.to_thread(seen, len(ids))
    return ids


def positions(node: MeshnetProcess) -> int:
    return counted(node.url, "meshnet_positions_total").total()


def busy(nodes: Sequence[MeshnetProcess]) -> MeshnetProcess:
    """The one that is running and holds the session."""
    (node,) = [each for each in nodes if each.is_running and get(f"{each.url}/node")["sessions"]]
    return node


@pytest.mark.parametrize(("weights", "routes"), FORMS)
async def test_the_middle_dies_its_replacement_dies_and_two_nodes_share_its_layers(
    tiny_model_dir: Path, weights: str, routes: str
):
    ranges = ("0-1", "3-4", "1-3", "1-3", "1-2", "2-3")
    prompt = prompt_ids(tiny_model_dir, PROMPT)
    with processes(tiny_model_dir, ranges, weights) as nodes:
        first, last, *middles = nodes

        def kill(count: int) -> None:
            if count in (5, 13):
                busy(middles[:2]).kill()

        async with head_over([node.url for node in nodes], limits=limits_of(routes)) as head:
            calm = await generated(head, prompt)
            before = [positions(node) for node in (first, last)]
            ids = await generated(head, prompt, kill)
            refilled = head.counters
        after = [positions(node) for node in (first, last)]
        shared = [positions(node) for node in middles[2:]]

    each = len(prompt) + TOKENS - 1
    assert ids == calm
    if weights == "fp32":
        assert ids == unsplit_greedy(tiny_model_dir, prompt, TOKENS)
    recoveries = refilled.refills.total()
    assert refilled.partial_refills == recoveries >= 2
    for ran in (b - a for a, b in zip(before, after, strict=True)):
        assert each <= ran <= each + recoveries * AGAIN
    assert [each <= ran <= each + recoveries * AGAIN for ran in shared] == [True, True]


async def test_two_neighbours_die_at_once(tiny_model_dir: Path):
    ranges = ("0-1", "0-1", "1-3", "1-3", "3-4")
    prompt = prompt_ids(tiny_model_dir, PROMPT)
    with processes(tiny_model_dir, ranges, "int8") as nodes:

        def kill(count: int) -> None:
            if count == 7:
                for victim in (busy(nodes[:2]), busy(nodes[2:4])):
                    victim.kill()

        async with head_over([node.url for node in nodes], limits=limits_of("chain")) as head:
            calm = await generated(head, prompt)
            before = positions(nodes[4])
            ids = await generated(head, prompt, kill)
            partial, recoveries = head.counters.partial_refills, head.counters.refills.total()
        ran = positions(nodes[4]) - before

    assert ids == calm
    assert partial == recoveries >= 1
    assert ran <= len(prompt) + TOKENS - 1 + recoveries * AGAIN
