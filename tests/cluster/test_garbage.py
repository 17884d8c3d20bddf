"""Whatever is sent to a real node process or to the API: a clear refusal, and life goes on."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.api import answered, expected_text, get, until
from tests.cluster.garbage import HIDDEN, MODEL_HEADER, Garbage, activation, garbage, good
from tests.processes import MeshnetProcess, nodes
from tests.wire.echoing import RawAnswer, post, spoken

SEED = 10
WARM_UP = 300
REQUESTS = 2000
TOGETHER = 8
RSS_GROWTH = 1.05


@asynccontextmanager
async def unharmed(
    serving: list[MeshnetProcess], api: MeshnetProcess, model: Path
) -> AsyncIterator[None]:
    """Afterwards the nodes hold nothing, and the next generation is right."""
    yield
    for node in serving:

        def empty(node: MeshnetProcess = node) -> bool:
            told = get(f"{node.url}/node")
            return (told["sessions"], told["kv_bytes"]) == (0, 0)

        await until(empty, f"no session and no KV bytes at {node.url}")
    assert await answered(api.url, "Hello", 16) == expected_text(model, "Hello", 16)


@dataclass(frozen=True)
class Refused:
    """What a node must say: status, code, and the words that name field and fault."""

    status: int
    code: str
    words: tuple[str, ...]


BAD = (400, "bad_request")
CASES: dict[str, tuple[dict[str, str], bytes, Refused]] = {
    "shape of another length": (
        {"X-Meshnet-Shape": f"1,4,{HIDDEN}"}, activation(3),
        Refused(*BAD, ("body", "expected 1024 bytes", "got 768")),
    ),
    "shape of another model": (
        {"X-Meshnet-Shape": "1,6,32"}, activation(3),
        Refused(*BAD, ("shape", "expected [..., 1, T, 64]", "got [1, 6, 32]")),
    ),
    "a batch of two": (
        {"X-Meshnet-Shape": f"2,3,{HIDDEN}"}, activation(6),
        Refused(*BAD, ("shape", "expected [..., 1, T, 64]", "got [2, 3, 64]")),
    ),
    "sizes that are no numbers": (
        {"X-Meshnet-Shape": f"NaN,3,{HIDDEN}"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Shape", "expected", "got 'NaN,3,64'")),
    ),
    "another element type": (
        {"X-Meshnet-Dtype": "fp16"}, activation(3),
        Refused(*BAD, ("body", "expected 384 bytes", "got 768")),
    ),
    "an unknown element type": (
        {"X-Meshnet-Dtype": "int8"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Dtype", "expected one of fp32, bf16, fp16", "got 'int8'")),
    ),
    "a body too short": (
        {}, activation(3)[:-1],
        Refused(*BAD, ("body", "expected 768 bytes", "got 767")),
    ),
    "no body": (
        {}, b"",
        Refused(*BAD, ("body", "expected", "got '0 bytes'")),
    ),
    "a negative past length": (
        {"X-Meshnet-Cache": "decode", "X-Meshnet-Past-Len": "-1"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Past-Len", "expected", "got '-1'")),
    ),
    "a past length in a prefill": (
        {"X-Meshnet-Past-Len": "3"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Past-Len", "expected", "got 3")),
    ),
    "a past length beyond everything": (
        {"X-Meshnet-Cache": "decode", "X-Meshnet-Past-Len": "9999999999"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Past-Len", "expected 0 to 1048576", "got 9999999999")),
    ),
    "more positions than the context": (
        {"X-Meshnet-Shape": f"1,513,{HIDDEN}"}, activation(513),
        Refused(*BAD, ("positions", "expected 0 to 512", "got (0, 513)")),
    ),
    "layers that are elsewhere": (
        {"X-Meshnet-Layers": "0-2"}, activation(3),
        Refused(404, "not_found", ("layers 0-2", "holds 2-4")),
    ),
    "layers backwards": (
        {"X-Meshnet-Layers": "4-2"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Layers", "expected A-B", "got '4-2'")),
    ),
    "a session id that climbs": (
        {"X-Meshnet-Session": "../../etc/passwd"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Session", "expected", "got '../../etc/passwd'")),
    ),
    "a session id without end": (
        {"X-Meshnet-Session": "s" * 3000}, activation(3),
        Refused(*BAD, ("X-Meshnet-Session", "expected 1 to 128", "got 'sss")),
    ),
    "headers of five thousand bytes": (
        {"X-Meshnet-Later": "x" * 5000}, activation(3),
        Refused(*BAD, ("headers", "expected", "at most 4096 bytes", "got 5")),
    ),
    "a meta block that is no JSON": (
        {"X-Meshnet-Meta": "4"}, b"{{{{" + activation(3),
        Refused(*BAD, ("meta", "expected")),
    ),
    "a meta block longer than the body": (
        {"X-Meshnet-Meta": "99999"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Meta", "expected at most the 768 bytes", "got 99999")),
    ),
    "tokens that are text": (
        {"X-Meshnet-Meta": "16"}, b'{"tokens":"abc"}' + activation(3),
        Refused(*BAD, ("meta.tokens", "expected an array", "got 'abc'")),
    ),
    "a token that the model does not know": (
        {"X-Meshnet-Meta": "20"}, b'{"tokens":[1,2,999]}' + activation(3),
        Refused(*BAD, ("tokens", "expected ids from 0 to 511", "got (1, 999)")),
    ),
    "a temperature that is not a number": (
        {"X-Meshnet-Meta": "32"}, b'{"sampling":{"temperature":NaN}}' + activation(3),
        Refused(*BAD, ("meta", "expected")),
    ),
    "another model": (
        {"X-Meshnet-Model": "gpt"}, activation(3),
        Refused(404, "not_found", ("model 'gpt'", "holds")),
    ),
    "a mode that does not exist": (
        {"X-Meshnet-Cache": "PREFILL"}, activation(3),
        Refused(*BAD, ("X-Meshnet-Cache", "expected 'prefill' or 'decode'", "got 'PREFILL'")),
    ),
}  # fmt: skip


def check(answer: RawAnswer | None, refused: Refused) -> None:
    assert answer is not None
    told = json.loads(answer.body)
    assert (answer.status, told["error"]) == (refused.status, refused.code), told
    for word in refused.words:
        assert word in told["message"], told


@pytest.mark.parametrize("case", CASES)
async def test_a_field_that_is_wrong_is_named_with_what_was_expected(
    case: str, serving: list[MeshnetProcess], tiny_model_dir: Path
):
    """Pits A95 and C5."""
    headers, body, refused = CASES[case]

    answer = await spoken(serving[1].url, post(good(tiny_model_dir.name) | headers, body))

    check(answer, refused)


async def test_the_whole_table_leaves_nothing_behind(
    serving: list[MeshnetProcess], api: MeshnetProcess, tiny_model_dir: Path
):
    async with unharmed(serving, api, tiny_model_dir):
        for headers, body, refused in CASES.values():
            check(
                await spoken(serving[1].url, post(good(tiny_model_dir.name) | headers, body)),
                refused,
            )


async def test_tokens_are_checked_against_the_vocabulary(
    serving: list[MeshnetProcess], tiny_model_dir: Path
):
    meta = b'{"tokens":[1,2,512]}'
    headers = {
        "X-Meshnet-Session": "s", "X-Meshnet-Cache": "prefill", "X-Meshnet-Meta": str(len(meta)),
        MODEL_HEADER: tiny_model_dir.name,
    }  # fmt: skip

    answer = await spoken(serving[0].url, post(headers, meta))

    check(answer, Refused(*BAD, ("tokens", "expected ids from 0 to 511", "got (1, 512)")))


async def test_bytes_that_break_http_end_one_connection_only(
    serving: list[MeshnetProcess], api: MeshnetProcess, tiny_model_dir: Path
):
    url, headers = serving[1].url, good(tiny_model_dir.name)
    chunked = b"POST /forward HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with unharmed(serving, api, tiny_model_dir):
        ten_gigabytes = await spoken(url, post(headers, b"", length=10 * 2**30))
        half = await spoken(url, post(headers, activation(3)[:100], length=768), end=True)
        bad_chunk = await spoken(url, chunked + b"ZZ\r\nhello\r\n")
        no_number = await spoken(url, post(headers, b"", length="many"))
        negative = await spoken(url, post(headers, b"", length=-1))
        endless_header = await spoken(url, b"POST /forward HTTP/1.1\r\nX-A: " + b"a" * 300_000)
        not_http = await spoken(url, os.urandom(64) + b"\r\n\r\n")

    check(ten_gigabytes, Refused(413, "too_large", ("body", "expected at most", "got 10737418240")))
    assert ten_gigabytes is not None
    assert ten_gigabytes.closed
    assert half is None
    for answer in (bad_chunk, no_number, negative, not_http):
        assert answer is None or answer.status == 400
    assert endless_header is None or endless_header.status == 431


class Planted:
    """Makes a directory wherever it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


