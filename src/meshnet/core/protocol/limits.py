"""How much one message may carry, checked before a body is read or anything allocated."""

from __future__ import annotations

from dataclasses import dataclass

STEPS_OUT_MAX = 8
"""What a session may have on its way over one stream, steps that were overtaken included."""
LINK_BYTES_MAX = 2**20
"""Of a body by which the way to a node is measured."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of one message (docs/wire.md); a node and its clients hold one each."""

    header_bytes: int = 4096
    """All X-Meshnet-* names and values of one message together."""
    meta_bytes: int = 4 * 2**20
    """The JSON meta block; a prefill carries all token ids in it."""
    body_bytes: int = 256 * 2**20
    """A whole request or reply body, meta block included."""
    json_bytes: int = 2**20
    """Any other JSON body: reservations, descriptions, errors, the tail's answer."""
    json_containers: int = 512
    """Arrays and objects in one JSON text, which bounds its nesting too."""
    positions: int = 2**20
    """Past length plus new positions of a session."""
    tensors: int = 16
    """Tensors of one activation."""
    dimensions: int = 8
    """Dimensions of one tensor."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
