"""Who breaks what, when: crashes, stops and partitions until the cluster is healed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from meshnet.simulation.faults import HEALED, Faults
from meshnet.simulation.machine import Machine
from meshnet.simulation.network import Network
from meshnet.simulation.wire import Service

DOWN_MAX_S = 3.0


class Chaos:
    """Breaks machines and links at exponential intervals, until the healing time."""

    def __init__(
        self,
        rng: random.Random,
        network: Network,
        machines: Sequence[Machine[Service]],
        heads: Sequence[str],
    ) -> None:
        self._rng, self._network, self._machines, self._heads = rng, network, machines, heads
        self.broken = 0

    async def until_healed(self, faults: Faults, heal_at_s: float) -> None:
        """Break things as often as `faults` says; at `heal_at_s` everything works again."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as kinds:
            for every_s, strike in (
                (faults.crash_every_s, self._crash),
                (faults.pause_every_s, self._stop),
                (faults.partition_every_s, self._partition),
            ):
                if every_s > 0.0:
                    kinds.create_task(self._strike(every_s, strike, heal_at_s, faults))
        await asyncio.sleep(max(heal_at_s - loop.time(), 0.0))
        self._network.faults = HEALED

    async def _strike(
        self,
        every_s: float,
        strike: Callable[[Faults], None],
        heal_at_s: float,
        faults: Faults,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._rng.expovariate(1.0 / every_s)
            if loop.time() + wait_s >= heal_at_s:
                return
            await asyncio.sleep(wait_s)
            self.broken += 1
            strike(faults)

    def _crash(self, faults: Faults) -> None:
        self._rng.choice(self._machines).kill(down_s=self._rng.uniform(0.1, DOWN_MAX_S))

    def _stop(self, faults: Faults) -> None:
        self._rng.choice(self._machines).stop(self._rng.uniform(0.05, faults.pause_max_s))

    def _partition(self, faults: Faults) -> None:
        machine = self._rng.choice(self._machines)
        seconds = self._rng.uniform(0.05, faults.partition_max_s)
        self._network.cut(self._rng.choice(self._heads), machine.node, seconds)