async def test_a_pickle_is_bytes_and_nothing_else(
    serving: list[MeshnetProcess], api: MeshnetProcess, tiny_model_dir: Path, tmp_path: Path
):
    """Pit A96."""
    planted = tmp_path / "planted"
    body = pickle.dumps(Planted(planted))
    padded = body + bytes(-len(body) % (4 * HIDDEN))
    async with unharmed(serving, api, tiny_model_dir):
        answers = [
            await spoken(node.url, post({"Content-Type": kind}, sent))
            for node in serving
            for kind in ("application/octet-stream", "application/x-pickle", "application/x-torch")
            for sent in (body, padded)
        ]

    assert all(answer is not None for answer in answers)
    assert not planted.exists()


async def test_what_is_not_finite_is_an_error_and_never_a_token(
    serving: list[MeshnetProcess], api: MeshnetProcess, tiny_model_dir: Path
):
    """Pit A75: NaN logits would be drawn as token 0."""
    headers = good(tiny_model_dir.name)
    nan = struct.pack("<f", float("nan")) * (3 * HIDDEN)
    infinite = struct.pack("<f", float("inf")) + activation(3)[4:]
    async with unharmed(serving, api, tiny_model_dir):
        for body in (nan, infinite):
            check(
                await spoken(serving[1].url, post(headers, body)),
                Refused(500, "numerical_error", ("NaN or infinity",)),
            )


