"""STR: text that leaves in pieces is the text of the ids, whole and nothing else."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.api import (
    Gateway,
    chunks,
    finish_reasons,
    ids_of,
    streamed_text,
    truncated,
    whole_text,
)

from meshnet.simulation.toy_text import EOS, FIRST_SPECIAL, FIRST_WORD, VOCABULARY, ToyText, word

FOX = [word("The"), word(" quick"), word(" br"), word("own"), word(" fox."), ord("!"), EOS]


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_a_stop_string_over_two_tokens_leaves_no_trace(endpoint: str):
    """Pit A01."""
    gateway = Gateway(FOX)
    ask = getattr(gateway, endpoint)

    streamed = await ask(stop="own fox", stream=True)
    whole = await ask(stop="own fox")

    assert streamed_text(streamed) == whole_text(whole) == "The quick br"
    assert finish_reasons(streamed) == ["stop"]
    assert whole.json()["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_inside_a_token_cuts_it_and_the_token_still_counts():
    """Pit A02."""
    whole = await Gateway(FOX).chat(stop="ick")

    assert whole_text(whole) == "The qu"
    assert whole.json()["usage"]["completion_tokens"] == 2


async def test_a_stop_string_ends_the_generation_at_once():
    """Pit A56: nothing is drawn for a text that has ended."""
    gateway = Gateway(FOX)

    await gateway.chat(stop="ick")

    assert gateway.generator.drawn == 2
    assert gateway.generator.closed_early == 1


@pytest.mark.parametrize(
    ("halves", "character"),
    [
        ([b"\xf0\x9f", b"\x98\x80"], "😀"),
        ([b"\xe4\xbd", b"\xa0"], "你"),
        ([b"\xc3", b"\xa9"], "é"),
    ],
)
async def test_halves_of_a_character_leave_together(halves: list[bytes], character: str):
    """Pit A03."""
    gateway = Gateway([word("The"), *map(word, halves), ord("!"), EOS])

    streamed = await gateway.chat(stream=True)
    whole = await gateway.chat()

    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks(streamed)]
    assert "�" not in "".join(texts)
    assert character in texts
    assert whole_text(whole) == f"The{character}!"


async def test_an_unfinished_character_at_the_end_is_told_once():
    gateway = Gateway([word(b"\xf0\x9f")])

    whole = await gateway.chat(max_tokens=1)

    assert whole_text(whole) == "�"


async def test_spaces_before_words_and_quotes_stay():
    """Pits A04, A05 and A06: nothing is trimmed and nothing is cleaned up."""
    said = " The quick brown fox . : 'search  !"
    gateway = Gateway([*ids_of(said), EOS])

    streamed = await gateway.chat(stream=True)

    assert streamed_text(streamed) == said


async def test_reasoning_tags_pass_as_the_text_they_are():
    """Pit A07: not split, so never half of one."""
    said = "a</think>b <reasoning>S</reasoning> c"

    whole = await Gateway([*ids_of(said), EOS]).chat()

    assert whole_text(whole) == said


async def test_a_tail_that_never_became_a_stop_is_given_out():
    gateway = Gateway([*ids_of("The own f"), EOS])

    streamed = await gateway.chat(stop="own fox", stream=True)
    whole = await gateway.chat(stop="own fox")

    assert streamed_text(streamed) == whole_text(whole) == "The own f"


async def test_a_stop_token_id_has_no_text():
    """Pit A08."""
    whole = await Gateway(FOX).chat(stop_token_ids=[word(" fox.")])

    assert whole_text(whole) == "The quick brown"
    assert whole.json()["choices"][0]["finish_reason"] == "stop"
    assert whole.json()["usage"]["completion_tokens"] == 5


tokens = st.one_of(
    st.integers(FIRST_WORD, VOCABULARY - 1),
    st.integers(ord(" "), ord("z")),
    st.integers(0, FIRST_SPECIAL - 1),
    st.just(word("<|think|>")),
)


@given(
    drawn=st.lists(tokens, min_size=1, max_size=24),
    stops=st.lists(st.text(" ownfox😀é", min_size=1, max_size=4), max_size=3),
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_streamed_text_equals_whole_text(drawn: list[int], stops: list[str]):
    """Oracle O2, with stops and halves of characters anywhere."""

    async def both() -> tuple[str, str]:
        gateway = Gateway([*drawn, EOS])
        streamed = await gateway.chat(stop=stops, stream=True)
        whole = await gateway.chat(stop=stops)
        return streamed_text(streamed), whole_text(whole)

    streamed, whole = asyncio.run(both())

    decoded = ToyText().decode(drawn, skip_special=True)
    assert streamed == whole == truncated(stops, decoded)[0]
