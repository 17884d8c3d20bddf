"""Layers get our attention where they agree with it, and keep their own where they do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.families import LAYERS, save_family
from tests.family_rows import TOKENS, TOLERANCE, prompt
from tests.shard_chain import Chain, load_chain, unsplit
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.attention import Shape, attend
from meshnet.engine.attention_choice import (
    FAST_NOTE,
    ROWS_MIN,
    choose_attention,
    rows_needed,
    trials_of,
)
from meshnet.engine.cache import Rows
from meshnet.engine.checkpoint import Checkpoint, load_layers, read_config
from meshnet.engine.forward import LayerRunner
from meshnet.engine.interface import AttentionCall, GridAttention, UnsupportedAttention
from meshnet.engine.kv import KVBuffer
from meshnet.engine.loading import load_shard
from meshnet.engine.runner import Segment

ALL = LayerRange(0, LAYERS)
CPU = torch.device("cpu")


def runner_of(path: Path) -> LayerRunner:
    model = load_layers(path, Checkpoint(path), read_config(path), ALL, torch.float32, CPU).model
    return LayerRunner(model, torch.float32)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "deepseek_v3", "falcon_h1"])
def test_layers_that_agree_with_our_attention_get_it(tmp_path: Path, name: str):
    """Soft caps, sinks, windows, keys made anew at every step."""
    runner = runner_of(save_family(tmp_path, name))

    choice = choose_attention(runner, 256)

    assert choice.exact
    assert choice.ours is not None
    assert runner.attention == choice.name == choice.ours.name
    assert choice.notes == ()


@pytest.mark.parametrize(("name", "reason"), [("bloom", "otherwise"), ("llama4", "chunked")])
def test_layers_that_mean_something_else_keep_their_own_and_are_right(
    tmp_path: Path, name: str, reason: str
):
    """Bloom adds a bias by distance in code of its own; Llama 4 sees chunks."""
    path = save_family(tmp_path, name)
    reference = unsplit(path, prompt(), TOKENS)
    runner = runner_of(path)
    own = runner.attention

    choice = choose_attention(runner, 256)
    answer = Chain(load_chain(path, (3,), LAYERS)).generate(prompt(), TOKENS)

    assert runner.attention == own == choice.name
    assert choice.ours is None
    assert not choice.exact
    assert reason in choice.notes[0]
    assert answer.difference(reference) <= TOLERANCE


@pytest.mark.parametrize("head_dim", [6, 16])
def test_attention_that_is_not_exact_says_so(tmp_path: Path, head_dim: int):
    """Products over few features go through other kernels, which rows filled up may not tame."""
    shape = {"num_attention_heads": 6, "hidden_size": 6 * head_dim, "rotary_pct": 0.5}
    runner = runner_of(save_family(tmp_path, "gpt_neox", **shape))

    choice = choose_attention(runner, 256)

    assert choice.exact == (choice.notes == ())


def test_layers_without_attention_need_none(tmp_path: Path):
    runner = runner_of(save_family(tmp_path, "mamba2"))

    choice = choose_attention(runner, 256)

    assert choice.ours is None
    assert choice.notes == ()


def attention(**asked: object) -> None:
    name = GridAttention(4).register()
    values = torch.ones(1, 2, 3, 8)
    ALL_ATTENTION_FUNCTIONS[name](torch.nn.Identity(), values, values, values, None, **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"position_bias": torch.zeros(1)},
        {"dropout": 0.1},
        {"is_causal": False},
        {"something_new": 0},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_our_attention_does_not_know_is_refused(asked: dict[str, object]):
    with pytest.raises(UnsupportedAttention):
        attention(**asked)


def test_what_attention_has_no_use_for_is_not_in_the_way():
    attention(position_ids=torch.zeros(1), use_cache=True, something_new=None)


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)], ids=str)
def test_with_the_rows_found_a_row_comes_out_the_same_in_any_company(heads: tuple[int, int]):
    call = AttentionCall(*heads, key_size=64, value_size=32)

    needed = rows_needed(trials_of([call], torch.float32, CPU))

    assert needed in ROWS_MIN
    generator = torch.Generator().manual_seed(1)
    held = KVBuffer()
    held.append(
        torch.randn(heads[1], 600, 64, generator=generator),
        torch.randn(heads[1], 600, 32, generator=generator),
    )
    query = torch.randn(600, heads[0], 64, generator=generator)
    shape = Shape(0.125)
    together = attend(query, held, 0, shape, rows_min=needed)
    for start, stop in ((0, 1), (5, 7), (250, 260), (511, 512), (512, 600)):
        alone = attend(query[start:stop], held, start, shape, rows_min=needed)
        assert torch.equal(alone, together[start:stop])


@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (3, 3)], ids=str)
def test_with_the_rows_found_chunks_of_any_length_come_out_the_same(
    two_threads: None, heads: tuple[int, int]
):
    """With one head of keys two threads share a product, and cut it by its number of rows."""
    call = AttentionCall(*heads, key_size=64, value_size=64)

    needed = rows_needed(trials_of([call], torch.float32, CPU))

    assert needed is not None
    generator = torch.Generator().manual_seed(1)
    held = KVBuffer()
    for_keys, for_values = torch.randn(2, heads[1], 512, 64, generator=generator)
    held.append(for_keys, for_values)
    query = torch.randn(512, heads[0], 64, generator=generator)
    together = attend(query, held, 0, Shape(0.125), rows_min=needed)
    for length in range(1, 33):
        alone = attend(query[300 : 300 + length], held, 300, Shape(0.125), rows_min=needed)
        assert torch.equal(alone, together[300 : 300 + length]), length


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("window", [None, 5, 300])
def test_fast_prefill_means_the_same(heads: tuple[int, int], window: int | None):
    queries, keys = heads
    generator = torch.Generator().manual_seed(0)
    held = KVBuffer(window)
    for length in (290, 40):
        values = torch.randn(2, keys, length, 8, generator=generator)
        held.append(values[0], values[1])
    query = torch.randn(40, queries, 8, generator=generator)
    shape = Shape(8**-0.5, window)

    fast = GridAttention(4, fast=True).attend(query, Rows(held, 40), shape)

    exact = attend(query, held, 290, shape, rows_min=4)
    assert torch.allclose(fast, exact, atol=1e-5)


def test_fast_prefill_is_said_and_shown(tmp_path: Path):
    path = save_family(tmp_path, "gemma3")
    said: list[str] = []

    exact = load_shard(path, ALL, weights=WeightFormat.INT8)
    fast = load_shard(path, ALL, weights=WeightFormat.INT8, fast_prefill=True, report=said.append)

    assert FAST_NOTE in said
    assert exact.description.capabilities.exact
    assert not fast.description.capabilities.exact
    assert exact.description.arithmetic != fast.description.arithmetic


def test_compiled_steps_are_exact_and_fast_as_they_are(tmp_path: Path):
    path = save_family(tmp_path, "qwen3")
    said: list[str] = []

    exact = load_shard(path, ALL, weights=WeightFormat.INT8)
    fast = load_shard(path, ALL, weights=WeightFormat.INT8, fast_prefill=True, report=said.append)

    assert FAST_NOTE not in said
    assert fast.description == exact.description
    assert fast.description.capabilities.exact


@pytest.mark.parametrize("name", ["gemma3n", "gpt_oss", "mistral-swa"])
def test_sessions_of_unlike_length_share_a_call(tmp_path: Path, name: str):
    """Rows of three sessions one after the other, through layers that know nothing of it."""
    runner = runner_of(save_family(tmp_path, name))
    choose_attention(runner, 256)
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, 250, (1, 30), generator=generator) for _ in range(3)]
    pasts, lengths = (0, 12, 25), (7, 1, 4)
    with torch.inference_mode():
        alone = []
        for sequence, past, length in zip(ids, pasts, lengths, strict=True):
            every = sequence[:, : past + length]
            whole = runner.passing(every, ALL, [Segment(0, past + length, None)]).hidden
            alone.append(whole[..., past:, :])
        segments = []
        for sequence, past, length in zip(ids, pasts, lengths, strict=True):
            cache = runner.new_cache(ALL)
            if past:
                runner.passing(sequence[:, :past], ALL, [Segment(0, past, cache)])
            segments.append(Segment(past, length, cache))
        entering = torch.cat(
            [
                sequence[:, segment.past_length : segment.stop]
                for sequence, segment in zip(ids, segments, strict=True)
            ],
            1,
        )

        shared = runner.passing(entering, ALL, segments).hidden

    assert runner.batches
    assert torch.allclose(shared, torch.cat(alone, -2), atol=1e-4)
    assert [segment.cache.length for segment in segments] == [7, 13, 29]
