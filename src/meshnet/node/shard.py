"""What the node asks of a shard: layers that run steps and keep one opaque state per session.

Two make it: the engine's torch shard and the simulation's toy shard. All calls but `description`
block, and run on the device's one compute thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from meshnet.core.vocabulary import (
    Activation,
    Drawn,
    LayerRange,
    LayerState,
    MeshnetError,
    ShardDescription,
    ShardStep,
)

S = TypeVar("S")

Result = Activation | Drawn | None
"""What leaves a step: None at a tail that was told to draw nothing."""


class Shard(Protocol[S]):
    """Loaded layers of one model. `S` is the KV cache of a session and, at the tail, its ids."""

    @property
    def description(self) -> ShardDescription:
        """What it is; `capabilities` may shrink after the first prefill proved them wrong."""
        ...

    def new_state(self, layers: LayerRange) -> S:
        """Return the state of a session that holds no position yet."""
        ...

    def state_bytes(self, state: S) -> int:
        """Return the allocated storage of `state`."""
        ...

    def run(self, step: ShardStep, state: S | None) -> Result:
        """Run one step, extending `state` in place; without a state, `step` is all positions.

        Guesses among the step's tokens stay
        in `state`, also those that were not drawn.

        Raises:
            StepTorn: failed after some layers had grown; `state` must not be used again.
            NumericalError: no token can be drawn from these logits.
            BadField, WrongShard, KVCacheMiss: before `state` was touched.
        """
        ...

    def run_batch(self, work: Sequence[tuple[ShardStep, S]]) -> Sequence[Result | MeshnetError]:
        """Run steps of several sessions through the same layers, each as `run` would.

        Asked only of shards whose `capabilities` say so. What is wrong with one step is its result
        (`MeshnetError.without_frames`), and the others run.

        Raises:
            StepTorn: failed after some layers had grown; none of the states may be used again.
        """
        ...

    def truncate(self, state: S, length: int) -> None:
        """Forget the positions from `length` on; asked only of shards whose `capabilities` say so.

        Raises:
            KVCacheMiss: not this state to this length.
        """
        ...

    def export_layer(self, state: S, layer: int) -> LayerState:
        """Return a copy of what one layer of a session holds; asked only of shards whose
        `capabilities` say that sessions move, as are the next two."""
        ...

    def restore_layer(self, state: S, layer: int, held: LayerState, length: int) -> None:
        """Put one layer into a fresh state that will hold `length` positions.

        Raises:
            BadField: `held` is no such layer; `state` is as it was.
        """
        ...

    def end_restore(self, state: S, tokens: Sequence[int]) -> None:
        """Say whose positions the restored layers hold.

        Raises:
            BadField: some layer is missing.
        """
        ...

    def text_of(self, token_id: int) -> str:
        """Return a token's text, for heads that know no ids (ADR-0022)."""
        ...
