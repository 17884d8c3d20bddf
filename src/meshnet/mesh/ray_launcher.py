"""Node processes on the machines of a Ray cluster: one per machine, placed and kept by Ray.

    placement group (STRICT_SPREAD) ──bundle k──▶ actor k on some machine ──child──▶ `meshnet node`
          ▲ Ray moves the bundles and actors of a machine that died
    running() ──every half second: what happened there?──▶ events, as of local children

Invariants
    * group and actors are detached: they outlive a launcher that was killed, and the next one of
      the same name and the same specs takes them over; leaving `running()` ends them;
    * Ray carries orders and news; tokens and activations never pass through it;
    * no call to Ray is waited for longer than `CALL_S`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import ray
from meshnet.core.vocabulary import MeshnetError
from meshnet.mesh.grouped import unwrapped
from meshnet.mesh.launcher import ChildFailed
from meshnet.mesh.ray_spec import RayShardSpec
from meshnet.telemetry.events import ChildDied, ChildStarted, Record, ShardAway

NAMESPACE = "meshnet"
POLL_S = 0.5
CALL_S = 10.0
DIAL_S = 5.0


class RayRefused(MeshnetError):
    """The cluster cannot be used, or has no room for the shards."""


@contextmanager
def connected(address: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Take part in the cluster until the block is left; yield what Ray calls this machine, and all.

    Raises RayRefused. Must run in the main thread before signals are handled: Ray takes SIGTERM.
    """
    if not re.fullmatch(r"auto|[^/\s]+:\d{1,5}", address):
        raise RayRefused(f"--ray: expected HOST:PORT of a Ray cluster, or auto, got {address!r}")
    if address != "auto":
        _refuse_silent(address)
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        raise RayRefused(f"--ray {address}: {error}") from None
    try:
        alive = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        yield ray.util.get_node_ip_address(), tuple(alive)
    finally:
        ray.shutdown()


class _Shard:
    """What the launcher knows of one actor; `life` is another one whenever Ray started it anew."""

    def __init__(self, spec: RayShardSpec) -> None:
        self.spec = spec
        self.actor: Any = None
        self.life, self.heard, self.away = "", 0, ""
        self.url, self.pid = "", 0
        self.was_ready = asyncio.Event()


