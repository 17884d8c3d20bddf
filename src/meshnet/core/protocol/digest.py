"""Which token ids a prefix holds, in 16 hex digits, kept up to date as positions are added.

Two prefixes of equal length and equal digest hold the same ids: blake2b with 64 bits over the
ids as little-endian 32-bit words. `extend` returns a new value; nothing is changed in place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 8


class PrefixDigest:
    """Running digest of the ids of positions [0, length)."""

    __slots__ = ("_hash", "length")

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self.length = 0

    @classmethod
    def of(cls, token_ids: Sequence[int]) -> PrefixDigest:
        return cls().extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> PrefixDigest:
        """Return the digest of this prefix followed by `token_ids`, each in [0, 2**32)."""
        longer = PrefixDigest.__new__(PrefixDigest)
        longer._hash = self._hash.copy()
        longer._hash.update(struct.pack(f"<{len(token_ids)}I", *token_ids))
        longer.length = self.length + len(token_ids)
        return longer

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrefixDigest):
            return NotImplemented
        return self.length == other.length and self.hex == other.hex

    def __hash__(self) -> int:
        return hash((self.length, self.hex))

    def __repr__(self) -> str:
        return f"PrefixDigest(length={self.length}, hex={self.hex!r})"
