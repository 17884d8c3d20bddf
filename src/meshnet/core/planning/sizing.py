"""ADR-0022's rule of thumb: what sessions take, from five numbers of a configuration.

    2 (keys and values) x layers x KV heads x head size x bytes x positions x sessions

It is exact for layers that attend to everything. Windows and recurrent states take less, latent
attention takes other numbers: `ModelShape` knows them, since it runs the model's own code.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.core.vocabulary import BadField

CELL = 256
"""Positions are allocated in such cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What a configuration says of the K/V of its layers. Raises BadField: below 1."""

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    """4 in fp32 (and with int8 weights), 2 in bf16 and fp16."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise BadField(name, "at least 1", getattr(self, name))

    @property
    def token_bytes(self) -> int:
        """Keys and values of one position, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes

    def kv_bytes(self, *, tokens: int, sessions: int = 1) -> int:
        """What sessions of so many tokens take. Raises BadField: below 1."""
        for name, value in (("tokens", tokens), ("sessions", sessions)):
            if value < 1:
                raise BadField(name, "at least 1", value)
        return sessions * -(-tokens // CELL) * CELL * self.token_bytes
