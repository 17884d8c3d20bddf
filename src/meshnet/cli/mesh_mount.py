"""Which requests of a gateway's address are its API's and which its registry's.

Invariant: a key of the API opens nothing of the registry, the mesh token nothing of the API. Where
there is no mesh token only this machine can connect, but so can a web page in a browser on it, by
a name of its own: a request must then name this machine.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from meshnet.gateway.loopback import host_of, is_loopback
from meshnet.mesh.registry.http_server import PREFIX


class MeshMount:
    """The API, with the registry below PREFIX."""

    def __init__(self, api: ASGIApp, registry: ASGIApp, *, locked: bool) -> None:
        """`locked`: the registry asks for a token."""
        self._api, self._registry, self._locked = api, registry, locked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == PREFIX or path.startswith(f"{PREFIX}/")):
            await self._api(scope, receive, send)
        elif self._locked or is_loopback(host_of(Headers(scope=scope).get("host", ""))):
            await self._registry(scope, receive, send)
        else:
            message = "without a mesh token the registry answers only to loopback names"
            refusal = JSONResponse({"error": "unauthorized", "message": message}, status_code=403)
            await refusal(scope, receive, send)
