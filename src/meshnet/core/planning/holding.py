"""What layers take of a node's memory, and how fast a node reads them from it."""

from __future__ import annotations

from itertools import accumulate

from meshnet.core.planning.shape import ModelShape, Wanted
from meshnet.core.planning.times import reading_rate
from meshnet.core.vocabulary import LayerRange, Speed


class Needs:
    """Of any range of a model's layers, for what is wanted."""

    def __init__(self, shape: ModelShape, wanted: Wanted) -> None:
        self._shape, self._sessions = shape, wanted.sessions
        layers = shape.layers
        self._weights = [*accumulate((layer.weight_bytes for layer in layers), initial=0)]
        kv = (layer.kv_bytes.of(wanted.context) for layer in layers)
        self._kv = [*accumulate(kv, initial=0)]

    def weight_bytes(self, layers: LayerRange) -> int:
        ends = self._shape.common_bytes + self._shape.ends_bytes(layers)
        return ends + self._weights[layers.stop] - self._weights[layers.start]

    def kv_bytes(self, layers: LayerRange) -> int:
        return self._sessions * (self._kv[layers.stop] - self._kv[layers.start])

    def all_bytes(self, layers: LayerRange) -> int:
        return self.weight_bytes(layers) + self.kv_bytes(layers)

    def rate(self, speed: Speed, layers: LayerRange, *, shared: bool) -> float:
        """Bytes a second at which a node reads its weights.

        What passes through the caches of a machine between two steps of a node is all that it
        holds: the layers of others there too, which may be all the rest of the model.
        """
        last = layers.stop == len(self._shape.layers)
        own = self._weights[layers.stop] - self._weights[layers.start]
        rate = reading_rate(speed, own + self._shape.head_bytes * last)
        if not shared:
            return rate
        return min(rate, reading_rate(speed, self._weights[-1] + self._shape.head_bytes))
