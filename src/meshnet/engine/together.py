"""One forward over rows of several sessions, each of which keeps a cache of its own.

Rows stand one after the other along T, and most of a layer sees nothing but rows. Where a layer
looks at other positions, it is told whose they are:

    attention       keys say whose rows they are (cache.py), and are read session by session
    MLA             keys are made anew from all that is cached: one session's behind the other's,
                    cut again before attention by the lengths that travel as `LAYOUT`
    states          of linear attention, convolutions and state spaces: gathering.py

Invariants
    * what a forward appends or sums up ends in the caches of the sessions; nothing is kept here;
    * a layer that asks for more than it is told fails: such a shard runs sessions one by one.

Legend: B batch (1), H heads, T rows, S positions of a session, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DummyLayer

from meshnet.engine.cache import KVLayer, Rows, mark_rows
from meshnet.engine.kv import KVBuffer
from meshnet.engine.states import has_state

LAYOUT = "meshnet_layout"
"""Keyword under which `Layout` travels through a model to its attention."""
Layout = tuple[tuple[int, int], ...]
"""How many keys and how many rows each session has."""


class SharedLayer(DummyLayer):  # type: ignore[misc]
    """One layer of several sessions, whose rows stand one after the other."""

    def __init__(self, parts: Sequence[tuple[KVBuffer, int]], *, latent: bool) -> None:
        super().__init__()
        self._parts, self._latent = parts, latent

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append every row to its own session's buffer; what it returns says whose they are."""
        start = 0
        for buffer, length in self._parts:
            rows = slice(start, start + length)
            buffer.append(key_states[0, :, rows], value_states[0, :, rows])
            start += length
        if self._latent:
            return self._all_cached()
        keys = key_states.view(key_states.shape)
        mark_rows(keys, tuple(Rows(buffer, length) for buffer, length in self._parts))
        return keys, value_states

    def _all_cached(self) -> tuple[Tensor, Tensor]:
        """All positions of all sessions, of which keys are made anew: BHSD."""
        held = [buffer.last(buffer.length) for buffer, _ in self._parts]
        keys, values = zip(*held, strict=True)
        return torch.cat(keys, dim=1)[None], torch.cat(values, dim=1)[None]


class SharedCache(Cache):  # type: ignore[misc]
    """What a forward over `lengths` rows of each of `caches` updates."""

    def __init__(self, caches: Sequence[Any], lengths: Sequence[int], *, latent: bool) -> None:
        super().__init__(layers=list(_layers(caches, lengths, latent=latent)))
        self.caches, self.lengths = caches, lengths

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Sessions have lengths of their own: positions are given, and no mask is made."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


def _layers(caches: Sequence[Any], lengths: Sequence[int], *, latent: bool) -> Sequence[Any]:
    layers = []
    for index, layer in enumerate(caches[0].layers):
        if isinstance(layer, KVLayer):
            buffers = [cache.layers[index].buffer for cache in caches]
            parts = list(zip(buffers, lengths, strict=True))
            layers.append(SharedLayer(parts, latent=latent))
        else:
            layers.append(DummyLayer())
    return layers


def can_be_together(cache: Any) -> bool:
    """Whether caches like this one can be updated by one forward."""
    return bool(cache.layers) and all(
        isinstance(layer, KVLayer | DummyLayer) or has_state(layer) for layer in cache.layers
    )


def layout_of(caches: Sequence[Any], lengths: Sequence[int]) -> Layout:
    """What `LAYOUT` says of a forward, before it extends the caches."""
    return tuple(
        (cache.length + length, length) for cache, length in zip(caches, lengths, strict=True)
    )
