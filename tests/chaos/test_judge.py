"""The judge of streams sees every wrong end: each is put before it here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.chaos.chats import Answer, Ask, End, Verdict, judge
from tests.cluster.api import Told

ERROR = {"message": "no new token in the time for recovery", "type": "server_error", "code": "x"}
USAGE = {"completion_tokens": 3}
CALM = Told("xyz", [(120,), (121,), (122,)], [0.0, 1.0, 2.0], ["length"], [USAGE], [], 1)


def verdict(end: End = End.WHOLE, *, head_died: bool = False, **told: Any) -> Verdict:
    """What is said of an answer that differs from the calm one so far."""
    answer = Answer(Ask("p", 3), "head", told=replace(CALM, **told), status=200, end=end)
    return judge(answer, CALM, head_died=head_died)[0]


def refused(status: int | None, refusal: Any) -> Verdict:
    answer = Answer(Ask("p", 3), "head", status=status, refusal=refusal)
    return judge(answer, CALM, head_died=False)[0]


PARTLY: dict[str, Any] = {
    "text": "xy", "tokens": [(120,), (121,)], "finishes": [], "usages": [], "ended": 0,
}  # fmt: skip


def test_the_whole_answer_is_right():
    assert verdict() is Verdict.RIGHT


@pytest.mark.parametrize("ended", [0, 1])
def test_one_clear_error_after_right_tokens_is_a_failure(ended: int):
    assert verdict(**{**PARTLY, "errors": [ERROR], "ended": ended}) is Verdict.FAILED


def test_a_refusal_with_a_clear_error_is_a_failure():
    assert refused(503, {"error": ERROR}) is Verdict.FAILED


def test_a_lost_connection_is_a_cut_only_if_its_head_died():
    assert verdict(End.LOST, head_died=True, **PARTLY) is Verdict.CUT
    assert verdict(End.LOST, head_died=False, **PARTLY) is Verdict.WRONG


def test_a_client_that_left_is_told_apart():
    assert verdict(End.LEFT, **PARTLY) is Verdict.LEFT


def test_no_end_in_time_is_a_hang():
    assert verdict(End.LATE, **PARTLY) is Verdict.HANG


@pytest.mark.parametrize(
    "told",
    [
        {"tokens": [(120,), (121,), (123,)]},
        {"tokens": [(120,), (121,), (121,), (122,)]},
        {"tokens": [(120,), (120,), (121,)], "finishes": [], "errors": [ERROR]},
        {"text": "xyx"},
        {"finishes": ["stop"]},
        {"finishes": ["length", "length"]},
        {"finishes": []},
        {"usages": []},
        {"usages": [{"completion_tokens": 4}]},
        {"ended": 0},
        {"ended": 2},
        {"errors": [ERROR]},
        {**PARTLY},
        {**PARTLY, "ended": 1},
        {**PARTLY, "finishes": ["length"], "ended": 1},
        {**PARTLY, "finishes": ["stop"], "errors": [ERROR]},
        {**PARTLY, "errors": [ERROR, ERROR]},
        {**PARTLY, "errors": [{"message": ""}]},
        {**PARTLY, "errors": ["oops"]},
    ],
    ids=str,
)
def test_a_stream_that_ends_otherwise_is_wrong(told: dict[str, Any]):
    assert verdict(**told) is Verdict.WRONG


@pytest.mark.parametrize("end", [End.LOST, End.LEFT])
def test_a_finish_that_comes_too_early_is_wrong_however_the_connection_ends(end: End):
    assert verdict(end, head_died=True, **{**PARTLY, "finishes": ["length"]}) is Verdict.WRONG


@pytest.mark.parametrize(
    ("status", "refusal"),
    [(409, {"error": ERROR}), (500, "Internal Server Error"), (502, {"error": "?"}), (503, {})],
)
def test_a_refusal_that_is_no_clear_error_is_wrong(status: int, refusal: Any):
    assert refused(status, refusal) is Verdict.WRONG
