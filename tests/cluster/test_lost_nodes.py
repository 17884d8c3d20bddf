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
pytestmark = pytest.mark.timeout(900)  # many processes start, which a busy machine is slow at
FORMS = [("fp32", "chain"), pytest.param("int8", "star", marks=pytest.mark.slow)]


def started(
    model: Path, layers: str, url: str, weights: str, peers: Sequence[str]
) -> MeshnetProcess:
    return MeshnetProcess(
        ["node", "--model", str(model), "--layers", layers, "--port", url.rpartition(":")[2],
         "--json-ready"],
        {"MESHNET_WEIGHTS": weights, "MESHNET_PEERS": ",".join(peers)},
    )  # fmt: skip


@contextmanager
def processes(model: Path, ranges: Sequence[str], weights: str) -> Iterator[list[MeshnetProcess]]:
    """Nodes that know each other; all that are in the list at the end are stopped then."""
    peers = [f"http://127.0.0.1:{port}" for port in free_ports(len(ranges))]
    nodes: list[MeshnetProcess] = []
    with ExitStack() as stack:
        stack.callback(lambda: [node.stop() for node in nodes])
        for layers, url in zip(ranges, peers, strict=True):
            nodes.append(started(model, layers, url, weights, peers))
        for node in nodes:
            node.wait_ready()
        yield nodes


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


class Losses:
    """Kills the middle at token 5, its replacement at 9, and at 13 the two that share its layers.

    The first victim was started again by then: it takes over from both at once.
    """

    def __init__(self, nodes: list[MeshnetProcess], start: Callable[[str], MeshnetProcess]) -> None:
        self._middles, self._halves, self._start = nodes[:2], nodes[2:], start
        self.killed: list[MeshnetProcess] = []
        self.shared: list[int] = []
        """Positions that each of the two ran."""

    def __call__(self, count: int) -> None:
        match count:
            case 5 | 9:
                self.killed.append(busy(self._middles))
                self.killed[-1].kill()
            case 11:
                self._middles.append(self._start(self.killed[0].url).wait_ready())
            case 13:
                self.shared = [positions(node) for node in self._halves]
                for node in self._halves:
                    node.kill()

    def ran_by_the_last(self) -> int:
        return positions(self._middles[-1])


@pytest.mark.parametrize(("weights", "routes"), FORMS)
async def test_the_middle_dies_its_replacement_dies_and_then_the_two_that_share_its_layers(
    tiny_model_dir: Path, weights: str, routes: str
):
    ranges = ("0-1", "3-4", "1-3", "1-3", "1-2", "2-3")
    prompt = prompt_ids(tiny_model_dir, PROMPT)
    with processes(tiny_model_dir, ranges, weights) as nodes:
        urls = [node.url for node in nodes]

        def start(url: str) -> MeshnetProcess:
            nodes.append(started(tiny_model_dir, "1-3", url, weights, urls))
            return nodes[-1]

        losses = Losses(nodes[2:], start)
        async with head_over(urls, limits=limits_of(routes)) as head:
            calm = await generated(head, prompt)
            before = [positions(node) for node in nodes[:2]]
            ids = await generated(head, prompt, losses)
            counters = head.counters
        survivors = [positions(node) - ran for node, ran in zip(nodes[:2], before, strict=True)]
        reborn = losses.ran_by_the_last()

    assert ids == calm
    if weights == "fp32":
        assert ids == unsplit_greedy(tiny_model_dir, prompt, TOKENS)
    assert len({node.url for node in losses.killed}) == 2
    recoveries = counters.refills.total()
    assert counters.partial_refills == recoveries >= 3
    whole, until_then = len(prompt) + TOKENS - 1, len(prompt) + 12
    for ran in survivors:
        assert whole <= ran <= whole + recoveries * AGAIN
    # Each recovery fills a replacement once at most.
    for ran, least in [(reborn, whole), *((ran, until_then) for ran in losses.shared)]:
        assert least <= ran <= recoveries * least


@pytest.mark.parametrize("weights", ["fp32", pytest.param("int8", marks=pytest.mark.slow)])
async def test_two_neighbours_die_at_once(tiny_model_dir: Path, weights: str):
    ranges = ("0-1", "0-1", "1-3", "1-3", "3-4")
    prompt = prompt_ids(tiny_model_dir, PROMPT)
    with processes(tiny_model_dir, ranges, weights) as nodes:

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
    if weights == "fp32":
        assert ids == unsplit_greedy(tiny_model_dir, prompt, TOKENS)
    assert partial == recoveries >= 1
    assert ran <= len(prompt) + TOKENS - 1 + recoveries * AGAIN
