"""Cells of a session: where the table says they are, as many as its positions need."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.cache import allocated_bytes, kv_bytes, unfilled_layers
from meshnet.engine.compiled.cells import CellBuffer, SessionCells
from meshnet.engine.kv import KEY_GRID, BufferedLayer, KVBuffer, first_key

HEADS, SIZE = 2, 16
CELL_BYTES = 2 * HEADS * KEY_GRID * SIZE * 4
LOCAL = LayerRange(3, 6)
WINDOWS = (None, 8, 700)
STEPS = st.tuples(st.sampled_from([1, 2, 64, 255, 256, 257, 700]), st.integers(0, 2 * KEY_GRID))


def session(windows: tuple[int | None, ...] = WINDOWS) -> SessionCells:
    return SessionCells(8, LOCAL, windows, HEADS, SIZE)


def buffers(cells: SessionCells) -> list[CellBuffer]:
    held = [layer.buffer for layer in cells.layers if isinstance(layer, BufferedLayer)]
    assert all(isinstance(buffer, CellBuffer) for buffer in held)
    return held  # type: ignore[return-value]


def at(address: int, index: int) -> int:
    return ctypes.c_int64.from_address(address + 8 * index).value


def in_table(cells: SessionCells, layer: int) -> list[int]:
    """Addresses of the cells of a layer, counted from the session's first."""
    buffer, listed = buffers(cells)[layer], at(cells.table, layer)
    first = buffer.start // KEY_GRID
    return [at(listed, first + cell) for cell in range(buffer.capacity // KEY_GRID)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, min_size=1, max_size=12))
def test_every_layer_has_the_cells_of_its_positions_and_the_table_has_their_places(
    steps: list[tuple[int, int]],
):
    cells, length = session(), 0
    table = cells.table
    for positions, undone in steps:
        cells.extend(positions)
        for index, buffer in enumerate(buffers(cells)):
            assert buffer.length == length + positions
            assert buffer.start <= first_key(length, buffer.window)
            assert buffer.start + buffer.capacity >= buffer.length
            assert in_table(cells, index) == [cell.data_ptr() for cell in buffer.tensors()]
        length += positions
        cells.settle(length)
        if cells.can_truncate(length - undone):
            length -= undone
            cells.truncate(length)

        assert cells.length == length
        for buffer in buffers(cells):
            assert buffer.length == length
            behind = -(-length // KEY_GRID) * KEY_GRID
            assert buffer.start + buffer.capacity == max(behind, buffer.start)
            assert buffer.nbytes == sum(cell.nbytes for cell in buffer.tensors())
    assert cells.table == table


def test_only_layers_of_the_session_hold_anything():
    cells = session()
    cells.extend(1)

    held = [isinstance(layer, BufferedLayer) for layer in cells.layers]

    assert held == [False] * 3 + [True] * 3 + [False] * 2


def test_growing_leaves_what_is_there_where_it_is():
    cells = session((None,) * 3)
    cells.extend(300)
    before = [in_table(cells, layer) for layer in range(3)]

    cells.extend(5000)

    assert [in_table(cells, layer)[:2] for layer in range(3)] == before


def test_truncating_gives_memory_back():
    cells = session((None,) * 3)
    cells.extend(5 * KEY_GRID)
    cells.truncate(KEY_GRID + 1)

    assert [buffer.nbytes for buffer in buffers(cells)] == [2 * CELL_BYTES] * 3


def test_a_session_can_be_truncated_to_nothing_and_filled_again():
    cells = session()
    cells.extend(20)
    cells.truncate(0)
    assert not any(buffer.nbytes for buffer in buffers(cells))

    cells.extend(KEY_GRID)

    assert [buffer.nbytes for buffer in buffers(cells)] == [CELL_BYTES] * 3


def test_what_a_window_let_go_cannot_be_truncated_to():
    cells = session()
    cells.extend(900)
    cells.settle(900)

    assert cells.can_truncate(650)
    assert not cells.can_truncate(300)
    assert not cells.can_truncate(901)


def test_layers_that_were_appended_to_by_themselves_count_on():
    """As trials fill a session with random keys, layer by layer."""
    cells = session()
    for buffer in buffers(cells):
        buffer.append(torch.ones(HEADS, 250, SIZE), torch.ones(HEADS, 250, SIZE))
    cells.settle(250)

    cells.extend(7)

    assert [buffer.length for buffer in buffers(cells)] == [257] * 3
    assert all(buffer.start + buffer.capacity >= 257 for buffer in buffers(cells))


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("lengths", [(1,), (64, 1), (63, 2, 200), (255, 300, 1), (700, 64)])
def test_cells_hold_what_one_buffer_would(lengths: tuple[int, ...], window: int | None):
    cells, whole = CellBuffer(window, heads=HEADS, size=SIZE), KVBuffer(window)
    for length in lengths:
        keys, values = torch.randn(2, HEADS, length, SIZE).unbind(0)
        for buffer in (cells, whole):
            buffer.append(keys, values)
            buffer.settle()

    for ours, theirs in zip(cells.last(lengths[-1]), whole.last(lengths[-1]), strict=True):
        assert torch.equal(ours, theirs)
    assert (cells.start, cells.length) == (whole.start, whole.length)
    assert cells.nbytes == cells.capacity * CELL_BYTES // KEY_GRID


@pytest.mark.parametrize("lengths", [(1,), (256,), (257,), (700,), (300, 1, 1), (255, 1, 1, 300)])
def test_a_session_takes_no_more_than_its_shard_promised(lengths: tuple[int, ...]):
    tried = [(length, session()) for length in (4, 8, 10)]
    for length, cells in tried:
        cells.extend(length)
    cells, promised = session(), kv_bytes(tried)
    for length in lengths:
        cells.extend(length)
        cells.settle(cells.length)

        assert allocated_bytes(cells) == sum(buffer.nbytes for buffer in buffers(cells))
        assert 0 < allocated_bytes(cells) <= promised.of(cells.length)


def test_only_layers_that_nothing_was_written_to_are_unfilled():
    cells = session()
    assert unfilled_layers(cells) == [3, 4, 5]

    cells.extend(1)

    assert unfilled_layers(cells) == []
