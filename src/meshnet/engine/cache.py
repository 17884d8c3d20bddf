"""The cache of one session on one shard: transformers' own, told which layers are here.

transformers asks a cache for its length through some layer, often layer 0, which on most shards
is empty: the answers would be wrong, and masks with them, silently. So slots of other shards are
`DummyLayer`, which every such probe skips, and the length is a counter of ours. Keys and values of
full, sliding and MLA layers are in buffers of ours (kv.py) behind transformers' interface; linear,
convolutional and hybrid layers stay transformers' own.

    layer index    0        1        2       3
    held [1, 3)    Dummy    KVLayer  KVLayer Dummy
                              |
                              update(keys, values) -> views of a buffer, which say whose they are

Invariants
    * `length` is the number of positions every local layer has seen, or the cache is torn;
    * nothing reads a length off a layer that is not ours.

Source: transformers 5.24 `cache_utils`; `masking_utils.find_first_full_attention_index`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor
from transformers.cache_utils import (
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from meshnet.core.vocabulary import KVBytes, LayerRange
from meshnet.engine.kv import KEY_GRID, BufferedLayer, KVBuffer, cell_stop, kept_max
from meshnet.engine.states import State, copied, has_state, put_back, state_of, tensors_of

_ROWS = "meshnet_rows"


@dataclass(frozen=True, slots=True)
class Rows:
    """The last `length` positions of a buffer, in the order in which a call has its rows."""

    buffer: KVBuffer
    length: int

    @property
    def past_length(self) -> int:
        return self.buffer.length - self.length


def rows_of(keys: Tensor) -> Sequence[Rows] | None:
    """Whose rows `keys` are, if they are what a `KVLayer` returned and not made from it."""
    rows: Sequence[Rows] | None = getattr(keys, _ROWS, None)
    return rows


def mark_rows(keys: Tensor, rows: Sequence[Rows]) -> None:
    """Let `keys` say whose rows they are."""
    setattr(keys, _ROWS, rows)


class KVLayer(CacheLayerMixin, BufferedLayer):  # type: ignore[misc]
    """Keys and values of one layer; `window` positions up to its own are what a row sees."""

    buffer: KVBuffer

    def __init__(self, window: int | None = None) -> None:
        CacheLayerMixin.__init__(self)
        self.buffer = KVBuffer(window)
        self.is_sliding = window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append and return what the new rows may see, as transformers' own layers would."""
        length = key_states.shape[-2]
        before, _ = self.get_mask_sizes(0)
        self.buffer.append(key_states[0], value_states[0])
        keys_HSD, values_HSD = self.buffer.last(before + length)
        keys_BHSD = keys_HSD[None]
        mark_rows(keys_BHSD, (Rows(self.buffer, length),))
        return keys_BHSD, values_HSD[None]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length of what a step of `query_length` sees, and the position of its first key."""
        length, window = self.buffer.length, self.buffer.window
        before = length if window is None else min(length, window - 1)
        return before + query_length, length - before

    def get_seq_length(self) -> int:
        return self.buffer.length

    def get_max_length(self) -> int:
        return -1 if self.buffer.window is None else self.buffer.window


class HybridLayer(LinearAttentionLayer, KVLayer):  # type: ignore[misc]
    """A state beside keys and values (Falcon-H1)."""

    def __init__(self, number_of_states: int = 1) -> None:
        KVLayer.__init__(self)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class _LocalLayers:
    """What turns a transformers cache into the cache of a shard; mixed into its class."""

    layers: list[Any]
    length: int
    local: LayerRange
    copies: dict[int, dict[int, State]]
    """By length of the session and layer: states as they were then."""

    def keep_only(self, local: LayerRange) -> None:
        self.local, self.length, self.copies = local, 0, {}
        self.layers = [
            _own(layer) if local.start <= index < local.stop else DummyLayer()
            for index, layer in enumerate(self.layers)
        ]

    def settle(self, length: int) -> None:
        """Note that every layer has seen `length` positions."""
        self.length = length
        for layer in self.layers:
            if isinstance(layer, KVLayer) and layer.is_sliding:
                layer.buffer.settle()

    def keep_copies(self, lengths: Collection[int]) -> None:
        """Keep copies of the states at these lengths, and no others.

        One of the present is made if its length is among them; others that are not there are not.
        """
        self.copies = {at: copies for at, copies in self.copies.items() if at in lengths}
        if self.length in lengths and self.length not in self.copies:
            self.copies[self.length] = {
                index: copied(state_of(layer))
                for index, layer in enumerate(self.layers)
                if has_state(layer)
            }

    def can_truncate(self, length: int) -> bool:
        """Whether the session could go on from `length` as if it had never been longer."""
        if not self.layers or (sums_up(self) and length not in self.copies):
            return False
        return all(
            layer.buffer.can_truncate(length)
            if isinstance(layer, KVLayer)
            else isinstance(layer, DummyLayer) or has_state(layer)
            for layer in self.layers
        )

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on; states are put back."""
        for index, layer in enumerate(self.layers):
            if isinstance(layer, KVLayer):
                layer.buffer.truncate(length)
            if has_state(layer):
                put_back(layer, self.copies[length][index])
        self.copies = {at: copies for at, copies in self.copies.items() if at <= length}
        self.length = length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        layer = self.layers[layer_idx] if layer_idx < len(self.layers) else None
        if getattr(layer, "is_sliding", False):
            sizes: tuple[int, int] = layer.get_mask_sizes(query_length)  # type: ignore[union-attr]
            return sizes
        return self.length + query_length, 0


