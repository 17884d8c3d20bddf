"""Old peers, each alone among real node processes of today: right ids, and no miss after miss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path

import pytest
from tests.cluster.api import counted, get
from tests.cluster.old_peers import CacheMiss, OldHead, old_node
from tests.heads import greedy, head_over
from tests.processes import MeshnetProcess, nodes
from tests.reference import prompt_ids, unsplit_greedy

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.loading import load_shard
from meshnet.engine.shard import TorchModelShard
from meshnet.head import FinishEvent, TokenEvent

PROMPT = "Which way does the activation travel?"
TOKENS = 12
PLACES = 2


@pytest.fixture(scope="module")
def serving(tiny_model_dir: Path) -> Iterator[list[MeshnetProcess]]:
    """Head, middle and tail of the model, two layers in the first."""
    with nodes(
        tiny_model_dir, ["0-2", "2-3", "3-4"],
        MESHNET_KV_MAX_SESSIONS=str(PLACES), MESHNET_WEIGHTS="fp32",
    ) as started:  # fmt: skip
        yield started


@pytest.fixture(scope="module")
def prompt(tiny_model_dir: Path) -> list[int]:
    return prompt_ids(tiny_model_dir, PROMPT)


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path, prompt: list[int]) -> list[int]:
    return unsplit_greedy(tiny_model_dir, prompt, TOKENS)


@pytest.fixture(scope="module")
def first_layers(tiny_model_dir: Path) -> TorchModelShard:
    return load_shard(tiny_model_dir, LayerRange(0, 2), weights=WeightFormat.FP32)


@contextmanager
def old_heads(
    first_layers: TorchModelShard, serving: list[MeshnetProcess], *sessions: str
) -> Iterator[list[OldHead]]:
    """One old head for each session over the middle and the tail; the nodes forget them after."""
    urls = [node.url for node in serving[1:]]
    with ExitStack() as stack:
        heads = [OldHead(first_layers, urls, session) for session in sessions]
        for head in heads:
            stack.callback(head.close)
            stack.callback(head.release)
        yield heads


def test_an_old_head_is_served_from_the_caches(
    first_layers: TorchModelShard,
    serving: list[MeshnetProcess],
    prompt: list[int],
    expected: list[int],
):
    with old_heads(first_layers, serving, "old-cached") as (head,):
        ids = head.generate(prompt, TOKENS)
        held = [get(f"{node.url}/sessions/old-cached") for node in serving[1:]]

    assert ids == expected
    assert head.misses == 0
    assert [told["length"] for told in held] == [len(prompt) + TOKENS - 1] * 2
    assert [told["layers"] for told in held] == ["2-3", "3-4"]


def test_without_the_cache_header_nothing_is_kept(
    first_layers: TorchModelShard,
    serving: list[MeshnetProcess],
    prompt: list[int],
    expected: list[int],
):
    before = [get(f"{node.url}/node")["sessions"] for node in serving[1:]]
    ids = list(prompt)
    with old_heads(first_layers, serving, "old-stateless") as (head,):
        for _ in range(TOKENS):
            ids.append(head.stateless(ids))

    assert ids[len(prompt) :] == expected
    assert [get(f"{node.url}/node")["sessions"] for node in serving[1:]] == before


def test_a_decode_that_does_not_fit_is_a_miss_and_one_prefill_repairs_it(
    first_layers: TorchModelShard,
    serving: list[MeshnetProcess],
    prompt: list[int],
    expected: list[int],
):
    with old_heads(first_layers, serving, "old-miss") as (head,):
        first = head.prefill(prompt)
        row = bytes(4 * 64)
        for node in serving[1:]:
            for past in (0, len(prompt) - 1, len(prompt) + 1):
                wrong = {"X-Meshnet-Cache": "decode", "X-Meshnet-Past-Len": str(past)}
                missed = head.post(node.url, row, wrong)
                assert (missed.status_code, missed.json()["error"]) == (409, "cache_miss")
                assert missed.json()["reason"] == "past_length"
        second = head.decode(len(prompt), first)
        again = head.prefill([*prompt, first, second])

    assert [first, second, again] == expected[:3]


def test_a_decode_of_no_session_is_a_miss(
    first_layers: TorchModelShard, serving: list[MeshnetProcess]
):
    with old_heads(first_layers, serving, "old-unknown") as (head,):
        headers = {"X-Meshnet-Cache": "decode", "X-Meshnet-Past-Len": "7"}
        missed = [head.post(node.url, bytes(4 * 64), headers) for node in serving[1:]]

    assert [miss.status_code for miss in missed] == [409, 409]
    assert {miss.json()["reason"] for miss in missed} == {"unknown_session"}


def test_more_old_heads_than_places_cost_prefills_and_are_never_told_to_wait(
    first_layers: TorchModelShard,
    serving: list[MeshnetProcess],
    prompt: list[int],
    expected: list[int],
):
    """ADR-0022's cap is plain LRU: its heads know no 429."""
    names = [f"old-{place}" for place in range(PLACES + 1)]
    with old_heads(first_layers, serving, *names) as heads:
        ids = [[*prompt, head.prefill(prompt)] for head in heads]
        with pytest.raises(CacheMiss):
            heads[0].decode(len(prompt), ids[0][-1])
        told = [head.generate(prompt, TOKENS) for head in heads]

    assert told == [expected] * len(heads)


def text_of(token_id: int) -> str:
    """A text that stands for one id only: which ids a real text means is the tokenizer's matter."""
    return f"<{token_id}>"


def ids_of(text: str) -> tuple[int, ...]:
    return (int(text[1:-1]),)


@pytest.mark.parametrize("said_to_cache", [True, False])
@pytest.mark.parametrize("place", [1, 2], ids=["middle", "tail"])
async def test_one_old_node_costs_a_prefill_each_step_and_no_token(
    serving: list[MeshnetProcess],
    tiny_model_dir: Path,
    prompt: list[int],
    expected: list[int],
    place: int,
    said_to_cache: bool,
):
    """Whatever its operator says of its cache, the head finds out with the first answer."""
    ours = [node for at, node in enumerate(serving) if at != place]
    layers = LayerRange(place + 1, place + 2)
    shard = load_shard(tiny_model_dir, layers, weights=WeightFormat.FP32, token_text=text_of)
    missed = [misses(node) for node in ours]
    with old_node(shard, said_to_cache=said_to_cache) as url:
        urls = [node.url for node in ours]
        urls.insert(place, url)

        ids, finish = await generated(urls, prompt)

    assert ids == expected
    assert finish.refills == 0
    assert finish.prefills == TOKENS
    assert [misses(node) for node in ours] == missed


async def generated(urls: list[str], prompt: list[int]) -> tuple[list[int], FinishEvent]:
    ids: list[int] = []
    async with (
        head_over(urls, encode_text=ids_of) as head,
        aclosing(head.generate(greedy(prompt, TOKENS))) as events,
    ):
        async for event in events:
            if isinstance(event, TokenEvent):
                ids.append(event.token.token_id)
            else:
                return ids, event
    raise AssertionError("no finish")


def misses(node: MeshnetProcess) -> int:
    return counted(node.url, "meshnet_forward_requests_total", "outcome")[("cache_miss",)]
