"""Prompts: exact lengths, the same for every side, none the beginning of another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshnet.cli.bench.prompts import Prompts


def by_bytes(text: str) -> list[int]:
    return list(text.encode())


@given(st.integers(0, 500), st.integers(1, 2000))
def test_a_prompt_has_exactly_the_tokens_asked_for(number: int, tokens: int):
    assert len(Prompts(by_bytes).ids(number, tokens)) == tokens


def test_a_prompt_is_the_same_whenever_it_is_asked_for():
    assert Prompts(by_bytes).ids(3, 100) == Prompts(by_bytes).ids(3, 100)


def test_prompts_differ_within_their_first_tokens():
    """A cache of one prompt must be of no use to another."""
    beginnings = {Prompts(by_bytes).ids(number, 4) for number in range(500)}

    assert len(beginnings) == 500


def test_measurements_of_unlike_salt_share_no_prompt():
    assert Prompts(by_bytes, salt=1).ids(0, 30) != Prompts(by_bytes, salt=2).ids(0, 30)


def test_a_prompt_is_made_of_words():
    text = bytes(Prompts(by_bytes).ids(0, 200)).decode()

    assert len(text.split()) > 20
