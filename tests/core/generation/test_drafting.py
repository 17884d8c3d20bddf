"""Guesses from the text so far, and how many of them are sent."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.core.generation.drafting import Drafter
from meshnet.core.generation.lookup import LOOKED_AT_ONCE, MATCHES, WINDOW, Guess, Lookup
from meshnet.core.generation.payoff import PAUSE, PROBE, Payoff
from meshnet.core.vocabulary import DRAFTS_MAX

# --- what may follow ------------------------------------------------------------------------------


def guess(*ids: int, count: int = 4) -> Guess | None:
    lookup = Lookup(list(ids))
    lookup.grown()
    return lookup.guess(count)


def test_what_followed_the_longest_match_is_guessed():
    assert guess(1, 2, 3, 50, 9, 3, 60, 1, 2, 3, count=2) == Guess((50, 9), 3)


def test_of_equal_matches_the_latest_counts():
    assert guess(1, 50, 60, 1, 70, 80, 1, count=2) == Guess((70, 80), 1)


def test_a_text_that_never_repeats_is_not_guessed_at():
    assert guess(*range(50)) is None


def test_a_loop_is_guessed_to_go_on_beyond_what_is_there():
    assert guess(8, 5, 6, 7, 5, 6, 7, 5, 6, count=7) == Guess((7, 5, 6, 7, 5, 6, 7), 3)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 6))
def test_a_text_that_grew_is_guessed_at_as_if_it_had_always_been_whole(ids, count):
    """And as a search of the whole text would, which costs more with every id."""
    grown: list[int] = []
    lookup = Lookup(grown)
    for token in ids:
        grown.append(token)
        lookup.grown()

    assert lookup.guess(count) == searched(ids, count)


def searched(ids: list[int], count: int) -> Guess | None:
    for length in MATCHES:
        for after in range(len(ids) - 1, length - 1, -1):
            if len(ids) > length and ids[after - length : after] == ids[len(ids) - length :]:
                copied = list(ids)
                for at in range(count):
                    copied.append(copied[after + at])
                return Guess(tuple(copied[len(ids) :]), length)
    return None


def test_memory_is_bounded_however_long_the_text():
    ids = [random.Random(1).randrange(10_000) for _ in range(WINDOW)]
    lookup = Lookup(ids)
    for _ in range(3 * WINDOW // LOOKED_AT_ONCE):
        ids.extend(random.Random(len(ids)).choices(range(10_000), k=LOOKED_AT_ONCE))
        lookup.grown()

    assert len(lookup) <= len(MATCHES) * WINDOW


def test_a_long_prompt_is_taken_in_piece_by_piece():
    prompt = [1, 2, 3, *range(100, 100 + 2 * LOOKED_AT_ONCE), 1, 2, 3]
    lookup = Lookup(prompt)

    calls = 0
    while lookup.guess(1) is None:
        lookup.grown()
        calls += 1

    assert calls == 1
    assert lookup.guess(1) == Guess((100,), 3)


# --- how many of them pay -------------------------------------------------------------------------

STEP_S = 0.03


def taught(*, cost: float, right: float, steps: int = 400) -> Payoff:
    """A payoff that has seen text in which guesses are right so often and cost so much."""
    payoff, rng = Payoff(), random.Random(5)
    for _ in range(steps):
        run(payoff, rng, cost=cost, right=right)
    return payoff


def run(payoff: Payoff, rng: random.Random, *, cost: float, right: float) -> int:
    guesses = payoff.count(3)
    if not guesses:
        payoff.saw_plain(STEP_S, match=3, right=rng.random() < right)
        return 0
    accepted = 0
    while accepted < guesses and rng.random() < right:
        accepted += 1
    took_s = STEP_S * (1.0 + cost * guesses)
    payoff.saw_verified(took_s, match=3, guesses=guesses, accepted=accepted)
    return guesses


def test_the_first_steps_send_none_so_that_there_is_something_to_compare_with():
    assert Payoff().count(3) == 0


@pytest.mark.parametrize(
    ("cost", "right", "least", "most"),
    [
        (0.005, 0.95, 10, DRAFTS_MAX),  # distance: a position costs next to nothing
        (0.15, 0.9, 3, 12),
        (0.5, 0.9, 1, 4),
        (0.005, 0.3, 1, 4),
        (0.9, 0.5, 0, 0),
        (0.3, 0.1, 0, 0),
    ],
)
def test_as_many_guesses_are_sent_as_bring_the_most_tokens_for_their_time(cost, right, least, most):
    payoff = taught(cost=cost, right=right)
    rng = random.Random(6)

    sent = [run(payoff, rng, cost=cost, right=right) for _ in range(20)]

    assert least <= sorted(sent)[10] <= most


def test_text_that_is_never_guessed_rightly_costs_next_to_nothing():
    """A wrong first guess is seen without being sent, so nothing is spent on finding out."""
    payoff, rng = Payoff(), random.Random(7)

    sent = [run(payoff, rng, cost=0.2, right=0.02) for _ in range(1000)]

    assert sum(1.0 + 0.2 * guesses for guesses in sent) <= 1.01 * len(sent)


def test_guesses_that_cost_too_much_are_tried_again_after_longer_and_longer_pauses():
    """What a position costs may change: another machine, another route."""
    payoff, rng = taught(cost=1.5, right=0.9), random.Random(8)

    sent = [run(payoff, rng, cost=1.5, right=0.9) for _ in range(20 * PAUSE)]

    assert 1 <= sum(guesses == PROBE for guesses in sent) <= 5
    for _ in range(100 * PAUSE):
        run(payoff, rng, cost=0.05, right=0.9)
    assert payoff.count(3) > PROBE


def test_text_that_begins_to_repeat_itself_is_noticed_without_a_guess_sent():
    payoff, rng = taught(cost=0.1, right=0.0), random.Random(9)

    sent = [run(payoff, rng, cost=0.1, right=1.0) for _ in range(20)]

    assert sent[0] == 0
    assert sent[-1] >= 4


# --- together -------------------------------------------------------------------------------------


def test_nothing_is_guessed_after_a_stop_id():
    drafter = Drafter([5, 6, 9, 7, 5], frozenset({9}), fixed=4)

    assert drafter.guesses(10) == (6, 9)


def test_no_more_is_guessed_than_may_still_be_drawn():
    ids = [5, 6, 7, 8, 5]

    assert Drafter(ids, frozenset(), fixed=4).guesses(2) == (6, 7)
    assert Drafter(ids, frozenset(), fixed=4).guesses(0) == ()


def test_equal_histories_give_equal_guesses():
    def told() -> list[tuple[int, ...]]:
        ids, rng = [1, 2, 3, 1, 2], random.Random(3)
        drafter = Drafter(ids, frozenset(), fixed=None)
        sent = []
        for _ in range(200):
            guesses = drafter.guesses(8)
            drawn = (*guesses[: rng.randrange(len(guesses) + 1)], rng.randrange(4))
            ids.extend(drawn)
            drafter.judged(drawn, took_s=0.02 + 0.001 * len(guesses))
            sent.append(guesses)
        return sent

    assert told() == told()
    assert any(told())
