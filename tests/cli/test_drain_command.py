"""When `meshnet drain` says that a node has left, from a server that plays the gateway."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from meshnet.cli.api_client import ApiError
from meshnet.cli.drain_command import drain_node
from meshnet.cli.settings import Settings

SERVING = (200, {"sessions": 2})
LOST = (502, {"error": {"message": "it does not answer", "code": "node_lost"}})
UNKNOWN = (404, {"error": {"message": "knows no node", "code": "node_not_found"}})
NODE = "http://10.0.0.1:9001"


@contextmanager
def gateway(*answers: tuple[int, object]) -> Iterator[str]:
    """Give these answers, one after the other."""
    left = iter(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, values = next(left)
            body = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    "answers", [(SERVING, SERVING, LOST), (SERVING, UNKNOWN)], ids=["named", "joined"]
)
def test_a_node_that_drains_has_left_when_it_is_gone_or_no_member_any_more(
    answers: Sequence[tuple[int, object]], capsys: pytest.CaptureFixture[str]
):
    """A node that joined leaves the mesh as it ends, so its gateway knows it no longer."""
    with gateway(*answers) as url:
        drain_node(Settings(), NODE, url, undo=False)

    assert f"{NODE} has left" in capsys.readouterr().err


def test_a_node_that_nobody_knew_is_an_error():
    with gateway(UNKNOWN) as url, pytest.raises(ApiError, match="knows no node"):
        drain_node(Settings(), NODE, url, undo=False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8000", "http://[::1"])
def test_a_gateway_that_cannot_be_asked_is_named_by_the_command_s_own_option(url: str):
    with pytest.raises(ApiError, match="--gateway"):
        drain_node(Settings(), NODE, url, undo=False)