async def test_an_fp16_node_takes_no_number_that_fp16_cannot_hold(tiny_model_dir: Path):
    """Pit A75: hidden states of a bf16 model exceed 65504."""
    large = struct.pack("<f", 1e5) * (3 * HIDDEN)
    wrapped = struct.pack("<H", 0x7C00) * (3 * HIDDEN)  # what 1e5 becomes: infinity
    with nodes(tiny_model_dir, ["2-4"], MESHNET_WEIGHTS="fp16") as (node,):
        headers = good(tiny_model_dir.name)
        converted = await spoken(node.url, post(headers, large))
        overflown = await spoken(node.url, post(headers | {"X-Meshnet-Dtype": "fp16"}, wrapped))
        left = get(f"{node.url}/node")

    check(converted, Refused(500, "numerical_error", ("hidden", "do not fit", "float16")))
    check(overflown, Refused(500, "numerical_error", ("NaN or infinity",)))
    assert (left["sessions"], left["kv_bytes"]) == (0, 0)


async def test_two_thousand_random_requests_leave_the_memory_as_it_was(
    serving: list[MeshnetProcess], api: MeshnetProcess, tiny_model_dir: Path
):
    """Pit A95."""
    drawn = random.Random(SEED)
    served = [psutil.Process(node.pid) for node in serving]
    async with unharmed(serving, api, tiny_model_dir):
        await throw(serving, tiny_model_dir.name, drawn, WARM_UP)
        before = [process.memory_info().rss for process in served]

        outcomes = await throw(serving, tiny_model_dir.name, drawn, REQUESTS)

    after = [process.memory_info().rss for process in served]
    print(f"{dict(outcomes)}; RSS {[f'{b / a:.3f}' for a, b in zip(before, after, strict=True)]}")
    for first, last in zip(before, after, strict=True):
        assert last <= first * RSS_GROWTH


async def throw(
    serving: list[MeshnetProcess], model: str, drawn: random.Random, count: int
) -> Counter[str]:
    """Send `count` requests, each with one fault; return how often each answer came."""
    outcomes: Counter[str] = Counter()
    waiting = [(drawn.choice(serving).url, garbage(drawn, model)) for _ in range(count)]

    async def work() -> None:
        while waiting:
            url, thrown = waiting.pop()
            outcomes[outcome(await spoken(url, thrown.request, end=thrown.end), thrown)] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(TOGETHER):
            group.create_task(work())
    return outcomes


def outcome(answer: RawAnswer | None, thrown: Garbage) -> str:
    if answer is None:
        assert thrown.breaks_http, thrown
        return "closed"
    if thrown.breaks_http:
        assert 400 <= answer.status < 500, thrown
        return str(answer.status)
    told = json.loads(answer.body)
    numerical = answer.status == 500 and told["error"] == "numerical_error"
    assert 400 <= answer.status < 500 or numerical, (thrown, told)
    assert told["error"]
    assert told["message"]
    return str(told["error"])
