"""Whatever is posted to a node with real sessions: a clear 4xx, and the node goes on."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.wire.echoing import LIMITS, post, serving, spoken

from meshnet.core.vocabulary import LayerRange, NodeId
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import ROW_BYTES, ToyShard
from meshnet.wire.http_server import node_app

BODIES = 10_000
SESSIONS_MAX = 4
HOSTILE = ["", "-1", "0", "1", "7", "1e3", "+5", " 12 ", "999999999999", "NaN", "null", "../x",
           "\x00", "é", "a" * 300, "prefill", "decode", "Prefill", "fp32", "bf16", "int8", "0-0",
           "3-2", "2-4", "2-99", "1,1,2", "1,5,2", "0,0,0", "9,9,9,9,9,9,9,9,9", "{}"]  # fmt: skip
FIELDS = ["Session", "Cache", "Past-Len", "Shape", "Dtype", "Layers", "Model", "Meta", "Prefix",
          "Attempt", "Deadline-Ms", "Wire", "Later"]  # fmt: skip
METAS = [b"{}", b'{"tokens":[1]}', b'{"tokens":[1,2,3]}', b'{"tokens":"x"}', b'{"tokens":[-1]}',
         b'{"tensors":[]}', b'{"tensors":[{"name":"hidden","dtype":"fp32","shape":[1,1,2]}]}',
         b'{"tensors":[{"name":"x","dtype":"fp32","shape":[1e9]}]}', b"[[[[[", b"\xff\xfe", b"NaN",
         b'{"sampling":{"temperature":-1}}', b'{"sampling":{"top_k":"a"}}', b'{"a":1,"a":2}',
         ]  # fmt: skip


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread(name="hostile", jobs_max=4)
    yield thread
    assert thread.close(deadline_s=30.0)


def node(compute: ComputeThread, shard: ToyShard | None = None) -> NodeService[Any]:
    return NodeService(
        node=NodeId("n"),
        pid=1,
        shards=[shard or ToyShard(LayerRange(2, 4), layers_total=6)],
        compute=compute,
        limits=NodeLimits(kv_bytes_max=2**16, sessions_max=SESSIONS_MAX),
        clock=asyncio.get_running_loop().time,
    )


def hostile(rng: random.Random) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A request that would be right, with a few things replaced."""
    positions = rng.choice([1, 1, 3])
    fields = {"Session": f"s{rng.randrange(6)}", "Cache": rng.choice(["prefill", "decode"])}
    if fields["Cache"] == "decode":
        fields["Past-Len"] = str(rng.randrange(5))
    body = rng.randbytes(positions * ROW_BYTES)
    if rng.random() < 0.5:
        meta = rng.choice(METAS)
        fields["Meta"] = str(len(meta) + rng.choice([0, 0, 0, 1, -1]))
        body = meta + body
    for _ in range(rng.randrange(4)):
        fields[rng.choice(FIELDS)] = rng.choice(HOSTILE)
    match rng.randrange(6):
        case 0:
            body = body[: rng.randrange(len(body) + 1)]
        case 1:
            body += rng.randbytes(rng.randrange(64))
    headers = [
        (f"x-meshnet-{name}".lower().encode(), value.encode()) for name, value in fields.items()
    ]
    if rng.random() < 0.05:
        headers.append(rng.choice(headers))
    return [*headers, (b"content-length", str(len(body)).encode())], body


async def asked(app: Any, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
    """One request straight into the application, as the HTTP server would hand it over."""
    sent: list[dict[str, Any]] = []
    pieces = [
        {"type": "http.request", "body": body[:7], "more_body": True},
        {"type": "http.request", "body": body[7:], "more_body": False},
    ]

    async def receive() -> dict[str, Any]:
        return pieces.pop(0) if pieces else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/forward", "raw_path": b"/forward",
             "query_string": b"", "headers": headers}  # fmt: skip
    await app(scope, receive, send)
    answer = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], answer


async def test_ten_thousand_hostile_bodies_are_refused_and_leave_nothing(compute: ComputeThread):
    """Pit A95."""
    rng = random.Random(11)
    service = node(compute)
    app = node_app(service, limits=LIMITS, token=None, metrics=lambda: b"")
    statuses: dict[int, int] = {}
    for number in range(BODIES):
        headers, body = hostile(rng)
        status, answer = await asked(app, headers, body)
        statuses[status] = statuses.get(status, 0) + 1
        assert status == 200 or json.loads(answer)["message"], answer
        assert status != 409 or (b"x-meshnet-cache", b"decode") in headers, answer
        if number == BODIES // 10:
            gc.collect()
            before = len(gc.get_objects())
    service.check_integrity()
    gc.collect()

    assert set(statuses) <= {200, 400, 404, 409, 412, 413, 429, 503}, statuses
    assert statuses[400] > BODIES // 4
    assert statuses[200] > BODIES // 20, "a fuzz that never gets through proves little"
    assert service.describe().sessions <= SESSIONS_MAX
    assert len(gc.get_objects()) - before < 1000


class Trap:
    """A pickle that writes a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.marker, "executed")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"X-Meshnet-Session": "s", "X-Meshnet-Cache": "prefill"},
        {"X-Meshnet-Shape": "1,1,2", "X-Meshnet-Dtype": "fp32"},
        {"X-Meshnet-Meta": "40"},
    ],
)
async def test_a_pickle_is_bytes_like_any_other(
    compute: ComputeThread, tmp_path: Path, fields: dict[str, str]
):
    """Pit A96."""
    marker = tmp_path / "marker"
    body = pickle.dumps(Trap(marker))
    body += b"." * (1 - len(body) % ROW_BYTES) if len(body) % ROW_BYTES == 0 else b""
    async with serving(node(compute)) as url:
        answer = await spoken(url, post(fields, body))

    assert answer is not None
    assert answer.status == 400
    assert not marker.exists()
    pickle.loads(body)  # noqa: S301  # the trap works: this test could have failed
    assert marker.exists()


class Held(ToyShard):
    """Stays in a step until it is let go."""

    def __init__(self) -> None:
        super().__init__(LayerRange(2, 4), layers_total=6)
        self.entered, self.go_on = threading.Event(), threading.Event()

    def run(self, step: Any, state: Any) -> Any:
        self.entered.set()
        assert self.go_on.wait(60)
        return super().run(step, state)


@asynccontextmanager
async def busy(compute: ComputeThread) -> AsyncIterator[str]:
    """A node whose device computes for as long as the block lasts."""
    shard = Held()
    async with serving(node(compute, shard)) as url, asyncio.TaskGroup() as group:
        group.create_task(spoken(url, post({}, bytes(ROW_BYTES))))
        await asyncio.to_thread(shard.entered.wait, 60)
        try:
            yield url
        finally:
            shard.go_on.set()


@pytest.mark.parametrize("path", ["/health", "/ready", "/node", "/metrics"])
async def test_a_node_answers_while_it_computes(compute: ComputeThread, path: str):
    """Pit A91, for nodes: layers run on a thread of their own."""
    async with busy(compute) as url:
        answer = await spoken(url, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    assert answer is not None
    assert answer.status == 200
