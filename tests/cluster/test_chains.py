"""Node processes that hand steps on to each other, all of today or one of them of yesterday."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path

import pytest
from tests.cluster import chainless
from tests.heads import greedy, head_over
from tests.processes import MeshnetProcess
from tests.reference import prompt_ids, unsplit_greedy

from meshnet.cli.local_nodes import free_ports
from meshnet.core.generation.accounting import HopStats
from meshnet.core.generation.limits import GenerationLimits
from meshnet.head import FinishEvent, HeadLimits, TokenEvent

PROMPT = "Which way does the activation travel? It goes from node to node, and then back again."
TOKENS = 12
CHUNK = 16
LAYERS = ("0-1", "1-2", "2-3", "3-4")
TODAY, YESTERDAY = ("-m", "meshnet"), (str(Path(chainless.__file__)),)


@contextmanager
def in_a_row(model: Path, programs: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """A node process for each layer, each told of all; yields their URLs."""
    ports = free_ports(len(programs))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    peers = [part for url in urls for part in ("--peer", url)]
    with ExitStack() as stack:
        started = []
        for layers, port, program in zip(LAYERS, ports, programs, strict=True):
            process = MeshnetProcess(
                ["node", "--model", str(model), "--layers", layers, "--port", str(port),
                 *peers, "--json-ready"],
                {"MESHNET_WEIGHTS": "fp32"},
                program,
            )  # fmt: skip
            stack.callback(process.stop)
            started.append(process)
        for process in started:
            process.wait_ready()
        yield urls


async def generated(urls: list[str], prompt: list[int]) -> tuple[list[int], FinishEvent]:
    ids: list[int] = []
    limits = HeadLimits(generation=GenerationLimits(prefill_chunk=CHUNK, drafts=0))
    async with (
        head_over(urls, limits=limits) as head,
        aclosing(head.generate(greedy(prompt, TOKENS))) as events,
    ):
        async for event in events:
            if isinstance(event, TokenEvent):
                ids.append(event.token.token_id)
            else:
                return ids, event
    raise AssertionError("no finish")


def through_the_head(hops: Sequence[HopStats]) -> list[tuple[bool, bool]]:
    """Whether the head sent something to each hop, and whether it got an activation from it."""
    return [(hop.bytes_out > 0, hop.bytes_in > 0) for hop in hops]


@pytest.mark.parametrize(
    ("programs", "through"),
    [
        ((TODAY,) * 4, [(True, False), (False, False), (False, False), (False, False)]),
        (
            (TODAY, TODAY, YESTERDAY, TODAY),
            [(True, False), (False, True), (True, True), (True, False)],
        ),
    ],
    ids=["all of today", "the third of yesterday"],
)
async def test_steps_go_from_node_to_node_where_nodes_know_how_and_by_the_head_elsewhere(
    tiny_model_dir: Path,
    programs: Sequence[Sequence[str]],
    through: list[tuple[bool, bool]],
):
    prompt = prompt_ids(tiny_model_dir, PROMPT)
    assert len(prompt) > 3 * CHUNK

    with in_a_row(tiny_model_dir, programs) as urls:
        ids, finish = await generated(urls, prompt)

    assert ids == unsplit_greedy(tiny_model_dir, prompt, TOKENS)
    assert (finish.refills, finish.prefills) == (0, 1)
    assert through_the_head(finish.hops) == through
