"""One step on the compute thread, from its start to a value that says how it ended.

    waiting ──▶ unwanted (superseded, or its deadline has passed): nothing was touched
            ──▶ failed: the state may be torn
            ──▶ done: the state holds the step's positions

A step never raises: an error becomes a refusal here, in the thread, because an error that
travels keeps its frames, and with them the tensors of a session that is to be freed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic

from meshnet.core.protocol.messages import Code, Refusal
from meshnet.core.protocol.refusals import refusal_of
from meshnet.core.scheduling.steps import WaitingStep
from meshnet.core.sessions.entry import Lease
from meshnet.core.vocabulary import Drawn, MeshnetError, SamplingParams, ShardStep
from meshnet.node.leaving import LeavingRows
from meshnet.node.shard import Result, S, Shard


@dataclass(frozen=True, slots=True)
class Kept(Generic[S]):
    """What the store keeps for a session: the shard's state, how to draw, what left the layers.

    Sampling parameters travel with what starts a state, never with a decode.
    """

    state: S
    sampling: SamplingParams
    leaving: LeavingRows


@dataclass(frozen=True, slots=True)
class Spent:
    """What a step took: its wait, its batch from start to end, its own part; what it ran."""

    queue_s: float
    compute_s: float
    own_s: float
    batch: int
    positions: int


UNSPENT = Spent(0.0, 0.0, 0.0, 0, 0)
"""Of a step that did not run."""


@dataclass(frozen=True, slots=True)
class Done(Generic[S]):
    result: Result
    text: str
    state: S | None
    state_bytes: int
    spent: Spent
    leaving: LeavingRows


@dataclass(frozen=True, slots=True)
class Failed:
    """`bug` is the traceback if the error was not one of ours, else empty."""

    refusal: Refusal
    bug: str = ""

    @classmethod
    def by(cls, error: Exception) -> Failed:
        if isinstance(error, MeshnetError):
            return cls(refusal_of(error))
        if isinstance(error, MemoryError):
            return cls(Refusal(Code.OUT_OF_MEMORY, "out of memory in this step"))
        shown = "".join(traceback.format_exception(error))
        return cls(Refusal(Code.INTERNAL, f"{type(error).__name__} in this step"), shown)


class Unwanted(Enum):
    SPENT = "spent"
    SUPERSEDED = "superseded"


Outcome = Done[S] | Failed | Unwanted


class StepJob(Generic[S]):
    """A step to be run once, on the compute thread. `outcome` is None until it has ended.

    `waiting` is how the scheduler sees it. `state` is there while it runs.
    """

    def __init__(
        self,
        shard: Shard[S],
        step: ShardStep,
        lease: Lease[Kept[S]] | None,
        waiting: WaitingStep,
        *,
        wanted: Callable[[Lease[Kept[S]]], bool],
        clock: Callable[[], float],
        row_bytes: int = 0,
    ) -> None:
        """`row_bytes`: of a position, to be kept of what leaves the layers; 0 keeps nothing."""
        self.shard = shard
        self.step = step
        self.waiting = waiting
        self.clock = clock
        self._wanted, self._row_bytes = wanted, row_bytes
        self._asked_at = clock()
        self._began_at = 0.0
        self.lease = lease
        self.state: S | None = None
        self.outcome: Outcome[S] | None = None

    def begin(self) -> bool:
        """Get hold of the state. False: it ended here, and must not run."""
        self._began_at = self.clock()
        deadline = self.waiting.deadline
        if deadline is not None and self._began_at >= deadline:
            self.outcome = Unwanted.SPENT
        elif self.lease is not None and not self._wanted(self.lease):
            self.outcome = Unwanted.SUPERSEDED
        else:
            try:
                self.state = self._state()
            except Exception as error:  # noqa: BLE001  # boundary: see `fail`
                self.fail(error)
        return self.outcome is None

    def finish(self, result: Result, *, batch: int, share: float) -> None:
        """Take what the step gave, as one of `batch` and with its share of their work."""
        try:
            ids = result.ids if isinstance(result, Drawn) else ()
            text = "".join(map(self.shard.text_of, ids))
            state_bytes = 0 if self.state is None else self.shard.state_bytes(self.state)
            leaving = self._leaving(result)
        except Exception as error:  # noqa: BLE001  # boundary: see `fail`
            self.fail(error)
            return
        compute_s = self.clock() - self._began_at
        spent = Spent(
            self._began_at - self._asked_at, compute_s, compute_s * share, batch, self.step.length
        )
        self.outcome = Done(result, text, self.state, state_bytes, spent, leaving)
        self.state = None

    def fail(self, error: Exception) -> None:
        """End it by an error of ours, for want of memory, or by a bug: it costs no other step."""
        self.outcome = Failed.by(error)
        self.state = None

    def expire(self) -> None:
        """End it before it began: its deadline passed while it waited."""
        self.outcome = Unwanted.SPENT

    def let_go(self) -> None:
        """Drop what holds the session's state: frames and futures may outlive the step."""
        self.lease = self.state = self.outcome = None

    def _leaving(self, result: Result) -> LeavingRows:
        """Keep what left the layers beside what was kept of the session before."""
        lease = self.lease
        if lease is None:
            return LeavingRows(0)
        kept = lease.state
        rows = self._row_bytes if lease.keeps else 0
        leaving = LeavingRows(rows) if kept is None else kept.leaving
        leaving.put(self.step.past_length, result)
        return leaving

    def _state(self) -> S | None:
        if self.lease is None:
            return None
        if self.lease.state is None:
            return self.shard.new_state(self.lease.layers)
        state = self.lease.state.state
        if self.lease.truncate:
            self.shard.truncate(state, self.lease.length_before)
        return state


def run_alone(job: StepJob[S]) -> None:
    """Run a step if it is still wanted. Raises no Exception."""
    if not job.begin():
        return
    try:
        result = job.shard.run(job.step, job.state)
    except Exception as error:  # noqa: BLE001  # boundary: see `StepJob.fail`
        job.fail(error)
    else:
        job.finish(result, batch=1, share=1.0)


def run_together(jobs: list[StepJob[S]]) -> None:
    """Run those steps of one shard that are still wanted, in one call. Raises no Exception.

    What tears the batch tears the session of each of its steps.
    """
    begun = [job for job in jobs if job.begin()]
    if not begun:
        return
    try:
        results = _results(begun)
    except Exception as error:  # noqa: BLE001  # boundary: see `StepJob.fail`
        for job in begun:
            job.fail(error)
        return
    positions = sum(job.step.length for job in begun)
    for job, result in zip(begun, results, strict=True):
        if isinstance(result, MeshnetError):
            job.fail(result)
        else:
            job.finish(result, batch=len(begun), share=job.step.length / positions)


def _results(jobs: list[StepJob[S]]) -> list[Result | MeshnetError]:
    shard = jobs[0].shard
    if len(jobs) == 1:
        return [shard.run(jobs[0].step, jobs[0].state)]
    work = [(job.step, job.state) for job in jobs if job.state is not None]
    assert len(work) == len(jobs), "only steps of cached sessions run together"
    return list(shard.run_batch(work))