class RayLauncher:
    """Keeps one actor per spec for as long as `running()` is entered; `ray.init` came before.

    `actor` is the class that runs on the machines: `matches(order)` and `told(since)`.
    """

    def __init__(
        self,
        actor: type,
        specs: Sequence[RayShardSpec],
        *,
        name: str,
        record: Record,
        place_timeout_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._class, self._name, self._record = ray.remote(actor), name, record
        self._place_timeout_s, self._clock = place_timeout_s, clock
        self.children = tuple(_Shard(spec) for spec in specs)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Place the shards, or take over those that are there; end them when the block is left.

        Raises:
            RayRefused: the cluster has no room for them, or is gone.
            ChildFailed: inside the block, by cancelling it: a shard that never was ready cannot be.
        """
        try:
            await self._placed()
            with unwrapped():
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self._watch())
                    try:
                        yield
                    finally:
                        watching.cancel()
        finally:
            await asyncio.to_thread(self._remove)

    async def ready(self) -> None:
        """Wait until every shard has been ready once."""
        for shard in self.children:
            await shard.was_ready.wait()

    async def _placed(self) -> None:
        if await asyncio.to_thread(self._taken_over):
            return
        await asyncio.to_thread(self._remove)
        bundles = [dict(shard.spec.resources) for shard in self.children]
        group = await asyncio.to_thread(
            placement_group, bundles, strategy="STRICT_SPREAD", name=self._name, lifetime="detached"
        )
        until = self._clock() + self._place_timeout_s
        while not await asyncio.to_thread(group.wait, 1.0):
            if self._clock() >= until:
                raise RayRefused(
                    f"--ray: expected {len(bundles)} machines with {_told(bundles[0])} each, "
                    f"got none free within {self._place_timeout_s:g} s; see `ray status`"
                )
        await asyncio.to_thread(self._start, group)

    def _start(self, group: Any) -> None:
        for bundle, shard in enumerate(self.children):
            resources = dict(shard.spec.resources)
            shard.actor = self._class.options(
                name=self._actor_name(shard),
                lifetime="detached",
                max_restarts=-1,
                num_cpus=resources.pop("CPU", 0),
                num_gpus=resources.pop("GPU", 0),
                memory=resources.pop("memory", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
            ).remote(shard.spec.order)

    def _taken_over(self) -> bool:
        """Find what another launcher of this name left behind, if it is what is wanted now."""
        try:
            group = get_placement_group(self._name)
            if group.bundle_specs != [dict(shard.spec.resources) for shard in self.children]:
                return False
            for shard in self.children:
                shard.actor = ray.get_actor(self._actor_name(shard))
                if not ray.get(shard.actor.matches.remote(shard.spec.order), timeout=CALL_S):
                    return False
        except (ValueError, RayError, GetTimeoutError):
            return False
        return True

    def _remove(self) -> None:
        """End all actors of this name; their children see it and end too."""
        for name in ray.util.list_named_actors():
            if name.startswith(f"{self._name}/"):
                with suppress(ValueError, RayError):
                    ray.kill(ray.get_actor(name))
        with suppress(ValueError, RayError):
            remove_placement_group(get_placement_group(self._name))

    def _actor_name(self, shard: _Shard) -> str:
        return f"{self._name}/{shard.spec.name}"

    async def _watch(self) -> None:
        while True:
            for shard, news in zip(self.children, await asyncio.to_thread(self._look), strict=True):
                self._take(shard, news)
            await asyncio.sleep(POLL_S)

    def _look(self) -> list[Mapping[str, Any] | str]:
        """Ask every actor what happened; a text says why one does not answer."""
        asked = [shard.actor.told.remote(shard.life, shard.heard) for shard in self.children]
        ray.wait(asked, num_returns=len(asked), timeout=CALL_S)
        return [_answer(each) for each in asked]

    def _take(self, shard: _Shard, news: Mapping[str, Any] | str) -> None:
        if isinstance(news, str):
            self._say_away(shard, news)
            return
        shard.life, shard.heard = news["life"], news["count"]
        for kind, *values in news["events"]:
            if kind == "started":
                pid, url, start_s = values
                shard.pid, shard.url = pid, url
                shard.was_ready.set()
                self._record(ChildStarted(shard.spec.name, pid, url, start_s))
            elif kind == "died":
                self._record(ChildDied(shard.spec.name, *values))
        failure = news["failure"]
        if failure and not shard.was_ready.is_set():
            raise ChildFailed(f"{shard.spec.name} on {news['machine']}: {failure}")
        self._say_away(shard, failure)

    def _say_away(self, shard: _Shard, reason: str) -> None:
        """Tell once that a shard is away; what it is away for may change meanwhile."""
        if reason and not shard.away and shard.was_ready.is_set():
            self._record(ShardAway(shard.spec.name, shard.url, reason))
        shard.away = reason


def _refuse_silent(address: str) -> None:
    """Raise RayRefused if nobody listens there: Ray itself would try for a minute and more."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), DIAL_S).close()
    except (OSError, OverflowError) as error:
        raise RayRefused(f"--ray {address}: no Ray answers there ({error})") from None


def _answer(asked: Any) -> Mapping[str, Any] | str:
    try:
        news: Mapping[str, Any] = ray.get(asked, timeout=0.1)
        return news
    except RayActorError:
        return "its actor or machine died, and Ray starts it anew"
    except GetTimeoutError:
        return f"its actor does not answer within {CALL_S:g} s"


def _told(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{value:g} {name}" for name, value in resources.items())
