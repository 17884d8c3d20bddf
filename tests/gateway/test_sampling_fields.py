"""SAMP, the API's side: what a request says is what the tail is asked."""

from __future__ import annotations

import pytest
from tests.gateway.api import Gateway, ids_of

from meshnet.simulation.toy_text import EOS, ToyDefaults, ToyText

HELLO = [*ids_of("Hello"), EOS]


async def sampling_of(text: ToyText | None = None, **fields):
    gateway = Gateway(HELLO, text=text)
    response = await gateway.chat(**fields)
    assert response.status_code == 200, response.text
    return gateway.generator.requests[0].sampling


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-9])
async def test_no_temperature_is_greedy(temperature: float):
    """Pit A35: a temperature too small to divide by is none."""
    assert (await sampling_of(temperature=temperature)).temperature == 0.0


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"temperature": 2}, "temperature", 2.0),
        ({"top_p": 1.0}, "top_p", 1.0),
        ({"top_p": 0}, "top_p", 0.0),
        ({"top_p": None}, "top_p", 1.0),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 0}, "top_k", 0),
        ({"top_k": None}, "top_k", 0),
        ({"top_k": 40}, "top_k", 40),
        ({"top_k": 2**31 - 1}, "top_k", 1_000_000),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"presence_penalty": 1.5}, "presence_penalty", 1.5),
        ({"frequency_penalty": -2}, "frequency_penalty", -2.0),
        ({"repetition_penalty": 1.2}, "repetition_penalty", 1.2),
        ({"logit_bias": {"5": -100, "6": 2.5}}, "logit_bias", ((5, -100.0), (6, 2.5))),
    ],
)
async def test_values_openai_allows_reach_the_tail(fields: dict, name: str, value: object):
    """Pits A36, A37, A40 and A41."""
    assert getattr(await sampling_of(**fields), name) == value


async def test_unseeded_requests_have_seeds_of_their_own():
    """Pit A38."""
    gateway = Gateway(HELLO)

    await gateway.chat()
    await gateway.chat()

    first, second = (request.sampling.seed for request in gateway.generator.requests)
    assert first != second


@pytest.mark.parametrize(
    ("asked", "used"),
    [(0, 0), (7, 7), (-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1)],
)
async def test_a_seed_is_used_modulo_2_to_the_64(asked: int, used: int):
    """Pit A39: zero and negative seeds are seeds."""
    assert (await sampling_of(seed=asked)).seed == used


async def test_the_model_s_own_defaults_hold_where_the_client_is_silent():
    text = ToyText(generation_defaults=ToyDefaults(temperature=0.6, top_p=0.9, top_k=20))

    silent = await sampling_of(text)
    asked = await sampling_of(text, temperature=1.1, top_p=1, top_k=0)

    assert (silent.temperature, silent.top_p, silent.top_k) == (0.6, 0.9, 20)
    assert (asked.temperature, asked.top_p, asked.top_k) == (1.1, 1.0, 0)


async def test_without_defaults_a_draw_is_plain():
    sampling = await sampling_of()

    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)


async def test_penalties_know_where_the_prompt_ends():
    gateway = Gateway(HELLO)

    await gateway.chat()

    request = gateway.generator.requests[0]
    assert request.sampling.prompt_length == len(request.prompt)


async def test_the_fingerprint_is_told_with_every_answer():
    """Pit A39."""
    assert (await Gateway(HELLO).chat()).json()["system_fingerprint"] == "fp_toy"
