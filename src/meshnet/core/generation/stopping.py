"""When a generation is complete.

A stop id is emitted like any other token, so that usage counts it, and it ends the
generation with STOP even where it is also the last token allowed; else the last allowed
token ends it with LENGTH. `min_tokens` and `ignore_eos` are the caller's choice of
`stop_ids` and of banned ids in the sampling parameters; they are no rules of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.generation.transcript import FinishReason


@dataclass(frozen=True, slots=True)
class StopRules:
    stop_ids: frozenset[int]
    tokens_max: int
    forced: int = 0
    """The first so many tokens are told, not chosen: no stop id among them ends anything."""

    def __post_init__(self) -> None:
        if self.tokens_max < 1:
            raise ValueError(f"tokens_max: expected at least 1, got {self.tokens_max}")

    def after(self, token_id: int, *, generated: int) -> FinishReason | None:
        """Tell whether `token_id`, the `generated`-th token of the answer, is its last."""
        if token_id in self.stop_ids and generated > self.forced:
            return FinishReason.STOP
        if generated >= self.tokens_max:
            return FinishReason.LENGTH
        return None
