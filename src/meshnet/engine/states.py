"""States that sum up all positions so far: of convolutions, linear attention and state spaces.

transformers keeps those of a layer in dictionaries of tensors, with a batch axis in front, and
changes them in place. No position can be taken out of them again. But they can be copied, and the
sessions' states can stand side by side along the batch axis:

    sessions        a [1, ...]   b [1, ...]   c [1, ...]
    gathered        [3, ...]     one step of a layer, then back

Invariants
    * a copy shares no memory with what it is a copy of, and nothing changes it;
    * of a gathered state every session gets its own part, and nobody's memory hangs on another's.

Source: transformers 5.24 `cache_utils.LinearAttentionCacheLayerMixin`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

State = dict[str, dict[int, Any]]
"""What a layer keeps, by name and number: tensors, and what says which are in use."""


def has_state(layer: Any) -> bool:
    """Whether a layer of a cache sums up what it saw, perhaps beside keys and values."""
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def state_of(layer: Any) -> State:
    return {name: part for name, part in vars(layer).items() if isinstance(part, dict)}


def tensors_of(state: State) -> Iterator[Tensor]:
    for part in state.values():
        yield from (value for value in part.values() if isinstance(value, Tensor))


def copied(state: State) -> State:
    return {
        name: {key: _copied(value) for key, value in part.items()} for name, part in state.items()
    }


def put_back(layer: Any, state: State) -> None:
    """Let `layer` be what it was when `state` was copied from it; the copy stays as it is."""
    for name, part in copied(state).items():
        setattr(layer, name, part)


def gathered(layers: Sequence[Any]) -> Any:
    """One layer that holds the states of one layer of several sessions, all of one kind."""
    whole = copy.copy(layers[0])
    for name, part in state_of(layers[0]).items():
        parts = [getattr(layer, name) for layer in layers]
        setattr(whole, name, {key: _side_by_side([each[key] for each in parts]) for key in part})
    return whole


def scatter(whole: Any, layers: Sequence[Any]) -> None:
    """Give every session its part of a gathered state."""
    for name, part in state_of(whole).items():
        for at, layer in enumerate(layers):
            own = getattr(layer, name)
            for key, value in part.items():
                if isinstance(value, Tensor):
                    assert isinstance(own[key], Tensor), "a state that began in company"
                    own[key].copy_(value[at : at + 1])


def kind_of(layer: Any) -> tuple[object, ...]:
    """What must be equal for states to be gathered."""
    return tuple(
        (name, key, value.shape[1:] if isinstance(value, Tensor) else value)
        for name, part in state_of(layer).items()
        for key, value in part.items()
    )


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _side_by_side(values: Sequence[Any]) -> Any:
    return torch.cat(list(values)) if isinstance(values[0], Tensor) else values[0]
