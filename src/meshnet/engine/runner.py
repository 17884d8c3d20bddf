"""What runs layers over the new positions of one or of several sessions.

Rows of all sessions stand one after the other along T; the batch axis stays 1:

    segment     0        1      2
    session     a a a    b      c c
    position    7 8 9    120    0 1

Two runners exist: transformers' own forward for every architecture (forward.py), and a short one
for the Llama skeleton (lean.py). Both keep their keys and values in the same caches (cache.py).

Legend: B batch (1), T new positions, D hidden, L layers, P per-layer input, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from meshnet.core.vocabulary import LayerRange


@dataclass(frozen=True, slots=True)
class Passing:
    """Hidden states between shards, BTD or with leading axes, and Gemma's per-layer inputs."""

    hidden: Tensor
    per_layer_inputs_BTLP: Tensor | None = None
    """Rows of the layers still to run, only."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` new positions of one session, from `past_length` on.

    Without a cache they are the whole sequence.
    """

    past_length: int
    length: int
    cache: Any | None

    @property
    def stop(self) -> int:
        return self.past_length + self.length


class Runner(Protocol):
    """Runs held layers and extends the caches of the segments; blocking, one call at a time."""

    @property
    def batches(self) -> bool:
        """Whether several segments may share a call. Their rows then come out as they would alone
        (bitwise in canonical arithmetic)."""
        ...

    @property
    def attention(self) -> str:
        """Name of what decides the low bits of a result beside the weights' format."""
        ...

    @property
    def held(self) -> LayerRange: ...
    @property
    def total(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def leading_axes(self) -> tuple[int, ...]: ...
    @property
    def per_layer_width(self) -> int: ...

    def new_cache(self, layers: LayerRange) -> Any:
        """Return an empty cache for a session that runs `layers`."""
        ...

    def passing(
        self, entering: Tensor | Passing, layers: LayerRange, segments: Sequence[Segment]
    ) -> Passing:
        """Run `layers` over ids BT or hidden states and return what leaves the last of them.

        At the model's last layer that is the hidden state after the final norm.
        """
        ...

    def logits(
        self,
        entering: Tensor | Passing,
        layers: LayerRange,
        segments: Sequence[Segment],
        rows: Sequence[int],
    ) -> Tensor:
        """Run `layers`, which end at the model's last; logits of `rows` along T, in their order."""
        ...


def positions_of(entering: Tensor | Passing, start: int, stop: int) -> Tensor | Passing:
    """The positions [start, stop) of ids BT or hidden states."""
    if not isinstance(entering, Passing):
        return entering[:, start:stop]
    rows = entering.per_layer_inputs_BTLP
    return Passing(
        entering.hidden[..., start:stop, :], None if rows is None else rows[:, start:stop]
    )


def side_by_side(entering: Iterable[Tensor | Passing]) -> Tensor | Passing:
    """Put the positions of several sessions behind each other: ids, or what left a hop before."""
    ids = [part for part in entering if isinstance(part, Tensor)]
    if ids:
        return torch.cat(ids, 1)
    return joined([part for part in entering if isinstance(part, Passing)])


def joined(parts: Sequence[Passing]) -> Passing:
    """The positions of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    rows = [part.per_layer_inputs_BTLP for part in parts]
    return Passing(
        torch.cat([part.hidden for part in parts], dim=-2),
        None if rows[0] is None else torch.cat([row for row in rows if row is not None], dim=1),
    )
