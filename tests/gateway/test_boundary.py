"""Around the endpoints: keys, request ids, paths, errors, probes."""

from __future__ import annotations

import asyncio
import re

import httpx2
import pytest
from tests.gateway.api import USER, Gateway, error, ids_of
from tests.gateway.scripted import Gate

from meshnet.gateway.auth import KeyRing
from meshnet.gateway.ports import Metrics, Readiness
from meshnet.gateway.settings import GatewaySettings
from meshnet.head import FailureCode, GenerationFailed
from meshnet.simulation.toy_text import EOS
from meshnet.telemetry.events import Fault, GatewayAnswered

HELLO = [*ids_of("Hello"), EOS]
LOCKED = GatewaySettings(api_keys=("first-key", "second-key"))


@pytest.mark.parametrize("authorization", ["Bearer first-key", "bearer second-key"])
async def test_a_configured_key_opens_the_api(authorization: str):
    response = await Gateway(HELLO, settings=LOCKED).send(
        "GET", "/v1/models", headers={"authorization": authorization}
    )

    assert response.status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first-key", "first-key"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "//v1/models/"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/openapi.json"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
    ],
)
async def test_without_a_right_key_every_path_is_closed(authorization, method, path):
    """Deny by default: also what does not exist, also the description of the API."""
    headers = {} if authorization is None else {"authorization": authorization}

    response = await Gateway(HELLO, settings=LOCKED).send(method, path, headers=headers)

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert error(response)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready", "//health", "/health/"])
async def test_probes_need_no_key(path: str):
    assert (await Gateway(settings=LOCKED).send("GET", path)).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("0.0.0.0", 403),
    ],
)
async def test_without_a_key_a_request_must_name_this_machine(host: str, status: int):
    """A page whose name points to 127.0.0.1 would else read the answers (DNS rebinding)."""
    response = await Gateway(HELLO).send("GET", "/v1/models", headers={"host": host})

    assert response.status_code == status


async def test_with_a_key_any_name_is_fine():
    headers = {"host": "llm.example", "authorization": "Bearer first-key"}

    response = await Gateway(HELLO, settings=LOCKED).send("GET", "/v1/models", headers=headers)

    assert response.status_code == 200


def test_a_key_is_not_shown_by_its_settings():
    assert "first-key" not in repr(LOCKED)


def test_a_ring_without_keys_opens_for_nobody():
    assert KeyRing([], secret=b"s").find("Bearer x") is None


@pytest.mark.parametrize("asked", ["abc-1.2_3", "x" * 128])
async def test_a_plain_request_id_is_kept(asked: str):
    """Pit A18."""
    response = await Gateway(HELLO).send("GET", "/health", headers={"x-request-id": asked})

    assert response.headers["x-request-id"] == asked


@pytest.mark.parametrize("asked", ["x" * 129, "a b", "a/b", "x" * 50_000, "é", ""])
async def test_any_other_request_id_is_replaced(asked: str):
    """Pit A18."""
    response = await Gateway(HELLO).send("GET", "/health", headers={"x-request-id": asked.encode()})

    assert response.status_code == 200
    assert response.headers["x-request-id"] == "req-id1"


async def test_the_request_id_goes_with_the_generation_and_into_the_log():
    """Pit A110."""
    gateway = Gateway(HELLO)
    body = {"model": "default", "messages": USER}

    response = await gateway.send(
        "POST", "/v1/chat/completions", json=body, headers={"x-request-id": "mine"}
    )

    assert response.headers["x-request-id"] == "mine"
    assert gateway.generator.requests[0].trace == "mine"
    assert [event for event in gateway.events if isinstance(event, GatewayAnswered)] == [
        GatewayAnswered("POST", "/v1/chat/completions", 200, 0.0, "mine")
    ]


async def test_no_event_carries_a_prompt_or_an_answer():
    gateway = Gateway(HELLO)

    await gateway.chat(messages=[{"role": "user", "content": "my secret"}])

    told = repr(gateway.events)
    assert "my secret" not in told
    assert "Hello" not in told


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/v1//models", "//v1/models", "/models", "//models", "/v1/models/", "/models/"],
)
async def test_slashes_and_the_version_do_not_matter(path: str):
    """Pit A102."""
    response = await Gateway(HELLO).send("GET", path)

    assert response.status_code == 200
    assert response.json()["object"] == "list"


@pytest.mark.parametrize(
    "path",
    ["/v1/models/org/toy", "/v1/models/org%2Ftoy", "/models/org/toy", "/v1/models/default"],
)
async def test_a_model_id_may_hold_slashes(path: str):
    """Pit A103."""
    response = await Gateway(HELLO).send("GET", path)

    assert response.status_code == 200
    assert response.json()["id"] == "org/toy"


