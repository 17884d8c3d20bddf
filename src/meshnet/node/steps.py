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
from meshnet.core.sessions.entry import Lease
from meshnet.core.vocabulary import (
    Activation,
    Drawn,
    MeshnetError,
    SamplingParams,
    ShardStep,
)
from meshnet.node.shard import S, Shard


@dataclass(frozen=True, slots=True)
class Kept(Generic[S]):
    """What the store keeps for a session: the shard's state, and how its tokens are drawn.

    Sampling parameters travel with what starts a state, never with a decode.
    """

    state: S
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Done(Generic[S]):
    result: Activation | Drawn | None
    text: str
    state: S | None
    state_bytes: int
    compute_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """`bug` is the traceback if the error was not one of ours, else empty."""

    refusal: Refusal
    bug: str = ""


class Unwanted(Enum):
    SPENT = "spent"
    SUPERSEDED = "superseded"


Outcome = Done[S] | Failed | Unwanted


class StepJob(Generic[S]):
    """A step to be called once, on the compute thread. `outcome` is None until it has ended."""

    def __init__(
        self,
        shard: Shard[S],
        step: ShardStep,
        lease: Lease[Kept[S]] | None,
        *,
        wanted: Callable[[Lease[Kept[S]]], bool],
        deadline: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._shard = shard
        self._step = step
        self._wanted = wanted
        self._deadline = deadline
        self._clock = clock
        self.lease = lease
        self.outcome: Outcome[S] | None = None

    def __call__(self) -> None:
        self.outcome = self._end()

    def let_go(self) -> None:
        """Drop what holds the session's state: frames and futures may outlive the step."""
        self.lease = None
        self.outcome = None

    def _end(self) -> Outcome[S]:
        if self._deadline is not None and self._clock() >= self._deadline:
            return Unwanted.SPENT
        if self.lease is not None and not self._wanted(self.lease):
            return Unwanted.SUPERSEDED
        try:
            return self._run()
        except MeshnetError as error:
            return Failed(refusal_of(error))
        except MemoryError:
            return Failed(Refusal(Code.OUT_OF_MEMORY, "out of memory in this step"))
        except Exception as error:  # noqa: BLE001  # boundary: a bug costs one step, not the node
            shown = "".join(traceback.format_exception(error))
            return Failed(Refusal(Code.INTERNAL, f"{type(error).__name__} in this step"), shown)

    def _run(self) -> Done[S]:
        started = self._clock()
        state = self._state()
        result = self._shard.run(self._step, state)
        ids = result.ids if isinstance(result, Drawn) else ()
        text = "".join(map(self._shard.text_of, ids))
        state_bytes = 0 if state is None else self._shard.state_bytes(state)
        return Done(result, text, state, state_bytes, self._clock() - started)

    def _state(self) -> S | None:
        if self.lease is None:
            return None
        if self.lease.state is None:
            return self._shard.new_state(self.lease.layers)
        state = self.lease.state.state
        if self.lease.truncate:
            self._shard.truncate(state, self.lease.length_before)
        return state
