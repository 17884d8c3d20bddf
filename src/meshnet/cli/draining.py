"""What a gateway passes on to a node that is to drain.

    meshnet drain ──POST /mesh/drain──▶ gateway ──POST /drain──▶ node ──no session left──▶ exit 0
          └──────── again, until the node has left: how many sessions it still has ────────┘

Invariants
    * only the mesh token opens it, and a certificate of the mesh where there are some; where there
      is neither, only this machine, under its own name, and no web page in a browser on it;
    * a body is bounded in bytes and in time.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from meshnet.cli.composition import Composition
from meshnet.core.protocol.fields import read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import BadField, HopLost, NodeId
from meshnet.gateway.bodies import body_too_slow, read_body
from meshnet.gateway.errors import ApiError, error_response
from meshnet.gateway.loopback import host_of, is_loopback
from meshnet.wire.tls import CERTIFIED

PATH = "/mesh/drain"
BODY_MAX = 4096
BODY_S = 10.0


class DrainMount:
    """The API of a gateway, with the way to drain a node beside it."""

    def __init__(
        self, api: ASGIApp, composition: Composition, *, token: str | None, certified: bool = False
    ) -> None:
        """`certified`: a certificate of the mesh is asked for."""
        self._api, self._composition, self._certified = api, composition, certified
        self._authorization = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._api(scope, receive, send)
            return
        try:
            response: Response = await self._answer(Request(scope, receive))
        except ApiError as error:
            response = error_response(error)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Raises ApiError."""
        if self._certified and not request.scope.get(CERTIFIED):
            message = "Draining needs a certificate of this mesh (tls_dir)."
            raise ApiError(401, message, code="no_certificate")
        if not self._authorized(request.headers):
            raise ApiError(401, "Draining needs the mesh token.", code="invalid_mesh_token")
        if request.method != "POST":
            raise ApiError(405, f"{PATH} takes POST.", headers={"allow": "POST"})
        try:
            fields = read_object(await _body(request), "drain", Limits())
            node = self._node(fields.text("node", chars_max=512))
            undo = fields.has("undo") and fields.truth("undo")
        except BadField as error:
            raise ApiError(400, str(error)) from None
        try:
            told = await self._composition.drain(node, undo)
        except HopLost as lost:
            raise ApiError(502, str(lost), code="node_lost") from None
        await self._composition.directory.refresh()
        values: dict[str, Any] = {
            "node": node, "draining": told.draining, "sessions": told.sessions
        }  # fmt: skip
        return JSONResponse(values)

    def _authorized(self, headers: Headers) -> bool:
        if self._authorization is None:
            page = "origin" in headers  # browsers name the page that sends; nobody else does
            here = self._certified or is_loopback(host_of(headers.get("host", "")))
            return here and not page
        given = headers.getlist("authorization")
        return len(given) == 1 and hmac.compare_digest(given[0].encode(), self._authorization)

    def _node(self, asked: str) -> NodeId:
        """Find a node by its name, its URL or its address. Raises ApiError."""
        for node in self._composition.directory.nodes:
            if asked in (node, self._composition.name_of(node), urlsplit(node).netloc):
                return node
        raise ApiError(404, f"This gateway knows no node {asked!r}.", code="node_not_found")


async def _body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await read_body(request, BODY_MAX)
    except TimeoutError:
        raise body_too_slow(BODY_S) from None
