"""What this node can do, measured when it joins: before it holds anything, and in turn.

    wait for the nodes of this machine that measure now -> engine -> served steps -> Capacity

Nodes that measured at the same time would each find a part of the machine.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from meshnet.cli.cold_caches import ColdCaches
from meshnet.cli.machine import cores, free_device_bytes, machine_id
from meshnet.cli.models import Bars, format_of, resolve_shape
from meshnet.cli.served_step import served_step_s
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import Capacity, Link, ModelError, NodeId, Speed
from meshnet.node.compute import Compute
from meshnet.node.service import NodeService
from meshnet.wire.links import LinkBook
from meshnet.wire.tls import MeshTls

if TYPE_CHECKING:
    from meshnet.engine.shard_timer import TimedShard

TURN_S = 120.0
"""How long a node waits for its turn; then it measures beside others."""
LOOK_S = 0.1
MEMORY_PART = 4
"""The layers that are made up take at most this part of the free memory."""


async def measured_capacity(
    settings: Settings,
    compute: Compute,
    *,
    threads: int,
    model: str | None = None,
    through: Callable[[Any], Any] = lambda shard: shard,
) -> Capacity:
    """Measure this node; seconds. Raises MeshnetError.

    Args:
        compute: where steps run, with `threads` set.
        model: what it is likely to serve, as a user writes it; None, or one whose size cannot be
            told without its weights: a model of a common shape is taken for it.
        through: may slow its shards, to stand for another machine.
    """
    free_bytes = free_device_bytes(settings.device)
    async with turn(settings.cache_dir):
        tiny, speed = await compute.run(lambda: _measured(settings, model, free_bytes, through))
        speed = await _as_served(compute, tiny, speed)
    return Capacity(
        machine=machine_id(),
        memory_bytes=free_bytes,
        threads=threads,
        cores=cores(),
        speeds=(speed,),
    )


async def _as_served(compute: Compute, tiny: TimedShard, speed: Speed) -> Speed:
    """Return the speed of steps that come one by one, each after others' layers were read.

    Code and data of a step have left the caches by then; it takes up to three times as long as
    the next of a row of steps, from whose times the rates were told.
    """
    from meshnet.engine.measuring import fixed_costs

    between = ColdCaches()
    fixed = await compute.run(lambda: fixed_costs(tiny, time.perf_counter, between))
    served_s = await served_step_s(compute, tiny, between)
    layers_s = len(tiny.description.layers) * fixed.layer_s
    return replace(speed, layer_s=fixed.layer_s, step_s=max(0.0, served_s - layers_s))


async def keep_links(
    service: NodeService[Any],
    peers: Callable[[], Mapping[NodeId, str]],
    token: str | None,
    tls: MeshTls | None = None,
) -> None:
    """Measure the ways from this node to `peers`, and let it tell them, until cancelled."""
    capacity = service.capacity
    assert capacity is not None, "a node tells its links with what else it measured"

    def tell(links: tuple[Link, ...]) -> None:
        service.capacity = replace(capacity, links=links)

    await LinkBook(peers, token=token, clock=time.monotonic, tls=tls).keep(tell)


def _measured(
    settings: Settings, model: str | None, free_bytes: int, through: Callable[[Any], Any]
) -> tuple[TimedShard, Speed]:
    from meshnet.engine.checkpoint import read_config
    from meshnet.engine.heap import give_back
    from meshnet.engine.measuring import (
        common_config,
        fixed_costs,
        measured_speed,
        tiny_shard,
    )

    weights = format_of(settings.weights)
    tiny = through(tiny_shard(weights, settings.device))
    fixed = fixed_costs(tiny, time.perf_counter)

    def of(config: Any) -> Speed:
        return measured_speed(
            config,
            weights,
            fixed,
            device=settings.device,
            bytes_max=free_bytes // MEMORY_PART,
            clock=time.perf_counter,
            progress=Bars(),
            through=through,
        )

    if model is None:
        speed = of(common_config())
    else:
        config = read_config(resolve_shape(model, settings).path)
        try:
            speed = of(config)
        except ModelError:  # its size cannot be told without its weights
            speed = of(common_config())
    gc.collect()  # what the layers leave goes now: a node lets no collection look for it later
    give_back()
    return tiny, speed


@asynccontextmanager
async def turn(directory: Path) -> AsyncIterator[None]:
    """Measure while no other node of this user on this machine does."""
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    lock = FileLock(directory / ".measuring")
    with suppress(TimeoutError):
        async with asyncio.timeout(TURN_S):
            while not _taken(lock):  # noqa: ASYNC110  # another process gives it back
                await asyncio.sleep(LOOK_S)
    try:
        yield
    finally:
        lock.release()  # harmless where it was not taken


def _taken(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True
