"""What must hold of a shard's sessions between any two calls, as assertions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshnet.core.sessions.entry import SessionCacheEntry
from meshnet.core.vocabulary import SessionId


def check_integrity(entries: Mapping[SessionId, SessionCacheEntry[Any]], sessions_max: int) -> None:
    assert len(entries) <= sessions_max, f"{len(entries)} sessions"
    assert len({entry.created for entry in entries.values()}) == len(entries)
    for session, entry in entries.items():
        assert entry.session == session
        _check_entry(entry)
        if entry.lent is not None:
            assert entry.lease is None, f"{session}: leased while it is lent"
            assert entry.state is not None, f"{session}: nothing is lent"
            assert entry.lent.session not in entries, f"{session}: answers to two names"


def _check_entry(entry: SessionCacheEntry[Any]) -> None:
    session, lease = entry.session, entry.lease
    assert min(entry.bytes, entry.length, entry.held.bytes) >= 0
    assert 0 <= entry.spare_bytes <= entry.bytes, f"{session}: spare bytes it does not have"
    assert not (entry.shed and entry.held.spare), f"{session}: keeps what it gave up"
    assert (entry.state is None) == (entry.length == 0), f"{session}: state without length"
    assert entry.digest is None or entry.digest.length == entry.length
    assert entry.prefilled or entry.state is None or entry.lent is not None
    assert not entry.lingers or (lease is None and entry.state is not None), f"{session}: lingers"
    if lease is not None:
        assert lease.session == session
        assert lease.length_before <= entry.length
        assert lease.truncate == (lease.length_before < entry.length)
