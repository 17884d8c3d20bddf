"""Peers that know ADR-0022 or less, and nothing of ours, over real HTTP.

`OldHead` embeds and runs the first layers itself and sends raw activations with ADR-0022's three
headers. `OldNode` predates even those: it runs its layers over whatever comes and keeps nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from meshnet.core.protocol import codec
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    Drawn,
    NodeDescription,
    NodeId,
    SamplingParams,
    ShardDescription,
    ShardStep,
    TensorSpec,
)
from meshnet.engine.session_state import SessionState
from meshnet.engine.shard import TorchModelShard


class CacheMiss(Exception):
    """HTTP 409 `{"error": "cache_miss"}`: answered with one prefill of everything."""


class OldHead:
    """ADR-0022's loop over `urls`, the first layers in this process."""

    def __init__(self, first: TorchModelShard, urls: Sequence[str], session: str) -> None:
        self._first, self._urls, self._session = first, urls, session
        self._state: SessionState | None = None
        self._client = httpx2.Client(timeout=60)
        self.misses = 0

    def close(self) -> None:
        self._client.close()

    def release(self) -> None:
        """No old head does this: it makes room for the next test."""
        for url in self._urls:
            self._client.delete(f"{url}/sessions/{self._session}")

    def prefill(self, ids: Sequence[int]) -> int:
        self._state = self._first.new_state(self._first.description.layers)
        return self._step(0, ids, self._state, {"X-Meshnet-Cache": "prefill"})

    def decode(self, past: int, token: int) -> int:
        assert self._state is not None
        headers = {"X-Meshnet-Cache": "decode", "X-Meshnet-Past-Len": str(past)}
        return self._step(past, [token], self._state, headers)

    def stateless(self, ids: Sequence[int]) -> int:
        return self._step(0, ids, None, {})

    def generate(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Prefill, then decode; a miss costs one prefill under the same session."""
        ids = [*prompt, self.prefill(prompt)]
        while len(ids) < len(prompt) + tokens:
            try:
                ids.append(self.decode(len(ids) - 1, ids[-1]))
            except CacheMiss:
                self.misses += 1
                ids.append(self.prefill(ids))
        return ids[len(prompt) :]

    def post(self, url: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
        named = {"X-Meshnet-Session": self._session, **headers}
        return self._client.post(f"{url}/forward", content=body, headers=named)

    def _step(
        self, past: int, ids: Sequence[int], state: SessionState | None, headers: dict[str, str]
    ) -> int:
        layers = self._first.description.layers
        step = ShardStep(layers, past, len(ids), tuple(ids), None, SamplingParams())
        hidden = self._first.run(step, state)
        assert isinstance(hidden, Activation)
        body = bytes(hidden.data)
        for url in self._urls:
            response = self.post(url, body, headers)
            if response.status_code == 409:
                assert response.json()["error"] == "cache_miss"
                raise CacheMiss
            assert response.status_code == 200, response.text
            body = response.content
        return int(json.loads(body)["token_id"])


@contextmanager
def old_node(shard: TorchModelShard, *, said_to_cache: bool) -> Iterator[str]:
    """Serve `shard` as a node from before ADR-0022; yields its URL.

    `GET /node` is what its operator wrote down for it. What that says of caching may be wrong.
    """
    lock = threading.Lock()

    class Handler(_OldHandler):
        def forward(self, body: bytes) -> tuple[str, bytes]:
            with lock:
                return _run(shard, body)

        def description(self) -> bytes:
            return codec.encode_node(_described(shard.description, said_to_cache))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _OldHandler(BaseHTTPRequestHandler):
    """Knows `POST /forward`; every method it has not heard of is 501 with a page of HTML."""

    protocol_version = "HTTP/1.1"

    def forward(self, body: bytes) -> tuple[str, bytes]:
        raise NotImplementedError

    def description(self) -> bytes:
        raise NotImplementedError

    def do_POST(self) -> None:
        self._answer(*self.forward(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self) -> None:
        self._answer("application/json", self.description())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _answer(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _run(shard: TorchModelShard, body: bytes) -> tuple[str, bytes]:
    held = shard.description
    length, rest = divmod(len(body), held.hidden_size * held.dtype.itemsize)
    assert not rest, f"{len(body)} bytes are no rows of {held.hidden_size}"
    spec = TensorSpec(HIDDEN, held.dtype, (1, length, held.hidden_size))
    step = ShardStep(held.layers, 0, length, (), Activation((spec,), body), SamplingParams())
    result = shard.run(step, None)
    if isinstance(result, Drawn):
        text = shard.text_of(result.ids[0])
        return "application/json", json.dumps({"text": text}).encode()
    assert isinstance(result, Activation)
    return "application/octet-stream", bytes(result.data)


def _described(shard: ShardDescription, said_to_cache: bool) -> NodeDescription:
    capabilities = replace(shard.capabilities, kv_cache=said_to_cache)
    return NodeDescription(
        node=NodeId("old"),
        wire=0,
        pid=0,
        ready=True,
        shards=(replace(shard, capabilities=capabilities),),
        sessions=0,
        sessions_max=1,
        kv_bytes=0,
        kv_bytes_max=1,
        compute_s=0.0,
        steps=0,
    )
