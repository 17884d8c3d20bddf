"""The token ids of a session's positions, and the digest of any prefix of them.

A truncated session must prove which ids it still holds, so the ids stay: 4 bytes a position,
beside kilobytes of KV cache. The digest before the last step is kept as well, because that is
where drafts are cut: their digest costs the step's ids only, however long the session is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from meshnet.core.protocol.digest import PrefixDigest


class KnownIds:
    """Ids of positions [0, length). Changed in place by `replace_from`."""

    __slots__ = ("_before", "_digest", "_ids")

    def __init__(self) -> None:
        self._ids = array("I")
        self._before = self._digest = PrefixDigest()

    @property
    def digest(self) -> PrefixDigest:
        """Of all ids held."""
        return self._digest

    def prefix(self, length: int) -> PrefixDigest:
        """Return the digest of the first `length` ids, at most as many as are held."""
        assert 0 <= length <= len(self._ids)
        if length == len(self._ids):
            return self._digest
        start = self._before if self._before.length <= length else PrefixDigest()
        return start.extend(self._ids[start.length : length])

    def replace_from(self, before: PrefixDigest, ids: Sequence[int]) -> None:
        """Keep the prefix that `before` is the digest of, and let `ids` follow it."""
        assert before.length <= len(self._ids)
        del self._ids[before.length :]
        self._ids.extend(ids)
        self._before, self._digest = before, before.extend(ids)
