"""Garbage at the API of a real gateway over real nodes: a clear 4xx, and the next chat is right."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tests.cluster.api import answered, body_of, expected_text, get
from tests.processes import MeshnetProcess
from tests.wire.echoing import spoken

SEED = 11
WARM_UP = 100
REQUESTS = 600
RSS_GROWTH = 1.05
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
NOT_A_NUMBER = b'{"model":"default","messages":[{"role":"user","content":"x"}],"temperature":NaN}'


@pytest.fixture(scope="module")
def client(api: MeshnetProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=api.url, timeout=60) as client:
        yield client


def chat(**fields: Any) -> bytes:
    return json.dumps({**body_of("x", 4), **fields}).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "default", "prompt": "x", "max_tokens": 4, **fields}).encode()


CASES: dict[str, tuple[str, bytes, str | None, str]] = {
    "half an object": (CHAT, b'{"model"', None, "not valid JSON"),
    "no JSON at all": (CHAT, b"\x80\x04garbage", None, "not UTF-8"),
    "an array": (CHAT, b"[]", None, "must be a JSON object, got an array"),
    "nothing": (CHAT, b"", None, "not valid JSON"),
    "a number that is none": (CHAT, NOT_A_NUMBER, None, "NaN is not a JSON number"),
    "a key twice": (CHAT, b'{"model":"a","model":"b"}', None, "a key is there twice"),
    "nested without end": (CHAT, b"[" * 100_000, None, "nested too deeply"),
    "no model": (CHAT, chat(model=None), "model", "this field is required"),
    "a model that is a number": (CHAT, chat(model=7), "model", "expected a string, got 7"),
    "messages in one string": (
        CHAT, chat(messages="hi"), "messages", "expected an array, got a string",
    ),
    "no message": (CHAT, chat(messages=[]), "messages", "expected at least one message"),
    "a message that is a text": (
        CHAT, chat(messages=["hi"]), "messages[0]", "expected an object, got a string",
    ),
    "a role nobody has": (
        CHAT, chat(messages=[{"role": "alien", "content": "x"}]),
        "messages[0].role", "expected one of system",
    ),
    "half a character": (
        CHAT, chat(messages=[{"role": "user", "content": "\ud800"}]),
        "messages[0].content", "unpaired surrogate",
    ),
    "a hot temperature": (
        CHAT, chat(temperature=99), "temperature", "expected 0 to 2, got 99",
    ),
    "a temperature in words": (
        CHAT, chat(temperature="hot"), "temperature", "expected a number, got a string",
    ),
    "minus one token": (CHAT, chat(max_tokens=-1), "max_tokens", "expected 1 to"),
    "half a token": (CHAT, chat(max_tokens=1.5), "max_tokens", "expected an integer, got 1.5"),
    "a true number of tokens": (
        CHAT, chat(max_tokens=True), "max_tokens", "expected an integer, got true",
    ),
    "a stream of yes": (CHAT, chat(stream="yes"), "stream", "expected true or false"),
    "a stop that is a number": (CHAT, chat(stop=[7]), "stop[0]", "expected a string, got 7"),
    "nine choices": (CHAT, chat(n=9), "n", "expected 1 to 8, got 9"),
    "a bias for no token": (
        CHAT, chat(logit_bias={"x": 1}), "logit_bias", "expected token ids from 0 to 511",
    ),
    "more than the context": (CHAT, chat(max_tokens=10**9), "messages", "maximum context length"),
    "a prompt of objects": (COMPLETION, completion(prompt=[{}]), "prompt[0]", "expected"),
    "a token that is not in the vocabulary": (
        COMPLETION, completion(prompt=[1, 512]), "prompt[1]", "expected 0 to 511, got 512",
    ),
    "no prompt": (COMPLETION, completion(prompt=[]), "prompt", "expected at least one prompt"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named(case: str, client: httpx2.Client):
    path, body, param, words = CASES[case]

    response = client.post(path, content=body, headers={"Content-Type": "application/json"})

    told = response.json()["error"]
    assert response.status_code == 400, told
    assert told["param"] == param
    assert words in told["message"]
    assert told["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing/here", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/forward", 404),
        ("GET", "/v1/models/%2e%2e%2f%2e%2e", 404),
    ],
)
def test_paths_and_methods_that_are_not_there(
    method: str, path: str, status: int, client: httpx2.Client
):
    response = client.request(method, path)

    assert response.status_code == status
    assert response.json()["error"]["message"]


def test_a_form_is_no_way_in(client: httpx2.Client):
    response = client.post(CHAT, content=chat(), headers={"Content-Type": "text/plain"})

    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_a_body_of_forty_megabytes_is_refused(client: httpx2.Client):
    body = chat(padding="x" * 40_000_000)

    response = client.post(CHAT, content=body, headers={"Content-Type": "application/json"})

    assert response.status_code == 413
    assert "33554432 bytes" in response.json()["error"]["message"]


def announced(length: str) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


async def test_bytes_that_break_http_end_one_connection_only(
    api: MeshnetProcess, tiny_model_dir: Path
):
    url = api.url
    ten_gigabytes = await spoken(url, announced(str(10 * 2**30)))
    half = await spoken(url, announced("500"), b'{"model":', end=True)
    no_number = await spoken(url, announced("many"))
    endless = await spoken(url, f"GET {CHAT} HTTP/1.1\r\nX-A: ".encode(), *[b"a" * 4096] * 60)
    not_http = await spoken(url, b"\x16\x03\x01\x02\x00 hello\r\n\r\n")

    assert ten_gigabytes is not None
    assert ten_gigabytes.status == 413
    assert half is None
    assert no_number is None or no_number.status == 400
    assert endless is None or endless.status == 431
    assert not_http is None or not_http.status == 400
    assert await answered(url, "Hello", 16) == expected_text(tiny_model_dir, "Hello", 16)


WRONG: dict[str, tuple[Any, ...]] = {
    "model": (7, [], {}, True, "gpt-4", "x" * 10_000),
    "messages": (7, "x", {}, [], [7], [{}], [{"role": "user"}], [{"role": "user", "content": 7}]),
    "temperature": ("hot", -1, 2.01, [], {}, True, 1e300),
    "top_p": ("all", -0.1, 1.1, [], {}, False),
    "top_k": ("few", -2, 1.5, 2**31, [], {}, True),
    "max_tokens": ("many", 0, -5, 1.5, 10**30, [], {}, True),
    "seed": ("lucky", 1.5, 2**64, [], {}, True),
    "stop": (7, {}, True, [7], [""], ["x"] * 17, "x" * 257),
    "logit_bias": (7, "x", [], {"x": 1}, {"1": 101}, {"512": 1}, {"1": "much"}),
    "logprobs": (7, "yes", [], {}),
    "top_logprobs": (-1, 21, "all", [], {}),
    "stream": (7, "yes", [], {}),
    "stream_options": (7, "x", {"include_usage": True}),
    "presence_penalty": ("x", 2.1, -2.1, [], {}),
    "repetition_penalty": (0, -1, 101, "x"),
    "min_tokens": (-1, "x", 1.5),
    "ignore_eos": (1, "x", []),
    "n": (0, 9, 1.5, "x"),
    "tools": (7, {}, [7], [{"type": "function"}], [{"type": "shell"}]),
    "response_format": (7, "json", {"type": "yaml"}, {"type": "json_schema"}),
}


def garbage(drawn: random.Random) -> bytes:
    """A chat with one wrong field, or the bytes of a right one cut off in the middle."""
    if drawn.random() < 0.2:
        whole = chat()
        return whole[: drawn.randrange(len(whole))]
    field = drawn.choice(sorted(WRONG))
    return chat(**{field: drawn.choice(WRONG[field])})


def throw(client: httpx2.Client, drawn: random.Random, count: int) -> Counter[int]:
    outcomes: Counter[int] = Counter()
    for _ in range(count):
        body = garbage(drawn)
        response = client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
        outcomes[response.status_code] += 1
        assert response.status_code in (400, 404), (body[:300], response.text)
        assert response.json()["error"]["message"]
    return outcomes


async def test_random_garbage_leaves_memory_and_nodes_as_they_were(
    api: MeshnetProcess,
    serving: list[MeshnetProcess],
    client: httpx2.Client,
    tiny_model_dir: Path,
):
    process, drawn = psutil.Process(api.pid), random.Random(SEED)
    throw(client, drawn, WARM_UP)
    before = process.memory_info().rss
    steps = [get(f"{node.url}/node")["steps"] for node in serving]

    outcomes = throw(client, drawn, REQUESTS)

    after = process.memory_info().rss
    print(f"{dict(outcomes)}; RSS {after / before:.3f}")
    assert after <= before * RSS_GROWTH
    told = [get(f"{node.url}/node") for node in serving]
    assert [(node["sessions"], node["kv_bytes"]) for node in told] == [(0, 0)] * 2
    assert [node["steps"] for node in told] == steps
    assert await answered(api.url, "Hello", 16) == expected_text(tiny_model_dir, "Hello", 16)
