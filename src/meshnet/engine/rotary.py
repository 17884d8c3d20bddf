"""Rotary embeddings whose factors depend on how long the sequence is.

longrope turns every key by other factors once a sequence is longer than the original context;
dynamic NTK by other factors for every further position. Keys that were cached before such a
change were turned by the old factors, so what a cached step would compute is neither model.
So the step is a miss. For longrope one prefill of everything mends it; beyond dynamic NTK's limit
no cache is ever right, and the generation goes on stateless.

transformers 5.24 does the former in `generate` (Phi-3's `prepare_inputs_for_generation`) and
not the latter: its cached `generate` mixes factors, and depends on what ran before in the same
process, since the rotary module remembers the longest sequence seen. Its uncached forward is the
meaning of the model, and what a shard computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from meshnet.core.vocabulary import MissReason


@dataclass(frozen=True, slots=True)
class RotaryLimit:
    """Up to which length cached keys keep their meaning."""

    length: int
    beyond: bool
    """Whether a cache made beyond `length` can be extended (longrope)."""

    @property
    def reason(self) -> MissReason:
        """What a forbidden step is answered with: refill once, or do without a cache."""
        return MissReason.POSITION_LIMIT if self.beyond else MissReason.CACHING_OFF

    def forbids(self, past_length: int, length: int) -> bool:
        """Whether a step from `past_length` to `length` needs a cache made anew."""
        if past_length == 0 or length <= self.length:
            return False
        return not self.beyond or past_length <= self.length


def rotary_limit(config: Any) -> RotaryLimit | None:
    """The limit of this text configuration; None for rotary embeddings that never change."""
    limits = []
    for parameters in _rope_parameters(config):
        kind = parameters.get("rope_type", "default")
        if kind == "longrope":
            original = parameters.get("original_max_position_embeddings")
            if original is None:
                original = getattr(config, "original_max_position_embeddings", None)
            limits.append(RotaryLimit(int(original or config.max_position_embeddings), True))
        elif "dynamic" in kind:
            limits.append(RotaryLimit(int(config.max_position_embeddings), False))
    return min(limits, key=lambda limit: (limit.beyond, limit.length), default=None)


def extended_context(config: Any, length: int) -> int:
    """The context length of a configuration: dynamic NTK reaches `factor` times further."""
    for parameters in _rope_parameters(config):
        if "dynamic" in parameters.get("rope_type", "default"):
            return int(length * float(parameters.get("factor", 1.0)))
    return length


def _rope_parameters(config: Any) -> Iterator[dict[str, Any]]:
    """The rotary parameters, one set per layer type where a model has several."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return
    if any(isinstance(value, dict) for value in parameters.values()):
        yield from (value for value in parameters.values() if isinstance(value, dict))
    else:
        yield parameters


@dataclass(frozen=True, slots=True)
class DynamicRotary:
    """A rotary module's factors, for one layer type, that follow the longest sequence seen."""

    module: Any
    prefix: str

    def forget(self) -> None:
        """Make the next step depend on its own length alone, whatever ran before."""
        buffers = self.module._buffers
        buffers[f"{self.prefix}inv_freq"] = buffers[f"{self.prefix}original_inv_freq"]
        setattr(self.module, f"{self.prefix}max_seq_len_cached", self.module.original_max_seq_len)


def dynamic_rotaries(decoder: nn.Module) -> list[DynamicRotary]:
    """Everything in `decoder` that remembers the longest sequence it saw."""
    found = []
    for module in decoder.modules():
        kinds = getattr(module, "rope_type", None)
        by_prefix = (
            {f"{layer_type}_": kind for layer_type, kind in kinds.items()}
            if isinstance(kinds, dict)
            else {"": kinds}
        )
        for prefix, kind in by_prefix.items():
            if isinstance(kind, str) and "dynamic" in kind:
                found.append(DynamicRotary(module, prefix))
    return found
