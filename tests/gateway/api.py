"""The gateway under test: over ASGI for exact questions, over a loopback socket for live ones."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from fastapi import FastAPI
from tests.gateway.scripted import Script, ScriptedGenerator

from meshnet.gateway.app import gateway_app
from meshnet.gateway.ports import Ambient, Metrics, Readiness, TextModel
from meshnet.gateway.server import serve_gateway
from meshnet.gateway.settings import GatewaySettings
from meshnet.simulation.toy_text import ToyText
from meshnet.telemetry.events import Event

USER = [{"role": "user", "content": "hi"}]


class Gateway:
    """One app, its scripted generator, and the events it told."""

    def __init__(
        self,
        script: Script = (0,),
        *,
        text: TextModel | None = None,
        settings: GatewaySettings | None = None,
        ready: Readiness | None = None,
        metrics: Metrics | None = None,
        generator: ScriptedGenerator | None = None,
    ) -> None:
        self.generator = generator or ScriptedGenerator(script)
        self.text: TextModel = text or ToyText()
        self.settings = settings or GatewaySettings()
        self.events: list[Event] = []
        self.app: FastAPI = gateway_app(
            self.generator,
            self.text,
            lambda: ready or Readiness(True),
            self.settings,
            fingerprint=lambda: "fp_toy",
            record=self.events.append,
            metrics=metrics,
            ambient=counted_ambient(),
        )

    async def send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(self.app)
        async with httpx2.AsyncClient(transport=transport) as client:
            return await client.request(method, f"http://127.0.0.1{path}", **options)

    async def chat(self, **fields: Any) -> httpx2.Response:
        body = {"model": "default", "messages": USER} | fields
        return await self.send("POST", "/v1/chat/completions", json=body)

    async def complete(self, **fields: Any) -> httpx2.Response:
        body = {"model": "default", "prompt": "The"} | fields
        return await self.send("POST", "/v1/completions", json=body)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve on a free loopback port; the value is the base URL."""
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as tasks:
            server = tasks.create_task(
                serve_gateway(
                    self.app,
                    self.settings,
                    host="127.0.0.1",
                    port=0,
                    started=url.set_result,
                    drain_s=1.0,
                )
            )
            try:
                yield await url
            finally:
                server.cancel()


def counted_ambient() -> Ambient:
    ids = itertools.count(1)
    seeds = itertools.count(1000)
    return Ambient(
        now=lambda: 1_700_000_000.0,
        clock=lambda: 0.0,
        new_id=lambda: f"id{next(ids)}",
        new_seed=lambda: next(seeds),
    )


def frames(response: httpx2.Response) -> list[Any]:
    """Data of every event in order; comments are left out."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return frames_of(response.text)


def frames_of(stream: str) -> list[Any]:
    events = [event for event in stream.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    data = [event.removeprefix("data: ") for event in events]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def chunks(response: httpx2.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that ended as it should."""
    *told, last = frames(response)
    assert last == "[DONE]"
    return told


def streamed_text(response: httpx2.Response) -> str:
    return "".join(_text(choice) for chunk in chunks(response) for choice in chunk["choices"])


def _text(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def finish_reasons(response: httpx2.Response) -> list[str]:
    told = [choice["finish_reason"] for chunk in chunks(response) for choice in chunk["choices"]]
    return [reason for reason in told if reason is not None]


def whole_text(response: httpx2.Response) -> str:
    choice = response.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def error(response: httpx2.Response) -> dict[str, Any]:
    """The OpenAI error object, checked to be one."""
    assert response.headers["content-type"] == "application/json"
    told = response.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert isinstance(told["message"], str)
    assert isinstance(told["type"], str)
    assert all(told[name] is None or isinstance(told[name], str) for name in ("param", "code"))
    return told


def ids_of(text: str) -> list[int]:
    return ToyText().encode(text, special=False)


def truncated(stops: list[str], text: str) -> tuple[str, bool]:
    """The rule on the whole text: the end that comes first, and there the longest stop."""
    for end in range(len(text) + 1):
        at_end = [stop for stop in stops if text[:end].endswith(stop)]
        if at_end:
            return text[: end - max(map(len, at_end))], True
    return text, False


def chat_scope(header: str, value: str) -> dict[str, Any]:
    """The ASGI scope of a chat with one header, for tests that send and receive by hand."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "server": ("gateway", 80),
        "client": ("client", 1),
        "headers": [(header.encode(), value.encode())],
    }
