"""uvicorn's HTTP protocol for peers that speak something else: told in JSON, or understood.

Java's client asks for HTTP/2 on every first request (`Upgrade: h2c`), and the parser would take
the rest of such a request, its body, for that other protocol. The only other one that we speak is
a node's WebSocket, so any other such header is renamed before it is parsed.
"""

from __future__ import annotations

import asyncio
import json
import re

from meshnet.wire.http_bounds import BoundedHttpProtocol
from meshnet.wire.tls import CERTIFIED

_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_OTHER_UPGRADE = re.compile(
    rb"\r\nupgrade(?=[ \t]*:)(?![ \t]*:[ \t]*websocket[ \t]*(?:\r|\Z))", re.IGNORECASE
)
_BEGUN = re.compile(
    rb"\r(?:\n(?:\r|[a-z]{0,6}|upgrade[ \t]{0,8}(?::[^\r\n]{0,64}\r?)?)?)?\Z", re.IGNORECASE
)
"""What the end of a head, or a line that asks for another protocol, may begin with."""


def node_refusal(message: str) -> bytes:
    """A node's body for what is no HTTP."""
    return json.dumps({"error": "bad_request", "message": message}).encode()


def without_upgrade(data: bytes, *, websockets: bool = False) -> tuple[bytes, bytes]:
    """Rename the header that asks for another protocol, in the request head that `data` is of.

    Returns what can be parsed now, and a few bytes of which only what follows tells what they are.
    With `websockets` it may ask for that one.
    """
    end, held = data.find(b"\r\n\r\n"), b""
    if end < 0 and (begun := _BEGUN.search(data)) is not None:
        end, held = begun.start(), data[begun.start() :]
    head = data if end < 0 else data[:end]
    rest = data[len(head) : len(data) - len(held)]
    if b"upgrade" in head.lower():
        head = (_OTHER_UPGRADE if websockets else _UPGRADE).sub(b"\r\nx-upgrade", head)
    return head + rest, held


class TolerantHttpProtocol(BoundedHttpProtocol):
    refusal = staticmethod(node_refusal)
    """The body that says to a peer what was wrong: each server has its own form."""
    websockets = False
    """Whether there is a WebSocket to upgrade to."""
    _head_next = True
    _held = b""
    """The end of what came of a head, which is parsed with what follows."""
    _certified = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # What is no certificate of the mesh has ended the handshake.
        self._certified = bool(transport.get_extra_info("peercert"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CERTIFIED] = self._certified  # type: ignore[literal-required]

    def data_received(self, data: bytes) -> None:
        if self._head_next:
            data, self._held = without_upgrade(self._held + data, websockets=self.websockets)
        if data:
            super().data_received(data)

    def on_headers_complete(self) -> None:
        self._head_next = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_next = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        body = self.refusal("This is not a request in HTTP/1.1.")
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()


class NodeHttpProtocol(TolerantHttpProtocol):
    websockets = True
