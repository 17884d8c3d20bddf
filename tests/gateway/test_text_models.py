"""What the gateway expects of a text model, asked of both that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.api import Gateway, streamed_text, whole_text

from meshnet.core.vocabulary import ModelId
from meshnet.engine.text import HFText
from meshnet.gateway.ports import TextModel
from meshnet.simulation.toy_text import ToyText

CHAT = [{"role": "user", "content": "Grüße 😀"}]


@pytest.fixture(scope="module", params=["toy", "hugging face"])
def text(request: pytest.FixtureRequest, tiny_model_dir: Path) -> TextModel:
    if request.param == "toy":
        return ToyText()
    return HFText.load(tiny_model_dir, ModelId("tiny"))


def test_a_decoder_says_what_decoding_at_once_says(text: TextModel):
    """Pits A03 and A05."""

    @given(ids=st.lists(st.integers(0, text.vocab_size - 1), max_size=20))
    @settings(derandomize=True, max_examples=100, deadline=None)
    def holds(ids: list[int]) -> None:
        decoder = text.decoder()
        said = "".join(decoder.push(token_id) for token_id in ids) + decoder.flush()
        assert said == text.decode(ids, skip_special=True)

    holds()


def test_bytes_of_a_text_s_tokens_are_the_text(text: TextModel):
    """Pit A43."""
    ids = text.encode("Grüße 😀, 你好!", special=False)

    assert b"".join(map(text.token_bytes, ids)).decode() == "Grüße 😀, 你好!"


def test_raw_text_begins_with_the_same_one_bos_as_a_chat(text: TextModel):
    """Pit A19."""
    raw = text.encode("hi", special=True)
    plain = text.encode("hi", special=False)
    chat = text.render_chat(CHAT, {})

    assert raw[1:] == plain
    assert chat[0] == raw[0]
    assert chat.count(raw[0]) == 1


async def test_an_answer_streams_as_it_is(text: TextModel):
    """Oracle O2 on either model's own ids."""
    said = "The quick brown fox: 'Grüße aus Köln 😀'."
    gateway = Gateway([*text.encode(said, special=False), min(text.stop_ids)], text=text)

    streamed = await gateway.chat(stream=True)
    whole = await gateway.chat()

    assert (streamed_text(streamed), whole_text(whole)) == (said, said)
