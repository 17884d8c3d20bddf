"""Peers that speak something else than plain HTTP/1.1."""

from __future__ import annotations

import json

import pytest
from tests.gateway.api import USER, Gateway
from tests.wire.echoing import EchoService, post, serving, spoken
from tests.wire.test_hostile_streams import OPENING
from tests.wire.test_http_server import GOOD

from meshnet.wire.http_strangers import NodeHttpProtocol, node_refusal, without_upgrade

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_client_that_asks_for_http2_gets_its_body_read(pieces: int):
    """Java's HttpClient does with every first request; the parser took the body for HTTP/2."""
    gateway = Gateway()
    body = json.dumps({"model": "default", "messages": USER, "max_tokens": 1}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\n" + H2C + b"Content-Length: %d\r\n\r\n" % len(body)
    )
    said = [head + body] if pieces == 1 else [head, body]

    async with gateway.served() as url:
        told = await spoken(url, *said)

    assert told is not None
    assert told.status == 200


class CutUp(NodeHttpProtocol):
    """Gets each byte by itself."""

    def data_received(self, data: bytes) -> None:
        for at in range(len(data)):
            super().data_received(data[at : at + 1])


async def test_requests_that_come_byte_by_byte_are_read_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("meshnet.wire.serving.http_protocol", lambda: CutUp)
    step = post(GOOD | {"Connection": "Upgrade", "Upgrade": "h2c"}, bytes(range(32)))

    async with serving(EchoService()) as url:
        opened, answered = await spoken(url, OPENING), await spoken(url, step)

    assert opened is not None
    assert answered is not None
    assert (opened.status, answered.status, answered.body) == (101, 200, bytes(range(32)))


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n", b"\0\0\r\n"]
)
async def test_what_is_no_http_is_told_in_the_gateways_own_form(garbage: bytes):
    async with Gateway().served() as url:
        told = await spoken(url, garbage)

    assert told is not None
    assert told.status == 400
    assert json.loads(told.body)["error"]["type"] == "invalid_request_error"


def test_a_body_that_mentions_an_upgrade_is_left_alone():
    data = b"POST / HTTP/1.1\r\nA: b\r\n\r\nx\r\nUpgrade: h2c\r\n"

    assert without_upgrade(data) == (data, b"")


@pytest.mark.parametrize("name", [b"Upgrade", b"UPGRADE", b"upgrade"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_websocket_is_asked_for_wherever_its_header_stands(place: int, name: bytes):
    others = [b"Host: x", b"Connection: UPGRADE"]

    def asked(protocol: bytes) -> bytes:
        lines = [*others[:place], name + b": " + protocol, *others[place:]]
        return b"\r\n".join([b"GET / HTTP/1.1", *lines]) + b"\r\n\r\n"

    wanted, other = asked(b"websocket"), asked(b"h2c")

    assert without_upgrade(wanted, websockets=True) == (wanted, b"")
    for data, websockets in ((wanted, False), (other, False), (other, True)):
        parsed, held = without_upgrade(data, websockets=websockets)
        assert b"x-upgrade: " in parsed
        assert held == b""


@pytest.mark.parametrize(
    "protocol", [b"websocket", b"WebSocket ", b"h2c", b"websocket" + b"x" * 99]
)
def test_a_header_is_read_whole_however_the_network_cuts_it(protocol: bytes):
    head = (
        b"GET / HTTP/1.1\r\nUp: 1\r\nUPGRADE: " + protocol + b"\r\nUpgraded: 1\r\nLast: 1\r\n\r\n"
    )
    whole, _ = without_upgrade(head, websockets=True)

    for first in range(1, len(head)):
        for second in (first + 1, len(head)):
            parsed, held = b"", b""
            for piece in (head[:first], head[first:second], head[second:]):
                ready, held = without_upgrade(held + piece, websockets=True)
                parsed += ready
                assert len(held) <= 96
            assert (parsed, held) == (whole, b"")
    assert (b"x-upgrade" in whole) is (protocol.strip().lower() != b"websocket")


def test_a_body_is_left_alone_however_the_network_cuts_what_is_before_it():
    head, body = b"POST / HTTP/1.1\r\nA: b\r\n\r\n", b"\r\nUpgrade: h2c\r\n"

    for cut in range(1, len(head)):
        parsed, held = without_upgrade(head[:cut])
        rest, last = without_upgrade(held + head[cut:] + body)
        assert (parsed + rest, last) == (head + body, b"")


def test_a_nodes_refusal_is_its_own_json():
    assert set(json.loads(node_refusal("x"))) == {"error", "message"}
