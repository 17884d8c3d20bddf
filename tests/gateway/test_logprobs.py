"""SAMP: log probabilities in both shapes, beside exactly the tokens whose text they explain."""

from __future__ import annotations

import math

import pytest
from tests.gateway.api import Gateway, chunks, ids_of

from meshnet.core.vocabulary import SampledToken, TokenLogprob
from meshnet.gateway.assembly import PlacedToken
from meshnet.gateway.logprobs import FLOOR, chat_logprobs, completion_logprobs, finite
from meshnet.simulation.toy_text import BOS, EOS, ToyText, word

FOX = [word("The"), word(" quick"), word(" br"), word("own"), word(" fox."), EOS]


async def test_chat_logprobs_have_the_chat_s_shape():
    """Pit A42: without top_logprobs there are none, and no error."""
    told = (await Gateway(FOX).chat(logprobs=True)).json()["choices"][0]

    entries = told["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == told["message"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in entries)
    assert entries[0] == {
        "token": "The",
        "logprob": -math.log(2.0),
        "bytes": list(b"The"),
        "top_logprobs": [],
    }


async def test_there_are_none_unless_asked():
    told = (await Gateway(FOX).chat()).json()["choices"][0]

    assert told["logprobs"] is None


async def test_as_many_alternatives_as_asked():
    told = (await Gateway(FOX).chat(logprobs=True, top_logprobs=3)).json()

    entries = told["choices"][0]["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)


async def test_bytes_of_halves_join_to_the_text():
    """Pit A43."""
    drawn = [*ids_of("a"), word(b"\xf0\x9f"), word(b"\x98\x80"), EOS]

    told = (await Gateway(drawn).chat(logprobs=True)).json()["choices"][0]

    joined = b"".join(bytes(entry["bytes"]) for entry in told["logprobs"]["content"])
    assert joined.decode() == told["message"]["content"] == "a😀"


async def test_each_chunk_carries_the_tokens_of_its_own_text():
    """Pit A44: also while a stop string holds text back."""
    told = chunks(await Gateway(FOX).chat(logprobs=True, stop="own fox!", stream=True))

    with_text = [chunk["choices"][0] for chunk in told if chunk["choices"][0]["logprobs"]]
    pairs = [
        (choice["delta"]["content"], [e["token"] for e in choice["logprobs"]["content"]])
        for choice in with_text
    ]
    assert pairs == [
        ("The", ["The"]),
        (" quick", [" quick"]),
        (" br", [" br"]),
        ("own fox.", ["own", " fox."]),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_a_stop_string_have_no_entries(stream: bool):
    """Pit A44: as many entries as tokens, less the stop."""
    response = await Gateway(FOX).chat(logprobs=True, stop="own fox", stream=stream)

    if stream:
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks(response)]
        entries = [entry for part in parts if part for entry in part["content"]]
    else:
        entries = response.json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["The", " quick", " br"]


async def test_tokens_without_text_have_their_entries_too():
    """Pit A44: as many entries as tokens, also behind the last character."""
    drawn = [ord("a"), word("<|think|>")]

    told = chunks(await Gateway(drawn).chat(logprobs=True, max_tokens=2, stream=True))

    parts = [chunk["choices"][0]["logprobs"] for chunk in told]
    entries = [entry["token"] for part in parts if part for entry in part["content"]]
    assert entries == ["a", "<|think|>"]


def test_special_tokens_among_the_alternatives_show_their_name():
    """Pit A45."""
    top = (TokenLogprob(EOS, -0.1), TokenLogprob(BOS, -9.0))
    placed = PlacedToken(SampledToken(ord("a"), -2.0, top), 0)

    (entry,) = chat_logprobs([placed], ToyText(), 20)["content"]

    assert [each["token"] for each in entry["top_logprobs"]] == ["<|eos|>", "<|bos|>"]


@pytest.mark.parametrize("logprob", [None, math.nan, -math.inf, -1e5])
def test_what_json_cannot_say_is_the_floor(logprob: float | None):
    assert finite(logprob) == FLOOR


async def test_completion_logprobs_have_the_completions_shape():
    told = (await Gateway(FOX).complete(logprobs=2)).json()["choices"][0]

    logprobs = told["logprobs"]
    assert logprobs["tokens"] == ["The", " quick", " br", "own", " fox."]
    assert logprobs["text_offset"] == [0, 3, 9, 12, 15]
    assert logprobs["token_logprobs"] == [-math.log(2.0)] * 5
    assert logprobs["top_logprobs"][0]["The"] == -math.log(2.0)


def test_a_drawn_token_outside_the_best_is_among_its_alternatives():
    token = SampledToken(ord("z"), -5.0, (TokenLogprob(ord("a"), -0.1),))

    told = completion_logprobs([PlacedToken(token, 0)], ToyText(), 1)

    assert told["top_logprobs"] == [{"a": -0.1, "z": -5.0}]


async def test_a_completion_s_stream_joins_to_its_whole():
    gateway = Gateway(FOX)

    whole = (await gateway.complete(logprobs=1)).json()["choices"][0]["logprobs"]
    told = chunks(await gateway.complete(logprobs=1, stream=True))

    parts = [chunk["choices"][0]["logprobs"] for chunk in told]
    for name, values in whole.items():
        assert [value for part in parts for value in part[name]] == values
