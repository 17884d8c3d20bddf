"""The way through a gateway to drain a node: who may, and which node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from meshnet.cli import draining
from meshnet.cli.composition import Composition
from meshnet.cli.draining import PATH, DrainMount
from meshnet.core.vocabulary import HopLost, NodeDescription, NodeId
from meshnet.head import Directory
from meshnet.wire.in_process import InProcessHopClient

NODE = NodeId("http://10.0.0.2:9001")
TOLD = NodeDescription(NODE, 1, 1, True, (), 3, 8, 0, 1, 0.0, 0, draining=True)


@dataclass
class Asked:
    """Nodes that were asked to drain, and how."""

    seen: list[tuple[NodeId, bool]] = field(default_factory=list)
    lost: bool = False

    async def drain(self, node: NodeId, undo: bool) -> NodeDescription:
        self.seen.append((node, undo))
        if self.lost:
            raise HopLost(f"{node}: connection refused")
        return TOLD


def mounted(asked: Asked, token: str | None = "secret") -> DrainMount:
    directory = Directory(InProcessHopClient({}), [NODE], clock=lambda: 0.0)
    parts: dict[str, Any] = dict.fromkeys(("model", "text", "client", "head", "links"))
    composition = Composition(
        **parts, directory=directory, names={NODE: "node-1"}, drain=asked.drain
    )
    return DrainMount(PlainTextResponse("the api"), composition, token=token)


async def sent(
    asked: Asked,
    values: object,
    *,
    token: str | None = "secret",
    given: str | None = "Bearer secret",
    host: str = "127.0.0.1",
    method: str = "POST",
    path: str = PATH,
    origin: str | None = None,
) -> httpx2.Response:
    app = mounted(asked, token)
    headers = {"host": host} | ({} if given is None else {"authorization": given})
    headers |= {} if origin is None else {"origin": origin}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as client:
        return await client.request(method, f"http://x{path}", json=values, headers=headers)


@pytest.mark.parametrize("name", [NODE, "node-1", "10.0.0.2:9001"])
async def test_a_node_is_found_by_url_name_and_address(name: str):
    asked = Asked()

    response = await sent(asked, {"node": name})
    await sent(asked, {"node": name, "undo": True})

    assert response.json() == {"node": NODE, "draining": True, "sessions": 3}
    assert asked.seen == [(NODE, False), (NODE, True)]


@pytest.mark.parametrize(
    ("values", "change", "status"),
    [
        ({"node": NODE}, {"given": None}, 401),
        ({"node": NODE}, {"given": "Bearer other"}, 401),
        ({"node": NODE}, {"token": None, "given": None, "host": "evil.example"}, 401),
        ({"node": NODE}, {"token": None, "given": None, "origin": "https://evil.example"}, 401),
        ({"node": NODE}, {"method": "PUT"}, 405),
        ({"node": "node-9"}, {}, 404),
        ({}, {}, 400),
        ({"node": NODE, "undo": 1}, {}, 400),
        ({"node": "x" * 5000}, {}, 413),
    ],
)
async def test_nobody_else_drains_anything(values: object, change: dict[str, Any], status: int):
    asked = Asked()

    response = await sent(asked, values, **change)

    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert asked.seen == []


async def test_without_a_token_this_machine_may():
    response = await sent(Asked(), {"node": NODE}, token=None, given=None)

    assert response.status_code == 200


async def test_a_node_that_has_left_is_told_apart():
    response = await sent(Asked(lost=True), {"node": NODE})

    assert (response.status_code, response.json()["error"]["code"]) == (502, "node_lost")


async def test_everything_else_is_the_api_s():
    response = await sent(Asked(), {}, path="/v1/models", given=None)

    assert response.text == "the api"


@pytest.mark.parametrize(("event", "status"), [("http.disconnect", None), (None, 408)])
async def test_a_body_that_does_not_come_ends_quietly_or_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch, event: str | None, status: int | None
):
    monkeypatch.setattr(draining, "BODY_S", 0.01)
    told: list[Any] = []

    async def receive() -> Any:
        if event is None:
            await asyncio.Event().wait()
        return {"type": event}

    async def send(message: Any) -> None:
        told.append(message.get("status"))

    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer secret")]
    scope = {"type": "http", "path": PATH, "method": "POST", "headers": headers}
    async with asyncio.timeout(30):
        await mounted(Asked())(scope, receive, send)

    assert told[:1] == ([] if status is None else [status])