async def test_an_unknown_model_is_404_everywhere():
    """Pit A103: type and code are what LiteLLM looks for."""
    gateway = Gateway(HELLO)

    answers = [
        await gateway.send("GET", "/v1/models/other"),
        await gateway.chat(model="other"),
        await gateway.complete(model="other"),
    ]

    for response in answers:
        assert response.status_code == 404
        assert error(response)["code"] == "model_not_found"
        assert error(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("OPTIONS", "/v1/models", 405),
    ],
)
async def test_an_unknown_path_or_method_is_json_too(method: str, path: str, status: int):
    response = await Gateway(HELLO).send(method, path)

    assert response.status_code == status
    assert error(response)["type"] == "invalid_request_error"


FAILURES = {
    FailureCode.OVERLOADED: (503, "overloaded", "true"),
    FailureCode.NO_ROUTE: (503, "no_route", "true"),
    FailureCode.UPSTREAM: (502, "upstream_error", None),
    FailureCode.NUMERICAL: (500, "numerical_error", "false"),
    FailureCode.TIMEOUT: (504, "timeout", "false"),
    FailureCode.TOO_LARGE: (400, "context_length_exceeded", None),
    FailureCode.UNAUTHORIZED: (502, "upstream_error", "false"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FailureCode)
async def test_each_failure_of_the_head_has_its_status(failure: FailureCode, stream: bool):
    """Pit A107: and 409 is none of them."""
    status, code, retry = FAILURES[failure]

    response = await Gateway([GenerationFailed(failure, "why", 2.5)]).chat(stream=stream)

    assert response.status_code == status
    assert error(response)["code"] == code
    assert error(response)["message"] == "why"
    assert response.headers.get("x-should-retry") == retry
    assert response.headers.get("retry-after") == ("3" if status == 503 else None)


async def test_a_bug_is_a_500_without_details_and_one_fault():
    gateway = Gateway([RuntimeError("secret detail")])

    response = await gateway.chat()

    assert response.status_code == 500
    assert "secret detail" not in response.text
    assert error(response)["type"] == "server_error"
    assert len([event for event in gateway.events if isinstance(event, Fault)]) == 1


async def test_ready_tells_what_is_missing():
    gateway = Gateway(ready=Readiness(False, "nobody serves layers 12-23"))

    ready = await gateway.send("GET", "/ready")
    health = await gateway.send("GET", "/health")

    assert ready.status_code == 503
    assert ready.json()["detail"] == "nobody serves layers 12-23"
    assert health.status_code == 200


async def test_metrics_are_there_only_when_given():
    metrics = Metrics("text/plain; version=0.0.4", lambda: b"up 1\n")

    given = await Gateway(metrics=metrics).send("GET", "/metrics")
    absent = await Gateway().send("GET", "/metrics")

    assert given.text == "up 1\n"
    assert given.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert absent.status_code == 404


async def test_other_origins_are_not_invited():
    """CORS is off."""
    response = await Gateway(HELLO).send("GET", "/v1/models", headers={"origin": "http://evil"})

    assert not [name for name in response.headers if name.startswith("access-control")]
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_health_answers_while_a_huge_prompt_is_tokenised():
    """Pit A91: text work is off the event loop."""
    from threading import Event

    from meshnet.simulation.toy_text import ToyText

    entered, leave = Event(), Event()

    class SlowText(ToyText):
        def encode(self, text: str, *, special: bool) -> list[int]:
            entered.set()
            assert leave.wait(60)
            return super().encode(text, special=special)

    gateway = Gateway(HELLO, text=SlowText())
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(gateway.complete())
        await asyncio.to_thread(entered.wait, 60)
        health = await gateway.send("GET", "/health")
        leave.set()

    assert health.status_code == 200
    assert (await asked).status_code == 200


async def test_two_chats_stream_side_by_side():
    """Pit A104: one that waits does not keep another."""
    gate = Gate()
    slow_first = iter([[gate, EOS], HELLO])
    gateway = Gateway(lambda request: next(slow_first))

    async with (
        gateway.served() as url,
        httpx2.AsyncClient() as client,
        asyncio.TaskGroup() as tasks,
    ):
        body = {"model": "default", "messages": USER}
        slow = tasks.create_task(client.post(f"{url}/v1/chat/completions", json=body))
        await gate.reached.wait()
        fast = await client.post(f"{url}/v1/chat/completions", json=body)
        gate.opened.set()

    assert fast.json()["choices"][0]["message"]["content"] == "Hello"
    assert (await slow).status_code == 200


async def test_requests_of_one_key_have_one_owner_and_the_key_is_not_in_it():
    """The nodes let owners take turns, and must learn nothing else about them."""
    gateway = Gateway(HELLO, settings=LOCKED)
    for key in ("first-key", "second-key", "first-key"):
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": "default", "messages": USER}
        await gateway.send("POST", "/v1/chat/completions", json=body, headers=headers)

    first, second, again = (request.owner for request in gateway.generator.requests)

    assert first == again != second
    assert first is not None
    assert re.fullmatch(r"[0-9a-f]{24}", first)
    assert KeyRing(["first-key"], secret=b"other").owner("Bearer first-key") != first


async def test_without_keys_nobody_has_an_owner():
    gateway = Gateway(HELLO)
    await gateway.chat()

    assert [request.owner for request in gateway.generator.requests] == [None]
