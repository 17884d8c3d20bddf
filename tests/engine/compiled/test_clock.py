"""Time within compiled code is counted where there is a counter, and nowhere else."""

from __future__ import annotations

from array import array

import numba
import pytest

from meshnet.engine.compiled.clock import started, stopped


@numba.njit
def timed(counter, times):
    """Work that no compiler can leave out."""
    began = started(counter)
    sum_of = 1.0
    for i in range(times):
        sum_of = sum_of * 0.5 + 1.0 / (i + sum_of)
    stopped(counter, began)
    return sum_of


def test_a_counter_only_grows_and_by_more_for_more_work():
    counter = array("q", [0])
    address = counter.buffer_info()[0]

    def added(times: int) -> int:
        before = counter[0]
        timed(address, times)
        return counter[0] - before

    less = [added(1_000) for _ in range(20)]  # another process may run in the middle of some
    assert 0 < min(less) < added(3_000_000)


def test_a_count_goes_on_from_what_it_was():
    counter = array("q", [10**12])

    timed(counter.buffer_info()[0], 1_000)

    assert counter[0] > 10**12


def test_without_a_counter_nothing_is_written_and_the_work_is_the_same():
    counter = array("q", [0])

    assert timed(0, 1_000) == pytest.approx(timed(counter.buffer_info()[0], 1_000), abs=0.0)
