"""Whether a session is what a step takes it for. Nothing is changed here.

A decode is served if its layers are the session's, its attempt no older one, no other step runs,
and the positions before it are the ones the head means: of equal length and, where a digest came,
of equal ids. With leave to truncate a longer session will do, but then only by its ids: a rejected
draft is as long as the tokens that replaced it.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.core.sessions.entry import C, SessionCacheEntry
from meshnet.core.vocabulary import KVCacheMiss, LayerRange, MissReason, StaleAttempt


def extensible(
    entry: SessionCacheEntry[C] | None,
    layers: LayerRange,
    attempt: int | None,
    prefix: str | None,
) -> SessionCacheEntry[C]:
    """Return the entry if a step of `attempt` may extend it now. Raises KVCacheMiss."""
    known = continued(entry, layers, attempt, prefix)
    if known.lease is not None:
        raise KVCacheMiss(MissReason.BUSY, "another step of this session is running")
    return known


def continued(
    entry: SessionCacheEntry[C] | None,
    layers: LayerRange,
    attempt: int | None,
    prefix: str | None,
) -> SessionCacheEntry[C]:
    """Return the entry if `attempt` goes on with it, a running step aside. Raises KVCacheMiss.

    A later attempt may where a digest tells of which ids it is: it was told that this session
    survived what the attempt began with (ADR-0041).
    """
    if entry is None:
        raise KVCacheMiss(MissReason.UNKNOWN_SESSION, "no such session here")
    if entry.lingers:
        raise KVCacheMiss(MissReason.UNKNOWN_SESSION, "the session ended")
    if not _follows(attempt, entry.attempt, prefix):
        raise _differs(MissReason.ATTEMPT, "attempt", attempt, entry.attempt)
    if entry.state is None or entry.lent is not None:
        raise KVCacheMiss(MissReason.UNKNOWN_SESSION, "the session has a place but no prefill")
    if layers != entry.layers:
        raise _differs(MissReason.START_LAYER, "layers", layers, entry.layers)
    return entry


def check_prefix(
    entry: SessionCacheEntry[C], past_length: int, prefix: str | None, *, truncate: bool
) -> None:
    """Raise KVCacheMiss unless the first `past_length` positions are those of `prefix`.

    Without a digest only lengths can be compared, so then nothing is shortened.
    """
    shorter = truncate and prefix is not None and 0 < past_length < entry.length
    if past_length != entry.length and not shorter:
        raise _differs(MissReason.PAST_LENGTH, "past length", past_length, entry.length)
    held = None if entry.ids is None else entry.ids.prefix(past_length).hex
    if prefix is not None and prefix != held:
        raise _differs(MissReason.PREFIX, "prefix", prefix, held)


def check_kept(
    entry: SessionCacheEntry[C], past_length: int, ids: Sequence[int], prefix: str
) -> None:
    """Raise KVCacheMiss unless what left the layers for `ids`, which follow `prefix`, is kept."""
    stop = past_length + len(ids)
    if entry.lease is not None and entry.lease.length_before < stop:
        raise KVCacheMiss(MissReason.BUSY, "a step that shortens this session is running")
    if entry.ids is None or not entry.held.spare or stop > entry.length:
        kept = entry.length if entry.held.spare else 0
        raise _differs(MissReason.PAST_LENGTH, "positions to send again", stop, kept)
    before = entry.ids.prefix(past_length)
    if before.hex != prefix or before.extend(ids) != entry.ids.prefix(stop):
        raise KVCacheMiss(MissReason.PREFIX, "other ids than those that were kept of")


def refuse_ended(entry: SessionCacheEntry[C]) -> None:
    """Raise StaleAttempt for a session whose head said that it is over: who asks comes late."""
    if entry.lingers:
        raise StaleAttempt("the session ended")


def refuse_older(entry: SessionCacheEntry[C], attempt: int | None) -> None:
    """Raise StaleAttempt for an attempt before the session's."""
    if attempt is not None and entry.attempt is not None and attempt < entry.attempt:
        raise StaleAttempt(f"attempt {attempt} is older than {entry.attempt}")


def refuse_duplicate(entry: SessionCacheEntry[C], attempt: int | None) -> None:
    """Raise StaleAttempt for a second prefill of one attempt."""
    if attempt is not None and attempt == entry.attempt and entry.prefilled:
        raise StaleAttempt(f"attempt {attempt} was prefilled before")


def _follows(attempt: int | None, held: int | None, prefix: str | None) -> bool:
    if attempt is None or held is None or attempt == held:
        return True
    return attempt > held and prefix is not None


def _differs(reason: MissReason, what: str, asked: object, held: object) -> KVCacheMiss:
    return KVCacheMiss(reason, f"{what}: asked for {asked}, session holds {held}")
