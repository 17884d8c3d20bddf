"""Members of etcd that do not answer, answer nonsense, or answer too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.mesh.etcd import etcd
from tests.mesh.members import member
from tests.mesh.registry_conformance import TTL_S

from meshnet.mesh.registry import etcd_gateway
from meshnet.mesh.registry.etcd import EtcdRegistry
from meshnet.mesh.registry.etcd_gateway import EtcdAccess, EtcdGateway
from meshnet.mesh.registry.messages import ANSWER_LIMITS
from meshnet.mesh.registry.ports import RegistryLost, RegistryRefused, Revision

A = member(1)
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Stranger:
    """What listens where a member of etcd should, and counts who asks."""

    def __init__(self, answer: Answer) -> None:
        self._answer, self.asked = answer, 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        try:
            await self._answer(writer)
        finally:
            writer.close()


async def hang(writer: asyncio.StreamWriter) -> None:
    """Say nothing until the other side has gone."""
    await writer.wait_closed()


async def hang_up(_: asyncio.StreamWriter) -> None:
    return


def says(body: bytes, status: int = 200) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


async def says_no_end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 99999999999\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x" * 65536)
        await writer.drain()


@asynccontextmanager
async def stranger(answer: Answer) -> AsyncIterator[Stranger]:
    made = Stranger(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()


@asynccontextmanager
async def registry_at(*endpoints: str) -> AsyncIterator[EtcdRegistry]:
    async with EtcdGateway(endpoints, EtcdAccess()) as gateway:
        yield EtcdRegistry(gateway, "mesh")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of a second, for whom they pass anyway."""
    monkeypatch.setattr(etcd_gateway, "CALL_S", 1.0)
    monkeypatch.setattr(etcd_gateway, "TRY_MIN_S", 0.5)


@pytest.mark.parametrize("answer", [hang, hang_up], ids=["silent", "hangs up"])
@pytest.mark.usefixtures("hurried")
async def test_what_one_member_does_not_answer_another_one_does(answer: Answer):
    async with stranger(answer) as dead:
        with etcd() as cluster:
            async with registry_at(dead.url, *cluster.endpoints) as registry:
                await registry.announce(A, TTL_S)

                assert list((await registry.snapshot()).members) == [A.node]
                assert dead.asked == 1, "who answers is asked again"


@pytest.mark.parametrize("answer", [hang, hang_up], ids=["silent", "hangs up"])
@pytest.mark.usefixtures("hurried")
async def test_a_swap_that_may_have_been_heard_is_not_said_to_another(answer: Answer):
    async with stranger(answer) as dead, stranger(says(b"{}")) as other:
        async with registry_at(dead.url, other.url) as registry:
            with pytest.raises(RegistryLost):
                await registry.compare_and_set("k", Revision(1), b"v")

        assert (dead.asked, other.asked) == (1, 0)


async def test_a_swap_that_nobody_heard_is_said_to_another():
    async with stranger(says(b'{"succeeded":true}')) as other:
        nobody = "http://127.0.0.1:1"
        async with registry_at(nobody, other.url) as registry:
            assert await registry.compare_and_set("k", Revision(1), b"v")


@pytest.mark.usefixtures("hurried")
async def test_a_watch_that_does_not_begin_is_lost():
    async with stranger(hang) as dead, registry_at(dead.url) as registry:
        with pytest.raises(RegistryLost, match="no answer within 1 s"):
            await anext(registry.watch(Revision(1)))  # type: ignore[call-overload]


async def test_a_watch_that_falls_silent_is_begun_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_gateway, "CALL_S", 60.0)
    monkeypatch.setattr(etcd_gateway, "LINE_S", 0.2)
    begun = b'{"result":{"header":{"revision":"9"},"created":true}}\n'

    async def begin_and_hang(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(begun), begun))
        if silent.asked < 3:
            await hang(writer)

    async with stranger(begin_and_hang) as silent, registry_at(silent.url) as registry:
        with pytest.raises(RegistryLost):
            await anext(registry.watch(Revision(1)))  # type: ignore[call-overload]

        assert silent.asked == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (says(b"<html>"), "unreadable answer"),
        (says(b'{"count":-1,"kvs":7}'), "unreadable answer"),
        (says(b"Not Found", 404), "is that the client address of an etcd"),
        (says(b'{"code":14,"message":"no leader"}', 503), "no leader"),
        (says_no_end, f"an answer over {ANSWER_LIMITS.json_bytes} bytes"),
    ],
    ids=["html", "other types", "no etcd", "no leader", "endless"],
)
async def test_nonsense_and_too_much_are_no_answer(answer: Answer, told: str):
    async with stranger(answer) as odd, registry_at(odd.url) as registry:
        with pytest.raises(RegistryLost, match=told):
            await registry.snapshot()


async def test_who_may_not_is_refused_and_not_asked_elsewhere():
    refusal = says(b'{"code":7,"message":"permission denied"}', 403)
    async with stranger(refusal) as one, stranger(refusal) as other:
        async with registry_at(one.url, other.url) as registry:
            with pytest.raises(RegistryRefused, match="permission denied"):
                await registry.snapshot()

        assert (one.asked, other.asked) == (1, 0)
