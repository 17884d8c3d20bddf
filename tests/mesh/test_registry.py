"""The embedded registry and its HTTP client do what every registry must, and what is their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.mesh.members import AsgiExchange, asgi_call, member, served, sqlite_registry
from tests.mesh.registry_conformance import SCENARIOS, TTL_S, Backend

from meshnet.core.protocol.fields import print_object
from meshnet.core.protocol.members import member_values
from meshnet.core.vocabulary import MEMBERS_MAX, MeshnetError
from meshnet.mesh.registry import http_server
from meshnet.mesh.registry.http_client import HttpRegistry
from meshnet.mesh.registry.http_server import registry_app
from meshnet.mesh.registry.ports import (
    VALUES_MAX,
    Registry,
    RegistryLost,
    RegistryRefused,
    Resync,
    Revision,
)
from meshnet.mesh.registry.sqlite import LOG_MAX
from meshnet.simulation.loop import run

A = member(1)


class Embedded:
    """The registry itself, on a virtual loop."""

    slack_s = 0.01

    def __init__(self, directory: Path) -> None:
        self._path = directory / "registry.sqlite"
        self._kept = sqlite_registry(self._path)

    @property
    def registry(self) -> Registry:
        return self._kept

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def kill(self) -> None:
        self._kept.close()

    async def start(self) -> None:
        self._kept = sqlite_registry(self._path)


class OverHttp(Embedded):
    """A client of it, through requests and answers as they are on the wire."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._exchange = served(self._kept)
        self._client = HttpRegistry(self._exchange)

    @property
    def registry(self) -> Registry:
        return self._client

    async def start(self) -> None:
        await super().start()
        self._exchange.app = registry_app(self._kept, token=None)


Scenario = Callable[[Backend], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("backend", [Embedded, OverHttp])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_it_conforms(scenario: Scenario, backend: type[Embedded], tmp_path: Path):
    async def main():
        await scenario(backend(tmp_path))

    run(main, 0)


# --- the file ------------------------------------------------------------------------------------


def test_a_second_process_cannot_keep_the_same_registry(tmp_path: Path):
    async def main():
        first = sqlite_registry(tmp_path / "r.sqlite")

        with pytest.raises(MeshnetError, match="Another gateway may have it"):
            sqlite_registry(tmp_path / "r.sqlite")
        first.close()

        sqlite_registry(tmp_path / "r.sqlite").close()

    run(main, 0)


def test_a_file_that_is_none_is_told_by_its_name(tmp_path: Path):
    async def main():
        path = tmp_path / "r.sqlite"
        path.write_bytes(b"not a database" * 1000)

        with pytest.raises(MeshnetError, match=r"r\.sqlite: cannot keep the registry there"):
            sqlite_registry(path)

    run(main, 0)


@pytest.mark.parametrize("born", [1_000, 3_000])
def test_a_registry_that_lost_its_file_begins_apart_from_what_it_told(born: int, tmp_path: Path):
    """Who watches from before must not take the new history for the old one."""

    async def main():
        old = sqlite_registry(tmp_path / "old.sqlite", born=2_000)
        await old.announce(A, TTL_S)
        since = (await old.snapshot()).revision
        new = sqlite_registry(tmp_path / "new.sqlite", born=born)

        assert [change async for change in new.watch(since)] == [Resync()]

    run(main, 0)


def test_a_member_of_a_later_form_is_forgotten_and_no_error(tmp_path: Path):
    async def main():
        kept = sqlite_registry(tmp_path / "r.sqlite")
        await kept.announce(A, TTL_S)
        await kept.announce(member(2), TTL_S)
        kept.close()
        later = print_object({**member_values(A), "state": "sleeping"})
        _write(tmp_path / "r.sqlite", "UPDATE members SET member=? WHERE node=?", later, A.node)

        kept = sqlite_registry(tmp_path / "r.sqlite")

        assert list((await kept.snapshot()).members) == [member(2).node]

    run(main, 0)


def _write(path: Path, statement: str, *values: object) -> None:
    import sqlite3

    database = sqlite3.connect(path)
    with database:
        database.execute(statement, values)
    database.close()


def test_a_registry_whose_file_fails_goes_on_in_memory_and_says_so(tmp_path: Path):
    async def main():
        kept = sqlite_registry(tmp_path / "r.sqlite")
        kept._file._database.execute("PRAGMA query_only=ON")

        await kept.announce(A, TTL_S)

        assert list((await kept.snapshot()).members) == [A.node]
        assert "r.sqlite" in kept.failure

    run(main, 0)


# --- bounds --------------------------------------------------------------------------------------


def test_who_missed_more_than_the_log_holds_is_sent_for_a_snapshot():
    async def main():
        kept = sqlite_registry()
        since = (await kept.snapshot()).revision
        for _ in range(LOG_MAX // 2 + 1):
            await kept.announce(A, TTL_S)
            await kept.leave(A.node)

        assert [change async for change in kept.watch(since)] == [Resync()]
        assert await kept.changes(Revision(since + 2), 0.0) is not None

    run(main, 0)


def test_members_and_values_are_bounded():
    async def main():
        kept = sqlite_registry()
        for number in range(MEMBERS_MAX):
            await kept.announce(member(number), TTL_S)
        for number in range(VALUES_MAX):
            assert await kept.compare_and_set(f"k{number}", None, b"")

        with pytest.raises(RegistryRefused, match="members: expected at most"):
            await kept.announce(member(MEMBERS_MAX), TTL_S)
        with pytest.raises(RegistryRefused, match="values: expected at most"):
            await kept.compare_and_set("one more", None, b"")
        await kept.announce(member(0), TTL_S)  # who is there may stay

    run(main, 0)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 1e9, float("nan")])
