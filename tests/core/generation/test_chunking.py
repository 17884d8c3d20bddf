"""How a prompt is cut so that all hops of a route work on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.core.generation.chunking import Chunking, opening_apart


def clock_of(lengths: list[int], hops: int, price: int) -> int:
    """Time the pipeline step by step: a chunk enters a hop when both are free."""
    free = [0] * hops
    for length in lengths:
        arrives = 0
        for hop in range(hops):
            free[hop] = arrives = max(arrives, free[hop]) + price + length
    return free[-1]


def lengths_of(chunking: Chunking, past: int, length: int, hops: int) -> list[int]:
    ends = list(chunking.ends(past, length, hops))
    return [end - start for start, end in zip([past, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("positions", "hops", "lengths"),
    [
        (200, 1, [200]),
        (2000, 1, [512, 512, 512, 464]),
        (128, 3, [128]),
        (130, 2, [130]),
        (256, 2, [128, 128]),
        (512, 2, [128] * 4),
        (512, 8, [128] * 4),
        (4096, 2, [384] * 10 + [256]),
        (4096, 4, [256] * 16),
    ],
)
def test_a_prompt_is_cut_so_that_no_hop_is_idle_long(positions, hops, lengths):
    assert lengths_of(Chunking(), 0, positions, hops) == lengths


def test_chunks_end_at_the_grain_wherever_they_begin():
    ends = list(Chunking().ends(100, 900, 2))

    assert ends[-1] == 900
    assert all(end % 128 == 0 for end in ends[:-1])


def test_chunks_smaller_than_the_grain_are_as_long_as_allowed():
    assert lengths_of(Chunking(most=7), 0, 20, 3) == [7, 7, 6]


@given(st.integers(0, 3000), st.integers(1, 5000), st.integers(1, 8), st.integers(1, 700))
def test_chunks_cover_every_position_once_and_none_is_too_long(past, positions, hops, most):
    lengths = lengths_of(Chunking(most=most), past, past + positions, hops)

    assert sum(lengths) == positions
    assert all(0 < length <= most for length in lengths)


@given(st.integers(1, 3000), st.integers(1, 6))
def test_no_other_length_gets_a_prompt_through_sooner(positions, hops):
    """Held against a clock: the sum of the formula leaves out that the last chunk is shorter."""
    chunking = Chunking()

    def took(length: int) -> int:
        whole, rest = divmod(positions, length)
        return clock_of([length] * whole + [rest] * bool(rest), hops, chunking.price)

    best = min(took(length) for length in (128, 256, 384, 512))
    assert took(chunking.length(positions, hops)) <= best


@pytest.mark.parametrize(
    ("past", "length", "expected"),
    [
        (0, 63, [63]),
        (0, 64, [56, 64]),
        (0, 700, [512, 692, 700]),
        (0, 516, [508, 516]),
        (600, 640, [640]),
        (600, 664, [656, 664]),
    ],
)
def test_the_last_positions_of_a_long_prompt_are_a_step_of_their_own(past, length, expected):
    """What a next turn may lack comes after all else."""
    ends = Chunking().ends(past, length, 1)

    assert list(opening_apart(ends, past, length, 8)) == expected
