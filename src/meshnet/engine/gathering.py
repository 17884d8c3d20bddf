"""Layers that keep a state per session, in a forward over rows of several sessions.

Such a mixer (linear attention, a convolution, a state space) reads its rows in order, and would
take the next session's for the next position. So it is called once for all sessions that decode,
one above the other along the batch axis, and once for each chunk of a prompt:

    rows        a b c c c d                 along T, as everywhere else
    groups      a, b, d: [3, 1, D]          one row each, their states gathered
                c:       [1, 3, D]          by itself

Chunks fill a machine alone, and their sums over positions are in another order in a batch; a
single row is multiplied and added to a state, which rounds as it does alone.

Invariants
    * the rows of a session meet its own state and no other;
    * a mixer that is given any other tensor than its rows fails: such a shard does not batch.

Legend: B sessions of a group, T rows, D hidden.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DummyLayer

from meshnet.engine.states import gathered, kind_of, scatter, state_of, tensors_of
from meshnet.engine.together import LAYOUT, SharedCache
from meshnet.engine.trimming import TrimmedLayers

_UPDATES = ("update_conv_state", "update_recurrent_state")
"""What mixers call on a cache."""


def gather_states(layers: TrimmedLayers) -> None:
    """Let the mixers of the held layers take rows of several sessions."""
    for index in range(layers.held.start, layers.held.stop):
        for module in layers.layer(index).modules():
            if _is_mixer(module):
                module.forward = GatheringForward(module.forward, index)


def _is_mixer(module: nn.Module) -> bool:
    if not hasattr(module, "layer_idx"):
        return False
    source = inspect.getsource(type(module))
    return any(name in source for name in _UPDATES)


class GatheringForward:
    """The forward of the mixer of layer `index`, for one session or several."""

    def __init__(self, forward: Callable[..., Any], index: int) -> None:
        self._forward, self._index = forward, index

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        shared = next((v for v in (*args, *kwargs.values()) if isinstance(v, SharedCache)), None)
        if shared is None:
            return self._forward(*args, **kwargs)
        kwargs.pop(LAYOUT, None)
        rows_TD = self._rows(shared, (*args, *kwargs.values()))
        starts = list(accumulate(shared.lengths, initial=0))
        leaving: dict[int, Tensor] = {}
        for group in self._groups(shared):
            length = shared.lengths[group[0]]
            entering = [rows_TD[starts[session] : starts[session] + length] for session in group]
            caches = [shared.caches[session] for session in group]
            leaving_BTD = self._run(caches, torch.stack(entering), args, kwargs)
            leaving |= dict(zip(group, leaving_BTD, strict=True))
        return torch.cat([leaving[session] for session in range(len(starts) - 1)])[None]

    def _rows(self, shared: SharedCache, values: Sequence[Any]) -> Tensor:
        tensors = [value for value in values if isinstance(value, Tensor)]
        if len(tensors) != 1 or tensors[0].shape[:2] != (1, sum(shared.lengths)):
            raise TypeError(f"layer {self._index}: a mixer that takes more than rows")
        rows_TD: Tensor = tensors[0][0]
        return rows_TD

    def _groups(self, shared: SharedCache) -> list[list[int]]:
        """The sessions, by numbers, that go through in one call each."""
        groups: dict[object, list[int]] = {}
        for session, (cache, length) in enumerate(zip(shared.caches, shared.lengths, strict=True)):
            layer = cache.layers[self._index]
            decodes = length == 1 and any(True for _ in tensors_of(state_of(layer)))
            groups.setdefault(kind_of(layer) if decodes else session, []).append(session)
        return list(groups.values())

    def _run(
        self, caches: Sequence[Any], entering_BTD: Tensor, args: Sequence[Any], kwargs: Any
    ) -> Tensor:
        layers = [cache.layers[self._index] for cache in caches]
        cache = caches[0]
        if len(caches) > 1:
            cache = Cache(layers=[*(DummyLayer() for _ in range(self._index)), gathered(layers)])

        def put(value: Any) -> Any:
            if isinstance(value, SharedCache):
                return cache
            return entering_BTD if isinstance(value, Tensor) else value

        named = {name: put(value) for name, value in kwargs.items()}
        leaving_BTD: Tensor = self._forward(*map(put, args), **named)
        if len(caches) > 1:
            scatter(cache.layers[self._index], layers)
        return leaving_BTD
