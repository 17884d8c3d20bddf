"""One step of a session, as a shard is asked to run it."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.vocabulary.activations import Activation
from meshnet.core.vocabulary.drawing import SamplingParams
from meshnet.core.vocabulary.layers import LayerRange


@dataclass(frozen=True, slots=True)
class ShardStep:
    """One step for one shard: T new positions at `past_length`, through `layers`.

    A hop that starts at layer 0 gets token ids and embeds them; every other gets an
    `activation` whose hidden tensor is [..., T, hidden]. `tokens` are the ids of the T new
    positions where the head sent them, else empty (an ADR-0022 peer).
    `want_token` is False for a prefill chunk that is not the last: a tail then draws nothing.
    The last `drafts` of the tokens are guesses: the tail draws at each position from the one
    before the first guess on, and stops at the first draw that differs from the guess.
    """

    layers: LayerRange
    past_length: int
    length: int
    tokens: tuple[int, ...]
    activation: Activation | None
    sampling: SamplingParams
    want_token: bool = True
    drafts: int = 0
