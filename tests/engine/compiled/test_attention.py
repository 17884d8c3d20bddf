"""Compiled attention is attention, and a row's bits depend on what the row sees alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshnet.engine.compiled.attention import attend, scratch_bytes
from meshnet.engine.compiled.cells import CellBuffer


@dataclass(frozen=True)
class Session:
    """Random queries, keys and values of `length` positions, in memory that else holds NaN."""

    length: int
    group: int = 3
    kv_heads: int = 2
    size: int = 16
    window: int | None = None
    seed: int = 0

    def queries(self) -> Tensor:
        return self._random(self.length, self.group * self.kv_heads)

    def keys_values(self) -> tuple[Tensor, Tensor]:
        keys, values = (self._random(self.kv_heads, self.length, key=n) for n in (1, 2))
        return keys, values

    def held(self, keys: Tensor, values: Tensor) -> CellBuffer:
        buffer = CellBuffer(None, heads=self.kv_heads, size=self.size)
        buffer.reserve(self.length)
        for cell in buffer.tensors():
            cell.fill_(torch.nan)
        buffer.append(keys, values)
        return buffer

    def attended(
        self, queries: Tensor, held: CellBuffer, past: int, *, parts: Sequence[int] = (0, 1)
    ) -> Tensor:
        """What the rows attend to; `parts` are the parts that are run, and then how many."""
        out = torch.full_like(queries, torch.nan)
        room = scratch_bytes(past + len(queries), self.size) // 4
        scratch = torch.full((room + 64,), torch.nan)
        scratch[room:] = 7
        for part in parts[:-1]:
            attend(
                queries.data_ptr(), out.data_ptr(), held.table, 0, past, len(queries),
                queries.shape[1], self.kv_heads, self.size, np.float32(self.size**-0.5),
                self.window or 0, scratch.data_ptr(), part, parts[-1],
            )  # fmt: skip
        assert torch.equal(scratch[room:], torch.full((64,), 7.0))
        return out

    def whole(self) -> Tensor:
        return self.attended(self.queries(), self.held(*self.keys_values()), 0)

    def meant(self) -> Tensor:
        """Attention in fp64."""
        keys, values = (
            held.double().repeat_interleave(self.group, 0) for held in self.keys_values()
        )
        scores = torch.einsum("thd,hsd->hts", self.queries().double(), keys) * self.size**-0.5
        at = torch.arange(self.length)
        hidden = at > at[:, None]
        if self.window is not None:
            hidden |= at <= at[:, None] - self.window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hts,hsd->thd", weights, values)

    def _random(self, *shape: int, key: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(3 * self.seed + key)
        return torch.randn((*shape, self.size), generator=generator) * 2


@pytest.mark.parametrize("size", [16, 48, 64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 11, 32])
def test_every_shape_of_heads_attends(group: int, size: int):
    session = Session(70, group, size=size)

    _assert_close(session.whole(), session.meant())


@pytest.mark.parametrize("window", [None, 1, 2, 9, 64, 65, 255, 256, 257, 700])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_a_row_sees_the_positions_of_its_window(group: int, window: int | None):
    session = Session(600, group, window=window)

    _assert_close(session.whole(), session.meant())


def test_long_sessions_attend():
    session = Session(3000, 4, 1, 32)
    held = session.held(*session.keys_values())

    got = session.attended(session.queries()[2900:], held, 2900)

    _assert_close(got, session.meant()[2900:])


def _assert_close(got: Tensor, expected: Tensor) -> None:
    error = float((got.double() - expected).abs().max() / expected.abs().max())
    assert error < 1e-5, error


SESSIONS = st.builds(
    Session,
    length=st.sampled_from([1, 5, 63, 64, 65, 130, 257, 300]),
    group=st.integers(1, 9),
    kv_heads=st.integers(1, 3),
    size=st.sampled_from([16, 32, 64, 96]),
    window=st.sampled_from([None, None, 1, 3, 20, 70, 256]),
    seed=st.integers(0, 100),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(session=SESSIONS, cuts=st.sets(st.integers(0, 300), max_size=6), parts=st.integers(1, 5))
def test_bits_do_not_depend_on_how_rows_are_cut_and_shared(
    session: Session, cuts: set[int], parts: int
):
    queries, held = session.queries(), session.held(*session.keys_values())
    bounds = sorted({0, session.length} | {cut for cut in cuts if cut < session.length})
    shares = (*reversed(range(parts)), parts)

    got = torch.cat(
        [session.attended(queries[a:b], held, a, parts=shares) for a, b in pairwise(bounds)]
    )

    assert torch.equal(got, session.whole())


@pytest.mark.parametrize("window", [None, 40])
def test_bits_do_not_depend_on_positions_that_a_row_does_not_see(window: int | None):
    """Later ones of the same call included, whatever they hold."""
    session = Session(300, window=window)
    keys, values = session.keys_values()
    expected = session.whole()
    before = 0 if window is None else 217 - window
    for held in (keys, values):
        held[:, 217:] = torch.nan
        held[:, :before] = torch.inf

    got = session.attended(session.queries(), session.held(keys, values), 0)

    rows = slice(before + (window or 1) - 1, 217)
    assert torch.equal(got[rows], expected[rows])
    assert len(got[rows]) >= 1


@pytest.mark.parametrize("spoilt", [0, 1])
def test_what_is_no_number_stays_in_the_rows_that_see_it(spoilt: int):
    session = Session(300, window=40)
    held = session.keys_values()
    held[spoilt][1, 100] = torch.nan

    got = session.attended(session.queries(), session.held(*held), 0)

    heads = got.view(300, 2, session.group, session.size)
    assert torch.isnan(heads[100:140, 1]).all()
    assert torch.isfinite(heads[:100]).all()
    assert torch.isfinite(heads[140:]).all()
    assert torch.isfinite(heads[:, 0]).all()


def test_a_query_that_is_no_number_spoils_its_own_row():
    session = Session(40)
    queries, expected = session.queries(), session.whole()
    queries[17, 2, 3] = torch.nan

    got = session.attended(queries, session.held(*session.keys_values()), 0)

    assert torch.isnan(got[17, 2]).all()
    expected[17, 2] = got[17, 2] = 0
    assert torch.equal(got, expected)


def test_scores_far_apart_leave_the_best_key():
    session = Session(100, 1, 1)
    keys, values = session.keys_values()
    keys[0, 30] *= 1e4
    queries = keys[0, 30:31, None].repeat(100, 1, 1)

    got = session.attended(queries, session.held(keys, values), 0)

    assert torch.equal(got[40, 0], values[0, 30])


def test_parts_write_rows_of_their_own():
    """Each half leaves the other's rows, and together they leave none."""
    session = Session(100)
    queries, held = session.queries(), session.held(*session.keys_values())

    halves = [session.attended(queries, held, 0, parts=(part, 2)) for part in range(2)]

    written = [torch.isfinite(half) for half in halves]
    assert torch.equal(written[0], ~written[1])
    assert all(half.any() for half in written)
