"""A buffer of keys and values: what it keeps, what it lets go, what it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.families import LAYERS, save_family

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.cache import allocated_bytes
from meshnet.engine.compiled.cells import CellBuffer
from meshnet.engine.kv import KEY_GRID, Buffer, KVBuffer, first_key, kept_max
from meshnet.engine.loading import load_shard
from meshnet.engine.runner import Segment

WINDOWS = [None, 1, 2, 8, 255, 256, 257, 700]
LENGTHS = st.one_of(st.integers(1, 5), st.sampled_from([64, 255, 256, 257, 600]))


def cells(window: int | None) -> CellBuffer:
    return CellBuffer(window, heads=2, size=3)


BUFFERS = (KVBuffer, cells)


def values_of(start: int, length: int) -> torch.Tensor:
    """Positions that tell which they are."""
    positions = torch.arange(start, start + length, dtype=torch.float32)
    return positions[None, :, None].expand(2, -1, 3)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("make", BUFFERS)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(steps=st.lists(st.tuples(LENGTHS, st.integers(0, KEY_GRID - 1)), min_size=1, max_size=12))
def test_the_last_cell_can_always_be_taken_back_and_nothing_else_is_kept(
    make: Callable[[int | None], Buffer], window: int | None, steps: list[tuple[int, int]]
):
    buffer, longest = make(window), 0
    for length, undone in steps:
        past = buffer.length
        buffer.append(values_of(past, length), -values_of(past, length))
        assert_holds_what_rows_read(buffer, past)
        buffer.settle()

        longest = max(longest, buffer.length)
        back = max(buffer.length - undone, longest - KEY_GRID + 1, 0)
        assert buffer.can_truncate(back)
        if window is not None:
            assert buffer.capacity <= kept_max(window)
        buffer.truncate(back)
        assert_holds_what_rows_read(buffer, back)


def assert_holds_what_rows_read(buffer: Buffer, position: int) -> None:
    """From the first key of `position` to the end, and room to the end of the last cell."""
    if not buffer.length:
        return
    first = first_key(position, buffer.window)
    assert buffer.start <= first
    assert buffer.start % KEY_GRID == buffer.capacity % KEY_GRID == 0
    assert buffer.start + buffer.capacity >= buffer.length
    if first == buffer.length:
        return
    expected = values_of(first, buffer.length - first)
    keys, values = buffer.last(buffer.length - first)
    assert torch.equal(keys, expected)
    assert torch.equal(values, -expected)
    if isinstance(buffer, KVBuffer):
        assert all(torch.isfinite(held).all() for held in buffer.tensors())


@pytest.mark.parametrize("make", BUFFERS)
def test_a_buffer_grows_by_a_cell_and_not_by_a_position(make: Callable[[int | None], Buffer]):
    buffer, capacities = make(None), set()
    for position in range(2 * KEY_GRID):
        buffer.append(values_of(position, 1), values_of(position, 1))
        capacities.add(buffer.capacity)

    assert capacities == {KEY_GRID, 2 * KEY_GRID}


def test_a_row_of_a_window_reads_from_the_cell_that_its_own_cell_looks_back_to():
    """All rows of a cell read the same keys, or their sums would be in another order."""
    assert {first_key(position, 8) for position in range(256, 512)} == {0}
    assert {first_key(position, 257) for position in range(512, 768)} == {256}
    assert first_key(512, 258) == 0
    assert first_key(10_000, None) == 0


@pytest.mark.parametrize("window", [None, 300])
def test_what_is_taken_back_leaves_nothing_that_could_spread(window: int | None):
    """Whole cells are read, and NaN times a weight of 0 is NaN."""
    buffer = KVBuffer(window)
    with torch.inference_mode():
        buffer.append(values_of(0, 500), values_of(0, 500))
        nan = torch.full((2, 20, 3), float("nan"))
        buffer.append(nan, nan)

    buffer.truncate(505)

    assert buffer.keys is not None
    assert buffer.values is not None
    for held in (buffer.keys, buffer.values):
        assert not held[:, 505 - buffer.start :].any()
        assert held[:, 500 - buffer.start : 505 - buffer.start].isnan().all()


def test_a_buffer_that_found_no_memory_goes_on_as_it_was(monkeypatch: pytest.MonkeyPatch):
    """A sliding layer moves its first key when it grows: both of its tensors do, or none."""
    buffer = KVBuffer(8)
    buffer.append(values_of(0, 900), -values_of(0, 900))
    real, found = torch.Tensor.new_zeros, []

    def new_zeros(like: torch.Tensor, *args: object, **fields: object) -> torch.Tensor:
        if found:
            raise MemoryError
        found.append(like)
        return real(like, *args, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", new_zeros)
        with pytest.raises(MemoryError):
            buffer.append(values_of(900, 200), -values_of(900, 200))

    buffer.append(values_of(900, 200), -values_of(900, 200))
    assert_holds_what_rows_read(buffer, 899)


@pytest.mark.parametrize("make", BUFFERS)
def test_what_a_window_has_let_go_cannot_be_taken_back(make: Callable[[int | None], Buffer]):
    buffer = make(8)
    buffer.append(values_of(0, 900), values_of(0, 900))
    buffer.settle()

    assert buffer.can_truncate(650)
    assert not buffer.can_truncate(300)
    assert not buffer.can_truncate(901)


@pytest.mark.parametrize("name", ["llama", "mistral-swa", "gemma3", "deepseek_v3", "qwen3_next"])
def test_a_session_takes_no_more_than_its_shard_promised(tmp_path: Path, name: str):
    """Bytes are admitted before they are allocated, in whole cells."""
    path = save_family(tmp_path, name, max_position_embeddings=2048)
    shard, layers = load_shard(path, LayerRange(0, LAYERS)), LayerRange(0, LAYERS)
    for lengths in ((1,), (256,), (257,), (700,), (300, 1, 1), (255, 1, 1, 300)):
        cache, past = shard._runner.new_cache(layers), 0
        for length in lengths:
            with torch.inference_mode():
                segments = [Segment(past, length, cache)]
                shard._runner.passing(torch.full((1, length), 7), layers, segments)
            past += length

            assert allocated_bytes(cache) <= shard.description.kv_bytes.of(past)


@pytest.mark.parametrize("name", ["mistral-swa", "gemma3"])
def test_a_window_promises_no_more_than_the_context_can_hold(tmp_path: Path, name: str):
    """Windows keep up to 1,023 positions more than they are wide, if there are as many."""
    context = 300
    path = save_family(tmp_path, name, max_position_embeddings=context)
    shard, layers = load_shard(path, LayerRange(0, LAYERS)), LayerRange(0, LAYERS)
    cache = shard._runner.new_cache(layers)

    with torch.inference_mode():
        segments = [Segment(0, context, cache)]
        shard._runner.passing(torch.full((1, context), 7), layers, segments)

    assert shard.description.kv_bytes.of(context) == allocated_bytes(cache)
