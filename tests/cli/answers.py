"""A gateway that gives the answers it was told to, one after the other."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat

Answer = tuple[int, bytes]


@contextmanager
def answering(*answers: Answer, kind: str = "application/json") -> Iterator[str]:
    """Yield its URL; the last answer is given for ever."""
    left = chain(answers, repeat(answers[-1]))

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            status, body = next(left)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

    with listening(Handler) as url:
        yield url


class QuietHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening(handler: type[QuietHandler]) -> Iterator[str]:
    """Yield the URL of a server whose requests `handler` answers."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
