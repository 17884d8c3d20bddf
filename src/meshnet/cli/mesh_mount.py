"""Which requests of a gateway's address are its API's and which its registry's.

Invariant: a key of the API opens nothing of the registry, the mesh token and the certificates of
the mesh nothing of the API. Where there is neither of them only this machine can connect, but so
can a web page in a browser on it, by a name of its own: a request must then name this machine.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from meshnet.gateway.loopback import host_of, is_loopback
from meshnet.mesh.registry.http_server import PREFIX
from meshnet.wire.tls import CERTIFIED


class MeshMount:
    """The API, with the registry below PREFIX."""

    def __init__(
        self, api: ASGIApp, registry: ASGIApp, *, locked: bool, certified: bool = False
    ) -> None:
        """`locked`: the registry asks for a token; `certified`: it is for members' certificates."""
        self._api, self._registry = api, registry
        self._locked, self._certified = locked, certified

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == PREFIX or path.startswith(f"{PREFIX}/")):
            await self._api(scope, receive, send)
        elif self._may_ask(scope):
            await self._registry(scope, receive, send)
        else:
            message = "without a mesh token the registry answers only to loopback names"
            if self._certified:
                message = "the registry answers only to certificates of this mesh (tls_dir)"
            refusal = JSONResponse({"error": "unauthorized", "message": message}, status_code=403)
            await refusal(scope, receive, send)

    def _may_ask(self, scope: Scope) -> bool:
        if self._certified:
            return bool(scope.get(CERTIFIED))
        return self._locked or is_loopback(host_of(Headers(scope=scope).get("host", "")))
