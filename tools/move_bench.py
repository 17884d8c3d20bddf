"""What it costs to move a session's layers to another node, beside computing them again there.

    python -m tools.move_bench [--model smollm2-135m] [--layers 10-20] [--lengths 128,512,1500]
                               [--weights int8] [--tries 5] [--out DIR]

Two nodes of the same layers in this process, over loopback HTTP. Of each length: the session is
filled on the one, taken over by the other, goes on there for a token, and is filled there too.
Exits 1 unless the token's activation is the same on both, bit for bit.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from meshnet.cli.bench.report import Report, number, page_of, table
from meshnet.cli.bench.results import provenance, result_path, write_result
from meshnet.cli.models import resolve_model
from meshnet.cli.settings import load_settings
from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.messages import ActivationReply, ForwardRequest, Mode
from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    DType,
    LayerRange,
    NodeId,
    SamplingParams,
    SessionDescription,
    SessionId,
    ShardDescription,
    TensorSpec,
    WeightFormat,
)
from meshnet.engine.loading import load_shard
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.telemetry.events import Event, SessionTaken
from meshnet.wire.http_client import HttpHopClient
from meshnet.wire.http_server import node_app
from meshnet.wire.serving import bind, serve_socket

GIVER = NodeId("giver")
DEADLINE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds and bytes of one session."""

    refill_s: float
    move_s: float
    bytes: int
    equal: bool


class Pair:
    """A giver that is served at `url`, and a receiver that knows it."""

    def __init__(self, shards: list[Any], threads: int, givers: HttpHopClient) -> None:
        self.told: ShardDescription = shards[0].description
        self.taken: list[SessionTaken] = []
        self.services = [
            NodeService(
                node=NodeId(name),
                pid=1,
                shards=[shard],
                compute=ComputeThread(name=name, on_start=lambda: torch.set_num_threads(threads)),
                limits=NodeLimits(kv_bytes_max=2**32),
                clock=time.monotonic,
                record=self._record,
                givers=givers,
            )
            for name, shard in zip((GIVER, "receiver"), shards, strict=True)
        ]

    def _record(self, event: Event) -> None:
        if isinstance(event, SessionTaken):
            self.taken.append(event)

    async def run(self, number: int, length: int) -> Run:
        giver, receiver = self.services
        moved, filled = SessionId(f"{number}-moved"), SessionId(f"{number}-filled")
        ids = tuple(at % self.told.vocab_size for at in range(length))
        await giver.forward(self._step(moved, ids, 0))
        began = time.perf_counter()
        taken = await receiver.moves.take(
            TakeRequest(
                moved, GIVER, self.told.layers, 1, ids, self.told.model, self.told.fingerprint,
                SamplingParams(), DEADLINE_MS,
            )
        )  # fmt: skip
        move_s = time.perf_counter() - began
        assert isinstance(taken, SessionDescription), taken
        began = time.perf_counter()
        await receiver.forward(self._step(filled, ids, 0))
        refill_s = time.perf_counter() - began
        replies = [
            await service.forward(self._step(moved, (1,), length, ids)) for service in self.services
        ]
        passed = [
            bytes(reply.activation.data) for reply in replies if isinstance(reply, ActivationReply)
        ]
        for service in self.services:
            service.release(moved)
            service.release(filled)
        equal = len(passed) == len(replies) and passed[0] == passed[1]
        return Run(refill_s, move_s, self.taken[-1].bytes, equal)

    def _step(
        self, session: SessionId, ids: tuple[int, ...], past: int, before: tuple[int, ...] = ()
    ) -> ForwardRequest:
        generator = torch.Generator().manual_seed(past + len(ids))
        hidden = torch.randn(1, len(ids), self.told.hidden_size, generator=generator)
        spec = TensorSpec(HIDDEN, DType.FP32, tuple(hidden.shape))
        return ForwardRequest(
            Mode.DECODE if past else Mode.PREFILL,
            session,
            past_length=past,
            layers=self.told.layers,
            attempt=1,
            prefix=PrefixDigest.of(before).hex if past else None,
            wire=1,
            tokens=ids,
            activation=Activation((spec,), hidden.numpy().tobytes()),
        )


async def measure(
    shards: list[Any], lengths: list[int], tries: int, threads: int
) -> dict[int, list[Run]]:
    listener = bind("127.0.0.1", 0)
    urls = {GIVER: f"http://127.0.0.1:{listener.getsockname()[1]}"}
    async with HttpHopClient(urls, limits=Limits()) as givers, asyncio.TaskGroup() as group:
        pair = Pair(shards, threads, givers)
        app = node_app(
            pair.services[0], limits=Limits(), token=None, metrics=bytes,
            mover=pair.services[0].moves,
        )  # fmt: skip
        serving = group.create_task(serve_socket(app, listener))
        await pair.run(0, lengths[0])
        found = {
            length: [await pair.run(number, length) for number in range(1, tries + 1)]
            for length in lengths
        }
        serving.cancel()
    return found


def page(found: Mapping[int, Sequence[Run]]) -> str:
    titles = (
        "positions", "bytes", "moved in, median (s)", "worst", "filled in, median (s)", "worst",
        "moved over filled", "equal",
    )  # fmt: skip
    rows = []
    for length, runs in found.items():
        moves, refills = [run.move_s for run in runs], [run.refill_s for run in runs]
        ratio = statistics.median(run.move_s / run.refill_s for run in runs)
        figures = (statistics.median(moves), max(moves), statistics.median(refills), max(refills))
        equal = f"{sum(run.equal for run in runs)} of {len(runs)}"
        rows.append(
            (str(length), f"{runs[0].bytes:,}", *map(number, figures), number(ratio), equal)
        )
    return table(titles, rows)


def write(found: Mapping[int, Sequence[Run]], asked: argparse.Namespace) -> None:
    result = {
        **provenance(asked.model, asked.weights, asked.threads),
        "scenario": "move",
        "command": "python -m tools.move_bench " + " ".join(sys.argv[1:]),
        "layers": asked.layers,
        "runs": {length: [asdict(run) for run in runs] for length, runs in found.items()},
    }
    path = result_path(asked.out, asked.model, f"move-{asked.weights}")
    target = write_result(path, result)
    report = Report("a session moves, beside computing it again", (page(found),), ())
    target.with_suffix(".md").write_text(page_of(result, report), encoding="utf-8")
    print(f"written: {target}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layers", default="10-20", help="of which none is the first or last")
    parser.add_argument("--lengths", default="128,512,1500")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", choices=("fp32", "int8"), default="int8")
    parser.add_argument("--out", type=Path, help="where to write the result; else it is shown only")
    asked = parser.parse_args()
    source = resolve_model(asked.model, load_settings({"model": asked.model}))
    torch.set_num_threads(asked.threads)
    weights, layers = WeightFormat(asked.weights), LayerRange.parse(asked.layers)
    shards = [load_shard(source.path, layers, weights=weights) for _ in range(2)]
    lengths = [int(each) for each in asked.lengths.split(",")]
    found = asyncio.run(measure(shards, lengths, asked.tries, asked.threads))
    print(page(found))
    if asked.out is not None:
        write(found, asked)
    return 0 if all(run.equal for runs in found.values() for run in runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
