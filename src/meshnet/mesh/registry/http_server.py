"""A gateway's registry over HTTP, for nodes and for other gateways.

    GET    /registry                          snapshot
    PUT    /registry/members                  announce: renews, updates, heals
    DELETE /registry/members?node=URL         leave
    GET    /registry/changes?since=R&wait_ms=N   a long poll
    GET    /registry/values?key=K             PUT: compare and set

Invariants
    * with a token set, nothing answers without it; no key of the API opens anything here;
    * a body is bounded in bytes, in depth and in time before it is read;
    * at most `WAITERS_MAX` polls wait: beyond that they answer at once, and come again.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from meshnet.core.protocol.fields import print_object
from meshnet.core.protocol.members import node_url
from meshnet.core.vocabulary import BadField, TooLarge
from meshnet.mesh.registry import messages
from meshnet.mesh.registry.ports import KEY_CHARS_MAX, RegistryLost, RegistryRefused, Revision
from meshnet.mesh.registry.sqlite import SqliteRegistry

PREFIX = "/registry"
BODY_TIMEOUT_S = 10.0
WAIT_MS_MAX = 60_000
WAITERS_MAX = 2 * 1024 + 64
_QUERY_CHARS_MAX = 4096


def registry_app(registry: SqliteRegistry, *, token: str | None) -> ASGIApp:
    """Return the ASGI application of everything below `PREFIX`."""
    return _RegistryApp(registry, token)


class _RegistryApp:
    def __init__(self, registry: SqliteRegistry, token: str | None) -> None:
        self._registry = registry
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._waiting = 0
        self._endpoints: dict[tuple[str, str], Callable[[Request], Awaitable[bytes]]] = {
            ("GET", ""): self._snapshot,
            ("PUT", "/members"): self._announce,
            ("DELETE", "/members"): self._leave,
            ("GET", "/changes"): self._changes,
            ("GET", "/values"): self._get,
            ("PUT", "/values"): self._set,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except TooLarge as error:
            response = _error(413, "too_large", str(error))
        except BadField as error:
            response = _error(400, "bad_request", str(error))
        except RegistryRefused as error:
            response = _error(400, "refused", str(error))
        except RegistryLost as error:
            response = _error(503, "not_ready", str(error))
        except TimeoutError:
            response = _error(408, "deadline", f"no whole body within {BODY_TIMEOUT_S:g} s")
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if not self._authorized(request):
            return _error(401, "unauthorized", "expected the mesh token as Bearer")
        path = request.scope["path"].rstrip("/").removeprefix(PREFIX)
        endpoint = self._endpoints.get((request.method, path))
        if endpoint is None:
            return _error(404, "not_found", f"there is no {request.method} {PREFIX}{path[:200]}")
        body = await endpoint(request)
        return Response(body, media_type="application/json")

    def _authorized(self, request: Request) -> bool:
        if self._authorization is None:
            return True
        given = [value for name, value in request.scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._authorization)

    async def _snapshot(self, request: Request) -> bytes:
        return messages.encode_snapshot(await self._registry.snapshot())

    async def _announce(self, request: Request) -> bytes:
        said = messages.decode_announcement(await _body(request))
        await self._registry.announce(said.member, said.ttl_s)
        return print_object({})

    async def _leave(self, request: Request) -> bytes:
        await self._registry.leave(node_url(_queried(request, "node"), "node"))
        return print_object({})

    async def _changes(self, request: Request) -> bytes:
        since = Revision(_integer(request, "since", 2**63))
        wait_s = _integer(request, "wait_ms", WAIT_MS_MAX) / 1000
        if self._waiting >= WAITERS_MAX:
            wait_s = 0.0
        self._waiting += 1
        try:
            return messages.encode_changes(await self._registry.changes(since, wait_s))
        finally:
            self._waiting -= 1

    async def _get(self, request: Request) -> bytes:
        return messages.encode_value(await self._registry.get(_key(request)))

    async def _set(self, request: Request) -> bytes:
        key = _key(request)
        write = messages.decode_write(await _body(request))
        written = await self._registry.compare_and_set(key, write.expected, write.value)
        return messages.encode_written(written=written)


async def _body(request: Request) -> bytes:
    """Return the whole body. Raises TooLarge, TimeoutError, ClientDisconnect."""
    limit = messages.REQUEST_LIMITS.json_bytes
    body = bytearray()
    async with asyncio.timeout(BODY_TIMEOUT_S):
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise TooLarge("body", f"at most {limit} bytes", f"over {limit} bytes")
    return bytes(body)


def _queried(request: Request, name: str) -> str:
    query: bytes = request.scope["query_string"]
    if len(query) > _QUERY_CHARS_MAX:
        raise BadField("query", f"at most {_QUERY_CHARS_MAX} characters", len(query))
    given = parse_qs(query.decode("latin-1"), max_num_fields=8).get(name, [])
    if len(given) != 1:
        raise BadField(name, "one value in the query", given)
    return given[0]


def _key(request: Request) -> str:
    key = _queried(request, "key")
    if len(key) > KEY_CHARS_MAX:
        raise BadField("key", f"at most {KEY_CHARS_MAX} characters", key)
    return key


def _integer(request: Request, name: str, high: int) -> int:
    text = _queried(request, name)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= high):
        raise BadField(name, f"an integer from 0 to {high}", text)
    return int(text)


def _error(status: int, code: str, message: str) -> Response:
    body = print_object({"error": code, "message": message})
    return Response(body, status_code=status, media_type="application/json")
