"""What one layer of a session holds, as plain tensors: what travels when a session moves."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.vocabulary.activations import Buffer, TensorSpec


@dataclass(frozen=True, slots=True)
class LayerState:
    """Described tensors and their raw bytes, in order; a layer that caches nothing has none."""

    tensors: tuple[TensorSpec, ...]
    data: Buffer
    marks: tuple[int, ...] = ()
    """Rising lengths that the layer can go back to, where it cannot go back to any."""

    def __post_init__(self) -> None:
        expected = sum(spec.nbytes for spec in self.tensors)
        if len(self.data) != expected:
            raise ValueError(f"layer state: expected {expected} bytes, got {len(self.data)}")