class ShardCache(_LocalLayers, DynamicCache):  # type: ignore[misc]
    """`DynamicCache` for a range of layers at absolute indices."""


def cache_class(decoder: Any) -> type[Any]:
    """The class of this decoder's caches: ours, or ours over the model's own (MiniMax)."""
    module = sys.modules[type(decoder).__module__]
    for value in vars(module).values():
        own = isinstance(value, type) and issubclass(value, DynamicCache)
        if own and value.__module__ == module.__name__:
            return type(f"Shard{value.__name__}", (_LocalLayers, value), {})
    return ShardCache


def new_cache(kind: type[Any], config: Any, local: LayerRange) -> Any:
    """An empty cache for `local`. A model's own cache class takes no config."""
    cache = kind(config=config) if kind is ShardCache else kind()
    cache.keep_only(local)
    return cache


def _own(layer: Any) -> Any:
    """`layer`, or ours in its place if it holds nothing but keys and values."""
    if type(layer) is DynamicLayer:
        return KVLayer()
    if type(layer) is DynamicSlidingWindowLayer:
        return KVLayer(layer.sliding_window)
    if type(layer) is LinearAttentionAndFullAttentionLayer:
        return HybridLayer(layer.number_of_states)
    return layer


def tensors(cache: Any) -> Iterator[tuple[int, Tensor]]:
    """Every tensor the cache holds with its layer's index, whatever the kind of layer."""
    for index, layer in enumerate(cache.layers):
        held = vars(layer)
        if isinstance(layer, BufferedLayer):
            yield from ((index, part) for part in layer.buffer.tensors())
        for name, value in held.items():
            if name.startswith("_"):
                continue
            if isinstance(value, Tensor):
                yield index, value
            elif isinstance(value, dict):
                for part in value.values():
                    if isinstance(part, Tensor):
                        yield index, part
    for index, value in enumerate(getattr(cache, "linear_cache", ())):
        if isinstance(value, Tensor):
            yield index, value
    for copies in getattr(cache, "copies", {}).values():
        for index, state in copies.items():
            yield from ((index, tensor) for tensor in tensors_of(state))


def kv_bytes(prefilled: Sequence[tuple[int, Any]], context: int | None = None) -> KVBytes:
    """What a session takes, from caches after prefills of several lengths.

    Known for layers of ours; for others a line above all that was measured. No session is longer
    than `context`, whatever a window keeps.
    """
    longest = math.inf if context is None else cell_stop(context - 1)
    per_token = fixed = 0
    for layer in prefilled[-1][1].layers:
        if isinstance(layer, BufferedLayer) and layer.buffer.capacity:
            position_bytes = layer.buffer.nbytes // layer.buffer.capacity
            if layer.buffer.window is None:
                per_token += position_bytes
            else:
                fixed += position_bytes * int(min(kept_max(layer.buffer.window), longest))
    sizes = [(length, _others_bytes(cache)) for length, cache in prefilled]
    slopes = [
        (later - earlier) / (length - start)
        for (start, earlier), (length, later) in pairwise(sizes)
    ]
    slope = math.ceil(max(slopes, default=0))
    fixed += max(0, *(size - slope * length for length, size in sizes))
    return KVBytes(per_token + slope, fixed, KEY_GRID)


def sums_up(cache: Any) -> bool:
    """Whether some layer keeps a state that cannot be shortened, only put back."""
    return any(has_state(layer) for layer in cache.layers)


def copy_bytes(cache: Any) -> int:
    """What one copy of the states of `cache` takes."""
    states = [state_of(layer) for layer in cache.layers if has_state(layer)]
    return sum(tensor.nbytes for state in states for tensor in tensors_of(state))


def _others_bytes(cache: Any) -> int:
    ours = [layer.buffer for layer in cache.layers if isinstance(layer, BufferedLayer)]
    counted = {id(tensor) for buffer in ours for tensor in buffer.tensors()}
    return _distinct_bytes(tensor for _, tensor in tensors(cache) if id(tensor) not in counted)


def allocated_bytes(cache: Any) -> int:
    """Bytes of the distinct storages held: transformers' layers may keep views of larger ones."""
    return _distinct_bytes(tensor for _, tensor in tensors(cache))


def grows_by_cells(cache: Any) -> bool:
    """Whether all that the cache holds grows by whole cells of positions."""
    return all(
        isinstance(layer, DummyLayer) or (isinstance(layer, BufferedLayer) and not has_state(layer))
        for layer in cache.layers
    ) and not hasattr(cache, "linear_cache")


def _distinct_bytes(held: Iterable[Tensor]) -> int:
    storages = {}
    for tensor in held:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()  # on the meta device no address tells
    return sum(storages.values())


def unfilled_layers(cache: Any) -> list[int]:
    """Local layers that should hold state after a prefill and hold none.

    Layers swallow unknown keyword arguments, so this is the only sign that they do not cache.
    """
    filled = {index for index, tensor in tensors(cache) if tensor.numel()}
    stateful = [
        index
        for index in range(cache.local.start, cache.local.stop)
        if index >= len(cache.layers) or not isinstance(cache.layers[index], DummyLayer)
    ]
    return [index for index in stateful if index not in filled]
