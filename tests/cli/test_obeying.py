"""What a node says while it cannot hold what its mesh tells it, and when it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.mesh.members import member, served, sqlite_registry

from meshnet.cli.joining import MeshPlace
from meshnet.cli.obeying import Obedience
from meshnet.cli.settings import Settings, Weights
from meshnet.cli.shard_loading import ShardLoader
from meshnet.core.protocol.members import encode_assignments
from meshnet.core.vocabulary import Assignments, LayerRange, Member, MemberState, ModelId
from meshnet.mesh.placing import ASSIGNMENTS
from meshnet.mesh.registry.http_client import HttpRegistry
from meshnet.mesh.registry.lease import Lease
from meshnet.mesh.registry.sqlite import SqliteRegistry
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.loop import run
from meshnet.telemetry.events import record_nothing

T = TypeVar("T")
OWN = member(1)
LOAD_S, LOOK_S = 2.0, 0.5


class Slow:
    """Computes in this thread, and lets virtual time pass before."""

    async def run(self, fn: Callable[[], T]) -> T:
        await asyncio.sleep(LOAD_S)
        return fn()

    async def step(self, job: object) -> None:
        raise AssertionError("nobody asks for a step")


def obedience(
    registry: SqliteRegistry, cache: Path
) -> tuple[MeshPlace, Obedience, NodeService[Any]]:
    clock, compute = asyncio.get_running_loop().time, Slow()
    node = HttpRegistry(served(registry))  # type: ignore[arg-type]
    lease = Lease(node, OWN, ttl_s=60.0, clock=clock, jitter=lambda: 1.0, record=record_nothing)
    place = MeshPlace(node, lease, {}, {}, record_nothing)
    service: NodeService[Any] = NodeService(
        node=OWN.node, pid=1, shards=(), compute=compute,
        limits=NodeLimits(kv_bytes_max=2**20), clock=clock,
    )  # fmt: skip
    settings = Settings(cache_dir=cache, weights=Weights.FP32)
    loader = ShardLoader(settings, service, compute, record_nothing, lambda shard: shard)  # type: ignore[arg-type]
    return place, Obedience(settings, place, service, loader), service


def test_a_node_that_failed_says_so_until_it_holds_what_it_was_told(
    tiny_model_dir: Path, tmp_path: Path
):
    """Else the mesh would count on it whenever it tries again."""
    source = tmp_path / tiny_model_dir.name
    wanted = Assignments(ModelId(source.name), str(source), "auto")

    async def main():
        registry = sqlite_registry()
        value = encode_assignments(wanted.changed({OWN.node: LayerRange(0, 2)}))
        await registry.compare_and_set(ASSIGNMENTS, None, value)

        async def look() -> Member:
            await asyncio.sleep(LOOK_S)
            return (await registry.snapshot()).members[OWN.node].member

        place, obeying, service = obedience(registry, tmp_path)
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each) for each in (place.run(), obeying.run(ready.set))]
            while not (seen := await look()).failure:
                pass
            while seen.state is not MemberState.LOADING:
                seen = await look()
                assert "no such model" in seen.failure
            source.symlink_to(tiny_model_dir)
            while not ready.is_set():
                assert seen.failure
                seen = await look()
            seen = await look()
            for task in running:
                task.cancel()

        assert (seen.state, seen.failure) == (MemberState.READY, "")
        assert seen.layers == LayerRange(0, 2)
        (shard,) = service.describe().shards
        assert shard.weights == "fp32", "its own format, for it was told none"

    run(main, 0)


async def tell(registry: SqliteRegistry, told: Assignments) -> Assignments:
    known = await registry.get(ASSIGNMENTS)
    before = None if known is None else known.revision
    assert await registry.compare_and_set(ASSIGNMENTS, before, encode_assignments(told))
    return told


async def become(registry: SqliteRegistry, state: MemberState, layers: LayerRange) -> None:
    """Wait until the node says so, and fail if it cannot."""
    while True:
        await asyncio.sleep(LOOK_S)
        leased = (await registry.snapshot()).members.get(OWN.node)
        if leased is not None:
            assert not leased.member.failure
            if (leased.member.state, leased.member.layers) == (state, layers):
                return


def test_a_node_that_drains_obeys_when_it_goes_on(tiny_model_dir: Path, tmp_path: Path):
    """Else an assignment that crosses a drain would take its layers from under the chats."""
    wanted = Assignments(ModelId(tiny_model_dir.name), str(tiny_model_dir), "auto")
    first, second = LayerRange(0, 2), LayerRange(2, 4)

    async def main():
        registry = sqlite_registry()
        place, obeying, service = obedience(registry, tmp_path)

        def drain(*, undo: bool = False) -> None:
            service.moves.drain(undo=undo)
            place.drain(undo=undo)

        async with asyncio.TaskGroup() as tasks:
            ready = asyncio.Event()
            running = [tasks.create_task(each) for each in (place.run(), obeying.run(ready.set))]
            told = await tell(registry, wanted.changed({OWN.node: first}))
            await become(registry, MemberState.LOADING, first)
            drain()
            await ready.wait()
            await become(registry, MemberState.DRAINING, first)
            await tell(registry, told.changed({OWN.node: second}))
            await asyncio.sleep(20 * LOAD_S)
            await become(registry, MemberState.DRAINING, first)
            assert [shard.layers for shard in service.describe().shards] == [first]
            drain(undo=True)
            await become(registry, MemberState.READY, second)
            for task in running:
                task.cancel()

    run(main, 0)
