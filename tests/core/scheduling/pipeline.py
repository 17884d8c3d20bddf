"""A pipeline of nodes in discrete events: each has a scheduler, a device and its share of layers.

A batch of M rows costs `share * (1 + 0.06 (M - 1))`, which is what int8 weights cost on the
reference machine: 8 rows 1.4 times one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from meshnet.core.scheduling.scheduler import StepScheduler
from meshnet.core.scheduling.steps import StepId, WaitingStep
from meshnet.core.vocabulary import LayerRange, ModelId, SessionId

PER_ROW = 0.06


def cost(rows: int) -> float:
    return 1.0 + PER_ROW * (rows - 1)


class Pipeline:
    """Sessions that go round and round; `stages` is what each node is told."""

    def __init__(self, sessions: int, shares: Sequence[float], stages: Sequence[int]) -> None:
        self._shares, self._stages = shares, stages
        self._schedulers = [StepScheduler() for _ in shares]
        self._sessions: list[dict[StepId, int]] = [{} for _ in shares]
        self._busy = [False for _ in shares]
        self._events: list[tuple[float, int, int, tuple[int, ...], bool]] = []
        self._order = count()
        for session in range(sessions):
            self._push(0.0, 0, (session,), ends=False)

    def throughput(self, tokens: int) -> float:
        """Tokens per unit of time, over the second half of `tokens`."""
        done, halfway = 0, 0.0
        while True:
            now, _, node, sessions, ends = heapq.heappop(self._events)
            if not ends:
                self._wait(node, sessions[0])
            else:
                self._busy[node] = False
                if node == len(self._shares) - 1:
                    done += len(sessions)
                for session in sessions:
                    self._push(now, (node + 1) % len(self._shares), (session,), ends=False)
            if done >= tokens:
                return (tokens - tokens // 2) / (now - halfway)
            if done <= tokens // 2:
                halfway = now
            if not self._events or self._events[0][0] > now:
                self._start_all(now)

    def _wait(self, node: int, session: int) -> None:
        step = WaitingStep(
            ModelId("m"),
            LayerRange(node, node + 1),
            SessionId(f"s{session}"),
            f"s{session}",
            positions=1,
            stages=self._stages[node],
        )
        self._sessions[node][self._schedulers[node].add(step)] = session

    def _start_all(self, now: float) -> None:
        for node, share in enumerate(self._shares):
            if self._busy[node]:
                continue
            batch = self._schedulers[node].next_batch(now).run
            if batch:
                self._busy[node] = True
                sessions = tuple(self._sessions[node].pop(step_id) for step_id in batch)
                self._push(now + share * cost(len(batch)), node, sessions, ends=True)

    def _push(self, at: float, node: int, sessions: tuple[int, ...], *, ends: bool) -> None:
        heapq.heappush(self._events, (at, next(self._order), node, sessions, ends))
