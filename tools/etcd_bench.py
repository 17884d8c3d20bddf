"""What members of a mesh notice when the leader of a three-member etcd is killed.

    python -m tools.etcd_bench --deaths 10 --members 8 --out benchmarks/results

Members keep their leases, one follower watches, and one writer swaps a value over and over. The
leader dies by SIGKILL at a moment of chance and is started again before the next death. Told are
the gap in accepted writes, who left, and how much of a lease was left at the least.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.mesh.etcd import Etcd, etcd
from tests.mesh.members import member

from meshnet.cli.bench.results import commit
from meshnet.mesh.registry.etcd import EtcdRegistry
from meshnet.mesh.registry.etcd_gateway import EtcdAccess, EtcdGateway
from meshnet.mesh.registry.following import Following, View
from meshnet.mesh.registry.lease import Lease
from meshnet.mesh.registry.ports import RegistryLost
from meshnet.telemetry.events import Event

TTL_S = 10.0
WRITES_AFTER = 20


class Measured:
    """One etcd, the members in it, and what they told."""

    def __init__(self, cluster: Etcd, members: int, chance: random.Random) -> None:
        self.cluster, self._count, self._chance = cluster, members, chance
        self.events: list[Event] = []
        self.fewest = members
        self.deaths: list[dict[str, Any]] = []
        self.calm_ms: list[float] = []

    async def run(self, deaths: int) -> None:
        async with AsyncExitStack() as stack:
            registries = [await self._registry(stack) for _ in range(self._count + 2)]
            writer, follower, *own = registries
            leases = [self._lease(each, number) for number, each in enumerate(own, start=1)]
            for lease, registry in zip(leases, own, strict=True):
                await registry.announce(lease.member, TTL_S)
            async with asyncio.TaskGroup() as group:
                following = Following(
                    follower,
                    self._seen,
                    resync_s=2 * TTL_S,
                    jitter=self._chance.random,
                    record=self.events.append,
                )
                tasks = [group.create_task(lease.keep()) for lease in leases]
                tasks.append(group.create_task(following.run()))
                self.calm_ms = [1000 * await self._write(writer) for _ in range(WRITES_AFTER)]
                for _ in range(deaths):
                    await self._death(writer, leases)
                for task in tasks:
                    task.cancel()

    async def _registry(self, stack: AsyncExitStack) -> EtcdRegistry:
        gateway = EtcdGateway(self.cluster.endpoints, EtcdAccess())
        return EtcdRegistry(await stack.enter_async_context(gateway), "bench")

    def _lease(self, registry: EtcdRegistry, number: int) -> Lease:
        return Lease(
            registry,
            member(number),
            ttl_s=TTL_S,
            clock=time.monotonic,
            jitter=self._chance.random,
            record=self.events.append,
        )

    def _seen(self, view: View) -> None:
        self.fewest = min(self.fewest, len(view.members))

    async def _write(self, registry: EtcdRegistry) -> float:
        """Swap a value and return how long that took; until it succeeds."""
        began = time.monotonic()
        while True:
            try:
                held = await registry.get("k")
                if await registry.compare_and_set("k", held and held.revision, b"v"):
                    return time.monotonic() - began
            except RegistryLost:
                await asyncio.sleep(0.05)

    async def _death(self, writer: EtcdRegistry, leases: list[Lease]) -> None:
        await asyncio.sleep(TTL_S / 3 * self._chance.random())
        events = len(self.events)
        leader = await asyncio.to_thread(self.cluster.leader)
        self.cluster.kill(leader)
        gap_s = await self._write(writer)
        alive = next(n for n in range(3) if n != leader)
        left = [await asyncio.to_thread(self._left_s, alive, each.member.node) for each in leases]
        await asyncio.sleep(TTL_S)  # whoever lost its lease would be gone by then
        self.deaths.append(
            {
                "write_gap_s": round(gap_s, 3),
                "lease_left_s_least": min(left),
                "members_after": len((await writer.snapshot()).members),
                "members_lost": sum(lease.lost.is_set() for lease in leases),
                "told": len(self.events) - events,
            }
        )
        print(self.deaths[-1], flush=True)
        await asyncio.to_thread(self.cluster.start)

    def _left_s(self, number: int, node: str) -> int:
        key = base64.b64encode(f"bench/members/{node}".encode()).decode()
        held = self.cluster.ask(number, "kv/range", key=key)["kvs"][0]
        return int(self.cluster.ask(number, "lease/timetolive", ID=held["lease"]).get("TTL", 0))


def result(measured: Measured, load: float) -> dict[str, Any]:
    gaps = sorted(death["write_gap_s"] for death in measured.deaths)
    return {
        "command": " ".join(["python -m tools.etcd_bench", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "etcd": measured.cluster.version(),
        "etcd_members": 3,
        "election_ms": 1000,
        "lease_s": TTL_S,
        "write_ms_calm": {
            "median": round(statistics.median(measured.calm_ms), 2),
            "max": round(max(measured.calm_ms), 2),
        },
        "write_gap_s": {"median": statistics.median(gaps), "min": gaps[0], "max": gaps[-1]},
        "members_seen_fewest": measured.fewest,
        "deaths": measured.deaths,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deaths", type=int, default=10)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with etcd(3, election_ms=1000) as cluster:
        measured = Measured(cluster, asked.members, random.Random(asked.seed))
        asyncio.run(measured.run(asked.deaths))
        told = result(measured, load)
    text = json.dumps(told, indent=2)
    print(text)
    if asked.out is not None:
        name = f"{told['date'][:10]}_etcd-leader_{os.cpu_count()}-core-cpu.json"
        (asked.out / name).write_text(text + "\n", encoding="utf-8")
    unnoticed = told["members_seen_fewest"] == asked.members
    return 0 if unnoticed and not any(d["members_lost"] for d in measured.deaths) else 1


if __name__ == "__main__":
    raise SystemExit(main())
