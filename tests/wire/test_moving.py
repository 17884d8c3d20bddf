"""Layers of sessions, and orders to take them, over real loopback HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.core.protocol.test_moving import ASKED, ORDER, REPLY
from tests.wire.echoing import LIMITS, EchoService, serving, spoken
from tests.wire.test_http_server import code, request

from meshnet.core.protocol.messages import Code, Refusal
from meshnet.core.protocol.moving import LayerReply, LayerRequest, TakeRequest
from meshnet.core.vocabulary import HopLost, LayerRange, NodeId, SessionDescription
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.http_server import node_app
from meshnet.wire.serving import bind, serve_socket

NODE = NodeId("n")
TAKEN = SessionDescription(ORDER.session, LayerRange(3, 6), 3, "0" * 16, 1, 99)


class EchoMover:
    """Gives and takes what the test says, and remembers what was asked."""

    def __init__(self) -> None:
        self.seen: list[LayerRequest | TakeRequest | bool] = []
        self.layer: LayerReply | Refusal = REPLY
        self.taken: SessionDescription | Refusal = TAKEN

    async def give(self, request: LayerRequest) -> LayerReply | Refusal:
        self.seen.append(request)
        return self.layer

    async def take(self, request: TakeRequest) -> SessionDescription | Refusal:
        self.seen.append(request)
        return self.taken

    def drain(self, *, undo: bool = False) -> None:
        self.seen.append(undo)


@asynccontextmanager
async def moving(mover: EchoMover, token: str | None = None) -> AsyncIterator[str]:
    app = node_app(EchoService(), limits=LIMITS, token=token, metrics=lambda: b"", mover=mover)
    listener = bind("127.0.0.1", 0)
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            serve_socket(app, listener, token=token, on_ready=ready.set_result)
        )
        yield f"http://127.0.0.1:{await ready}"
        task.cancel()


@asynccontextmanager
async def client(url: str, token: str | None = None) -> AsyncIterator[HttpHopClient]:
    async with HttpHopClient({NODE: url}, limits=LIMITS, token=token) as made:
        yield made


async def test_a_layer_crosses_whole():
    mover = EchoMover()
    async with moving(mover) as url, client(url) as http:
        got = await http.layer(NODE, ASKED, 5.0, bytes_max=1000)

    assert got == REPLY
    assert mover.seen == [ASKED]


async def test_an_order_and_its_answer_cross():
    mover = EchoMover()
    async with moving(mover) as url, client(url) as http:
        got = await http.take(NODE, ORDER, 5.0)
        mover.taken = Refusal(Code.DRAINING, "not here", 0.5)
        refused = await http.take(NODE, ORDER, 5.0)

    assert (got, refused) == (TAKEN, mover.taken)
    assert mover.seen == [ORDER, ORDER]


async def test_a_layer_over_the_bytes_admitted_is_not_read():
    mover = EchoMover()
    held = REPLY.held
    spec = held.tensors[0]
    large = replace(spec, shape=(1, 2, 3000))
    mover.layer = replace(REPLY, held=replace(held, tensors=(large,), data=bytes(24_000)))
    async with moving(mover) as url, client(url) as http:
        with pytest.raises(HopLost, match="over the limit"):
            await http.layer(NODE, ASKED, 5.0, bytes_max=1000)


async def test_a_node_without_memory_for_what_moves_says_so():
    class Full(EchoMover):
        async def give(self, request: LayerRequest) -> LayerReply | Refusal:
            raise MemoryError

    async with moving(Full()) as url, client(url) as http:
        got = await http.layer(NODE, ASKED, 5.0, bytes_max=1000)

    assert isinstance(got, Refusal)
    assert got.code is Code.OUT_OF_MEMORY


async def test_a_node_is_told_to_drain_and_to_go_on():
    mover = EchoMover()
    async with moving(mover) as url, client(url) as http:
        told = await http.drain(NODE, 5.0)
        await http.drain(NODE, 5.0, undo=True)

    assert told.node == "echo"
    assert mover.seen == [False, True]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/sessions/s/layers/3"), ("POST", "/sessions/s/take"), ("POST", "/drain")],
)
async def test_nothing_moves_without_the_mesh_token(method: str, path: str):
    mover = EchoMover()
    async with moving(mover, token="secret") as url:
        answer = await spoken(url, request(method, path))

    assert answer is not None
    assert (answer.status, code(answer.body)) == (401, "unauthorized")
    assert mover.seen == []


@pytest.mark.parametrize("path", ["/drain", "/sessions/s/take", "/forward", "/stream"])
async def test_a_web_page_on_this_machine_moves_nothing(path: str):
    """It may send a POST without a body, or open a WebSocket, to whatever listens on loopback."""
    mover = EchoMover()
    async with moving(mover) as url:
        answer = await spoken(url, request("POST", path, Origin="https://evil.example"))

    assert answer is not None
    assert (answer.status, code(answer.body)) == (401, "unauthorized")
    assert mover.seen == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/sessions/s/layers/3", 400),
        ("GET", "/sessions/s/layers/", 400),
        ("GET", "/sessions/../layers/3", 400),
        ("POST", "/sessions/s/layers/3", 405),
        ("GET", "/sessions/s/take", 405),
        ("POST", "/sessions/s/take", 400),
        ("GET", "/sessions/s/other", 400),
        ("GET", "/drain", 405),
    ],
)
async def test_garbage_moves_nothing(method: str, path: str, status: int):
    mover = EchoMover()
    async with moving(mover) as url:
        answer = await spoken(url, request(method, path))

    assert answer is not None
    assert answer.status == status
    assert json.loads(answer.body)["error"]
    assert mover.seen == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/sessions/s/layers/3", 400),
        ("POST", "/sessions/s/take", 405),
        ("POST", "/drain", 404),
    ],
)
async def test_a_node_without_a_mover_knows_no_such_path(method: str, path: str, status: int):
    async with serving(EchoService()) as url:
        answer = await spoken(url, request(method, path))

    assert answer is not None
    assert answer.status == status


async def test_an_old_node_takes_nothing():
    async with serving(EchoService()) as url, client(url) as http:
        with pytest.raises(HopLost, match="405"):
            await http.take(NODE, ORDER, 5.0)