def test_a_lease_without_a_sensible_time_is_refused(ttl_s: float):
    async def main():
        with pytest.raises(RegistryRefused, match="ttl_s: expected 1 to 3600"):
            await sqlite_registry().announce(A, ttl_s)

    run(main, 0)


# --- over HTTP -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "wrong", "secret "])
def test_without_the_mesh_token_nothing_is_told_or_taken(given: str | None):
    async def main():
        kept = sqlite_registry()
        exchange = AsgiExchange(registry_app(kept, token="secret"), given)
        registry = HttpRegistry(exchange)

        with pytest.raises(RegistryRefused, match="401: expected the mesh token"):
            await registry.snapshot()
        with pytest.raises(RegistryRefused, match="401"):
            await registry.announce(A, TTL_S)
        assert (await kept.snapshot()).members == {}

        await HttpRegistry(served(kept, "secret")).announce(A, TTL_S)
        assert list((await kept.snapshot()).members) == [A.node]

    run(main, 0)


def test_a_node_of_a_later_wire_version_is_refused_by_its_number():
    """Pit A87: the mesh says so at once, instead of failing in the middle of a step."""

    async def main():
        app = registry_app(sqlite_registry(), token=None)
        later = {"ttl_s": TTL_S, "member": {**member_values(A), "wire": A.wire + 1}}

        status, body = await asgi_call(app, "PUT", "/registry/members", print_object(later))

        assert status == 400
        assert b"member.wire: expected at most 1, the version of this mesh, got 2" in body

    run(main, 0)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/registry/nothing", b"", 404),
        ("POST", "/registry/members", b"{}", 404),
        ("PUT", "/registry/members", b"not json", 400),
        ("PUT", "/registry/members", b"{}", 400),
        ("PUT", "/registry/members", b"[" * 1000, 400),
        ("PUT", "/registry/members", b"x" * 600_000, 413),
        ("DELETE", "/registry/members", b"", 400),
        ("DELETE", "/registry/members?node=nowhere", b"", 400),
        ("GET", "/registry/changes", b"", 400),
        ("GET", "/registry/changes?since=-1&wait_ms=0", b"", 400),
        ("GET", "/registry/changes?since=1&wait_ms=999999", b"", 400),
        ("GET", "/registry/changes?since=1&since=2&wait_ms=0", b"", 400),
        ("GET", "/registry/values", b"", 400),
        ("GET", "/registry/values?key=" + "k" * 400, b"", 400),
        ("PUT", "/registry/values?key=k", b'{"value":"%%%"}', 400),
        ("PUT", "/registry/values?key=k", b'{"value":"AA==","value":"AA=="}', 400),
    ],
)
def test_what_is_no_request_is_refused(method: str, path: str, body: bytes, status: int):
    async def main():
        app = registry_app(sqlite_registry(), token=None)

        answered, told = await asgi_call(app, method, path, body)

        assert answered == status
        assert b'"error"' in told

    run(main, 0)


def test_more_polls_than_may_wait_are_answered_at_once(monkeypatch: pytest.MonkeyPatch):
    async def main():
        kept = sqlite_registry()
        app = registry_app(kept, token=None)
        path = f"/registry/changes?since={(await kept.snapshot()).revision}&wait_ms=60000"
        waiting = [asyncio.ensure_future(asgi_call(app, "GET", path)) for _ in range(2)]
        await asyncio.sleep(1)

        status, body = await asgi_call(app, "GET", path)

        assert (status, body) == (200, b'{"changes":[]}')
        assert not any(task.done() for task in waiting)
        kept.close()
        await asyncio.wait(waiting)

    monkeypatch.setattr(http_server, "WAITERS_MAX", 2)
    run(main, 0)


def test_a_registry_that_does_not_answer_is_lost_at_the_deadline():
    async def main():
        exchange = served(sqlite_registry())
        exchange.deaf = "/registry"

        with pytest.raises(RegistryLost, match="no answer within 5 s"):
            await HttpRegistry(exchange).snapshot()

    run(main, 0)


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"members":[],"revision":-1}'])
def test_an_answer_in_another_form_is_no_registry(body: bytes):
    async def main():
        async def exchange(*_: object) -> tuple[int, bytes]:
            return 200, body

        with pytest.raises(RegistryLost, match="unreadable answer"):
            await HttpRegistry(exchange).snapshot()

    run(main, 0)
