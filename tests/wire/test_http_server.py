"""A node over real loopback HTTP: garbage, bounds, half bodies, routes, tokens."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.wire.echoing import EchoService, post, serving, spoken

GOOD = {
    "X-Meshnet-Session": "s",
    "X-Meshnet-Cache": "decode",
    "X-Meshnet-Past-Len": "17",
    "X-Meshnet-Shape": "1,1,8",
    "X-Meshnet-Dtype": "fp32",
}


def code(body: bytes) -> str:
    error = json.loads(body)
    assert error["message"]
    return str(error["error"])


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    start = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    return f"{start}{lines}\r\n".encode() + body


async def test_a_decode_comes_back_with_its_length():
    async with serving(EchoService()) as url:
        answer = await spoken(url, post(GOOD, bytes(range(32))))

    assert answer is not None
    assert (answer.status, answer.body) == (200, bytes(range(32)))
    assert answer.headers["x-meshnet-cached"] == "18"
    assert answer.headers["x-meshnet-compute-us"] == "5"


async def test_the_body_reaches_the_service_as_writable_bytes():
    service = EchoService()
    async with serving(service) as url:
        await spoken(url, post(GOOD, bytes(32)))

    activation = service.seen[0].activation
    assert activation is not None
    assert isinstance(activation.data, memoryview)
    assert not activation.data.readonly


GARBAGE = [
    ({"X-Meshnet-Shape": "1,2,8"}, bytes(32)),
    ({"X-Meshnet-Shape": "NaN,1,8"}, bytes(32)),
    ({"X-Meshnet-Shape": "999999999,999999999,999999999"}, bytes(32)),
    ({"X-Meshnet-Dtype": "int8"}, bytes(32)),
    ({}, bytes(31)),
    ({}, b""),
    ({"X-Meshnet-Past-Len": "-1"}, bytes(32)),
    ({"X-Meshnet-Past-Len": "1e3"}, bytes(32)),
    ({"X-Meshnet-Past-Len": "999999999999"}, bytes(32)),
    ({"X-Meshnet-Cache": "Prefill"}, bytes(32)),
    ({"X-Meshnet-Session": "../x"}, bytes(32)),
    ({"X-Meshnet-Session": "\xfc"}, bytes(32)),
    ({"X-Meshnet-Session": "s" * 10_000}, bytes(32)),
    ({"X-Meshnet-Later": "x" * 5000}, bytes(32)),
    ({"X-Meshnet-Layers": "5-3"}, bytes(32)),
    ({"X-Meshnet-Meta": "33"}, bytes(32)),
    ({"X-Meshnet-Meta": "4"}, b"{{{{" + bytes(32)),
    ({"X-Meshnet-Meta": "12"}, b'{"tokens":1}' + bytes(32)),
    ({"x-meshnet-past-len": "17"}, bytes(32)),
]


async def test_garbage_is_refused_and_the_node_goes_on():
    """Pits A95 and C5."""
    service = EchoService()
    async with serving(service) as url:
        answers = [await spoken(url, post(GOOD | more, body)) for more, body in GARBAGE]
        after = await spoken(url, post(GOOD, bytes(32)))

    for answer, (more, _) in zip(answers, GARBAGE, strict=True):
        assert answer is not None, more
        assert (answer.status, code(answer.body)) == (400, "bad_request"), more
    assert after is not None
    assert after.status == 200
    assert len(service.seen) == 1


async def test_ten_gigabytes_are_refused_before_a_byte_of_them_is_read():
    """Pit A111."""
    async with serving(EchoService()) as url:
        answer = await spoken(url, post(GOOD, b"", length=10 * 2**30))

    assert answer is not None
    assert (answer.status, code(answer.body), answer.closed) == (413, "too_large", True)


async def test_a_body_in_chunks_is_read_up_to_the_limit_and_no_further():
    """Pit A111."""
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    head = b"POST /forward HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    service = EchoService()
    async with serving(service) as url:
        fits = await spoken(url, head, chunk, b"0\r\n\r\n")
        over = await spoken(url, head, *[chunk] * 5)

    assert fits is not None
    assert fits.status == 404
    assert len(service.seen[0].raw) == 2**20
    assert over is None or (over.status, over.closed) == (413, True)
    assert len(service.seen) == 1


async def test_half_a_body_reaches_no_service():
    service = EchoService()
    async with serving(service) as url:
        answer = await spoken(url, post(GOOD, bytes(10), length=32), end=True)

    assert answer is None
    assert service.seen == []


async def test_half_of_a_body_in_chunks_reaches_no_service_though_it_could_be_read():
    head = b"POST /forward HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    service = EchoService()
    async with serving(service) as url:
        answer = await spoken(url, head, b"20\r\n" + bytes(32) + b"\r\n", end=True)

    assert answer is None
    assert service.seen == []


async def test_a_body_a_little_over_the_limit_is_refused_and_the_connection_lives():
    async with serving(EchoService()) as url:
        answer = await spoken(url, post({}, b"", length=5 * 2**20))

    assert answer is not None
    assert (answer.status, answer.closed) == (413, False)


async def test_a_reservation_of_ten_gigabytes_is_refused_before_it_is_read():
    head = f"PUT /sessions/s HTTP/1.1\r\nHost: x\r\nContent-Length: {10 * 2**30}\r\n\r\n"
    async with serving(EchoService()) as url:
        answer = await spoken(url, head.encode())

    assert answer is not None
    assert (answer.status, answer.closed) == (413, True)


async def test_a_connection_that_says_nothing_is_closed_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr("meshnet.wire.http_bounds.HEAD_TIMEOUT_S", 0.05)

    async with serving(EchoService()) as url:
        assert await spoken(url) is None
        assert await spoken(url, b"GET /node HTTP/1.1\r\nX-A: ") is None


async def test_a_request_head_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr("meshnet.wire.http_bounds.HEAD_TIMEOUT_S", 3600.0)
    async with serving(EchoService()) as url:
        answer = await spoken(url, b"GET /node HTTP/1.1\r\nX-A: ", *[b"a" * 1024] * 300)
        after = await spoken(url, request("GET", "/node"))

    assert answer is None or (answer.status, answer.closed) == (431, True)
    assert after is not None
    assert after.status == 200


async def test_what_is_not_http_is_refused():
    async with serving(EchoService()) as url:
        answer = await spoken(url, b"\x16\x03\x01 hello\r\n\r\n")

    assert answer is not None
    assert answer.status == 400


async def test_a_client_that_leaves_while_its_step_runs_harms_nobody():
    service = EchoService(go_on=asyncio.Event())
    assert service.go_on is not None
    async with serving(service) as url:
        async with asyncio.TaskGroup() as group:
            left = group.create_task(spoken(url, post(GOOD, bytes(32))))
            await service.arrived.wait()
            left.cancel()
        service.go_on.set()
        after = await spoken(url, post(GOOD, bytes(32)))

    assert after is not None
    assert after.status == 200
    assert len(service.seen) == 2


async def test_a_bug_in_the_service_is_answered_in_our_form():
    async with serving(EchoService()) as url:
        answer = await spoken(url, post(GOOD | {"X-Meshnet-Model": "bug"}, bytes(32)))
        after = await spoken(url, post(GOOD, bytes(32)))

    assert answer is not None
    assert (answer.status, code(answer.body)) == (500, "internal")
    assert after is not None
    assert after.status == 200


@pytest.mark.parametrize("path", ["/", "/forward/", "/sessions", "/v1/models", "/node/x"])
async def test_an_unknown_path_is_404(path):
    async with serving(EchoService()) as url:
        answer = await spoken(url, request("GET", path))

    assert answer is not None
    assert (answer.status, code(answer.body)) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/forward", "POST"),
        ("POST", "/node", "GET"),
        ("HEAD", "/health", "GET"),
        ("POST", "/sessions/s", "PUT, GET, DELETE"),
    ],
)
async def test_a_wrong_method_is_405_and_says_which_is_right(method, path, allowed):
    async with serving(EchoService()) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request(method, path))
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.close()

    assert head.startswith("HTTP/1.1 405")
    assert f"allow: {allowed}\r\n" in head


async def test_a_session_is_reserved_told_and_released():
    """Pit A59."""
    async with serving(EchoService()) as url:
        reserved = await spoken(url, request("PUT", "/sessions/s", b'{"tokens": 700}'))
        await spoken(url, post(GOOD, bytes(32)))
        told = await spoken(url, request("GET", "/sessions/s"))
        released = [await spoken(url, request("DELETE", "/sessions/s")) for _ in range(2)]
        gone = await spoken(url, request("GET", "/sessions/s"))

    assert reserved is not None
    assert json.loads(reserved.body) == {"session": "s", "tokens": 700}
    assert told is not None
    assert json.loads(told.body)["length"] == 18
    assert [answer and answer.status for answer in released] == [204, 204]
    assert gone is not None
    assert (gone.status, code(gone.body)) == (404, "not_found")


async def test_no_room_is_429_with_retry_after():
    """Pit C1."""
    async with serving(EchoService()) as url:
        answer = await spoken(url, request("PUT", "/sessions/s", b'{"tokens": 1001}'))

    assert answer is not None
    assert (answer.status, code(answer.body)) == (429, "no_room")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "path", ["/sessions/", "/sessions/..%2fx", "/sessions/a/b", "/sessions/%ff"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_bad_session_id_in_a_path_is_400(method, path):
    async with serving(EchoService()) as url:
        answer = await spoken(url, request(method, path))

    assert answer is not None
    assert (answer.status, code(answer.body)) == (400, "bad_request")


async def test_a_reservation_over_the_json_limit_is_413():
    body = b'{"tokens": 1, "x": "' + b"x" * 5000 + b'"}'
    async with serving(EchoService()) as url:
        answer = await spoken(url, request("PUT", "/sessions/s", body))

    assert answer is not None
    assert answer.status == 413


async def test_a_node_that_is_loading_is_alive_but_not_ready():
    service = EchoService(ready=False)
    async with serving(service) as url:
        alive = await spoken(url, request("GET", "/health"))
        loading = await spoken(url, request("GET", "/ready"))
        service.ready = True
        ready = await spoken(url, request("GET", "/ready"))

    assert alive is not None
    assert loading is not None
    assert ready is not None
    assert (alive.status, loading.status, ready.status) == (200, 503, 200)
    assert code(loading.body) == "not_ready"


async def test_metrics_are_what_the_caller_gives():
    async with serving(EchoService()) as url:
        answer = await spoken(url, request("GET", "/metrics"))

    assert answer is not None
    assert answer.body == b"steps 1\n"
    assert answer.headers["content-type"].startswith("text/plain")
    assert "server" not in answer.headers


WRONG_TOKENS = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}]


@pytest.mark.parametrize("headers", [*WRONG_TOKENS, {"Authorization": "bearer secret "}])
async def test_without_the_token_only_health_answers(headers):
    service = EchoService()
    async with serving(service, token="secret") as url:
        refused = [
            await spoken(url, request(method, path, **headers))
            for method, path in [
                ("GET", "/node"),
                ("GET", "/ready"),
                ("GET", "/metrics"),
                ("GET", "/sessions/s"),
                ("DELETE", "/sessions/s"),
                ("GET", "/nowhere"),
            ]
        ]
        refused.append(await spoken(url, post(GOOD | headers, bytes(32))))
        health = await spoken(url, request("GET", "/health", **headers))

    assert [answer and answer.status for answer in refused] == [401] * 7
    assert health is not None
    assert health.status == 200
    assert service.seen == []


async def test_with_the_token_everything_answers():
    async with serving(EchoService(), token="secret") as url:
        answer = await spoken(url, post(GOOD | {"Authorization": "Bearer secret"}, bytes(32)))

    assert answer is not None
    assert answer.status == 200
