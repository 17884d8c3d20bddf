"""Several answers to one prompt: each by a key of its own, the prompt counted once."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from tests.gateway.api import Gateway, chunks, error, ids_of
from tests.gateway.scripted import Gate

from meshnet.head import GenerationRequest
from meshnet.simulation.toy_text import ToyText


def by_seed(request: GenerationRequest) -> list[int]:
    """An answer that tells the last digit of the seed it was drawn by."""
    return ids_of(str(request.sampling.seed % 10)) + list(ToyText().stop_ids)


async def test_each_choice_draws_by_a_seed_of_its_own():
    """The rule is the documented one: choice k of seed s is what seed s + k gives alone."""
    gateway = Gateway(by_seed)

    several = (await gateway.chat(n=3, seed=5)).json()["choices"]
    alone = (await gateway.chat(seed=6)).json()["choices"]

    assert [choice["index"] for choice in several] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in several] == ["5", "6", "7"]
    assert alone[0]["message"]["content"] == "6"


async def test_seeds_go_round_at_their_end():
    gateway = Gateway(by_seed)

    await gateway.chat(n=2, seed=2**64 - 1)

    assert [request.sampling.seed for request in gateway.generator.requests] == [2**64 - 1, 0]


async def test_a_prompt_counts_once_and_every_answer_counts():
    gateway = Gateway(by_seed)
    gateway.generator.cached_tokens = 2

    one = (await gateway.chat()).json()["usage"]
    three = (await gateway.chat(n=3)).json()["usage"]

    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"]
    assert three["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt():
    gateway = Gateway(by_seed)

    answer = (await gateway.complete(prompt=["a", "bc"], n=2, seed=3)).json()

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == ["3", "4", "3", "4"]
    first, again, second, _ = [request.prompt for request in gateway.generator.requests]
    assert first == again
    assert answer["usage"]["prompt_tokens"] == len(first) + len(second)


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_streamed_choices_come_in_order_each_with_one_end(endpoint: str):
    gateway = Gateway(by_seed)
    fields = {"n": 2, "seed": 1, "stream": True, "stream_options": {"include_usage": True}}

    told = chunks(await getattr(gateway, endpoint)(**fields))

    *answers, usage = told
    assert usage["choices"] == []
    indexes = [chunk["choices"][0]["index"] for chunk in answers]
    ends = [chunk["choices"][0]["finish_reason"] for chunk in answers]
    assert indexes == sorted(indexes)
    assert [end for end in ends if end] == ["stop", "stop"]
    assert usage["usage"]["completion_tokens"] == 4


async def test_whoever_leaves_ends_all_choices():
    """Pit A47: the answers still to come are never begun."""
    gate = Gate()
    gateway = Gateway((*ids_of("ab"), gate))
    body = {"model": "default", "prompt": "The", "n": 3, "stream": True}
    async with gateway.served() as url, httpx2.AsyncClient() as client:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            assert response.status_code == 200
            await gate.reached.wait()
        async with asyncio.timeout(60):
            await gateway.generator.over.wait()

    assert gateway.generator.closed_early == 1
    assert len(gateway.generator.requests) == 1


async def test_more_choices_than_eight_are_refused():
    """Pit A99."""
    assert error(await Gateway().chat(n=9))["param"] == "n"
