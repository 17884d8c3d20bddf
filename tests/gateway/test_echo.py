"""An answer that begins with its prompt, and the prompt's log probabilities with it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from tests.gateway.api import USER, Gateway, chunks, error, ids_of, streamed_text
from tests.gateway.scripted import ScriptedGenerator

from meshnet.core.vocabulary import SampledToken
from meshnet.head import GenerationRequest, TokenEvent
from meshnet.simulation.toy_text import BOS, EOS, ToyText

HALF = -math.log(2.0)


async def logprobs(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    answer = await gateway.complete(echo=True, logprobs=1, **fields)
    assert answer.status_code == 200
    return answer.json()["choices"][0]["logprobs"]


async def test_an_echo_without_log_probabilities_runs_the_prompt_as_ever():
    gateway = Gateway((*ids_of(" quick"), EOS))

    answer = (await gateway.complete(prompt="The", echo=True)).json()

    (asked,) = gateway.generator.requests
    assert answer["choices"][0]["text"] == "The quick"
    assert answer["choices"][0]["logprobs"] is None
    assert asked.prompt == (BOS, *ids_of("The"))
    assert asked.sampling.forced == ()
    assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("The fox", 3), (["The fox"], 3), (ids_of("The fox"), 2), ([ids_of("The fox")], 2)],
)
async def test_nothing_but_a_prompt_is_scored(prompt: Any, count: int):
    """Pit A33: no generated text, one entry for each id, none expected before the first."""
    gateway = Gateway(ids_of("never drawn"))

    answer = (await gateway.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=0)).json()

    choice = answer["choices"][0]
    told = choice["logprobs"]
    assert choice["text"] == "The fox"
    assert choice["finish_reason"] == "length"
    assert "".join(told["tokens"]).removeprefix("<|bos|>") == "The fox"
    assert told["token_logprobs"] == [None] + [pytest.approx(HALF)] * (count - 1)
    assert told["top_logprobs"][0] is None
    assert all(len(each) >= 1 for each in told["top_logprobs"][1:])
    assert answer["usage"] | {"prompt_tokens_details": 0, "completion_tokens_details": 0} == {
        "prompt_tokens": count,
        "completion_tokens": 0,
        "total_tokens": count,
        "prompt_tokens_details": 0,
        "completion_tokens_details": 0,
    }


async def test_what_is_drawn_behind_a_scored_prompt_has_entries_behind_its_own():
    """lm-eval reads `token_logprobs[n:-1]`, so the last one must be there, stop id or not."""
    told = await logprobs(Gateway(ids_of(" fox")), prompt="The quick", max_tokens=1)
    ended = await logprobs(Gateway((EOS,)), prompt="The quick", max_tokens=1)

    assert told["tokens"] == ["<|bos|>", "The", " quick", " fox"]
    assert ended["tokens"] == ["<|bos|>", "The", " quick", "<|eos|>"]
    assert told["text_offset"] == [0, 0, 3, 9]


async def test_stop_ids_and_stop_strings_inside_a_prompt_end_nothing():
    gateway = Gateway((*ids_of("ab"), EOS))
    prompt = [*ids_of("xa"), EOS, *ids_of("ax")]

    answer = (await gateway.complete(prompt=prompt, echo=True, logprobs=0, stop=["b"])).json()

    choice = answer["choices"][0]
    assert choice["text"] == "xaaxa"
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"] == ["x", "a", "<|eos|>", "a", "x", "a"]
    assert answer["usage"]["completion_tokens"] == 2


async def test_the_rest_of_the_request_counts_from_where_the_prompt_ends():
    gateway = Gateway(ids_of("a"))

    await gateway.complete(prompt="The fox", echo=True, logprobs=0, max_tokens=3, min_tokens=2)

    (asked,) = gateway.generator.requests
    ids = tuple(ToyText().encode("The fox", special=True))
    assert (asked.prompt, asked.sampling.forced) == (ids[:1], ids[1:])
    assert asked.sampling.prompt_length == 3
    assert asked.sampling.banned_until == 5
    assert asked.tokens_max == 5
    assert asked.prefix_owner is None


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}])
async def test_streamed_an_echo_is_the_same(fields: dict[str, Any]):
    def gateway() -> Gateway:
        return Gateway((*ids_of("é and 你"), EOS))

    fields = {"prompt": "The 你好 fox", "echo": True, "n": 2, **fields}
    whole = (await gateway().complete(**fields)).json()["choices"]
    response = await gateway().complete(stream=True, **fields)

    assert streamed_text(response) == "".join(choice["text"] for choice in whole)
    told = [choice for chunk in chunks(response) for choice in chunk["choices"]]
    if "logprobs" in fields:
        entries = [entry for each in told for entry in each["logprobs"]["text_offset"]]
        expected = [entry for each in whole for entry in each["logprobs"]["text_offset"]]
        assert entries == expected
        falls = [later < earlier for earlier, later in pairwise(entries)]
        assert sum(falls) == 1


async def test_an_echo_alone_asks_no_node():
    gateway = Gateway()

    answer = (await gateway.complete(prompt="The", echo=True, max_tokens=0)).json()

    assert answer["choices"][0] == {
        "index": 0,
        "text": "The",
        "logprobs": None,
        "finish_reason": "length",
    }
    assert gateway.generator.requests == []


async def test_a_tail_that_draws_what_it_likes_is_an_error_and_no_score():
    class Deaf(ScriptedGenerator):
        async def generate(self, request: GenerationRequest) -> Any:
            self.requests.append(request)
            yield TokenEvent(SampledToken(ids_of("z")[0], HALF))

    gateway = Gateway(generator=Deaf(()))

    answer = await gateway.complete(prompt="The", echo=True, logprobs=0, max_tokens=0)

    assert answer.status_code == 502
    assert error(answer)["code"] == "upstream_error"


async def test_an_empty_answer_without_echo_and_echo_in_a_chat_are_refused():
    """Pit A33: refused by name, and the server lives."""
    gateway = Gateway((*ids_of("a"), EOS))

    nothing = await gateway.complete(max_tokens=0)
    chat = await gateway.chat(messages=USER, echo=True)

    assert error(nothing)["param"] == "max_tokens"
    assert error(chat)["param"] == "echo"
    assert (await gateway.chat()).status_code == 200
