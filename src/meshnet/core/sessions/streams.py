"""Which sessions have a stream open, and so somebody who is likely to come back for them.

A pin of its own beside the lease and the last touch (entry.py): it belongs to the session's name,
not to what is cached under it, since a stream may be there before the first prefill and after an
eviction. Who opens streams bounds their number and their time.
"""

from __future__ import annotations

from collections import Counter

from meshnet.core.vocabulary import SessionId


class OpenStreams:
    """Streams per session; a session may for a while have two, one of which is broken."""

    def __init__(self) -> None:
        self._open: Counter[SessionId] = Counter()

    def pin(self, session: SessionId) -> None:
        self._open[session] += 1

    def unpin(self, session: SessionId) -> None:
        """End one pin. The session stays; from now on it may go to whoever needs its place."""
        assert self._open[session] > 0, f"{session}: unpinned more often than pinned"
        self._open[session] -= 1
        if not self._open[session]:
            del self._open[session]

    def __contains__(self, session: SessionId) -> bool:
        return session in self._open

    def __len__(self) -> int:
        """Sessions with a stream."""
        return len(self._open)
