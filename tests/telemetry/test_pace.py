"""How fast answers came lately."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshnet.telemetry.events import FirstToken, GenerationFinished
from meshnet.telemetry.pace import ANSWERS_MAX, TOKENS_LEAST, Pace, Told

ANSWER = GenerationFinished(
    outcome="stop", tokens=11, refills=0, duration_s=9.0, session="s", ttft_s=0.5, decode_s=2.0
)


def test_the_rate_is_that_of_the_tokens_after_the_first():
    pace = Pace()

    pace.observe(FirstToken(0.5, "s"))
    pace.observe(ANSWER)

    assert pace.told == Told(answers=1, tokens_per_s=5.0, first_s=0.5)


@pytest.mark.parametrize(
    "answer",
    [
        replace(ANSWER, tokens=TOKENS_LEAST - 1),
        replace(ANSWER, tokens=0, ttft_s=None, decode_s=0.0),
        replace(ANSWER, decode_s=0.0),
    ],
)
def test_an_answer_without_a_rate_says_nothing(answer: GenerationFinished):
    pace = Pace()

    pace.observe(answer)

    assert pace.told is None


def test_only_the_last_answers_count_and_an_outlier_among_them_does_not():
    pace = Pace()
    for _ in range(5):
        pace.observe(replace(ANSWER, decode_s=100.0))

    for decode_s in [2.0] * (ANSWERS_MAX - 1) + [50.0]:
        pace.observe(replace(ANSWER, decode_s=decode_s))

    assert pace.told == Told(answers=ANSWERS_MAX, tokens_per_s=5.0, first_s=0.5)
