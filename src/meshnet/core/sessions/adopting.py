"""A session that ended goes on under another name: the next turn of its chat.

    lingers --reserved for--> lent --adopted--> the new session
                               |  +--prefilled--> the new session, its old state gone
                               +--released--> lingers

A session that is lent goes by the new name already, so its place and its bytes count once and
nobody but its heir can take them; but until a step proved by digest what it holds, no step runs
on it, and if none comes it is what it was.

Invariants
    * a session answers to one name at any time, and its old name stays free while it is lent;
    * what is refused changes nothing.
"""

from __future__ import annotations

from meshnet.core.sessions.budget import Shelf
from meshnet.core.sessions.entry import NOTHING, C, Lent, Need, SessionCacheEntry
from meshnet.core.vocabulary import (
    KVCacheMiss,
    LayerRange,
    MissReason,
    SessionId,
    StaleAttempt,
)


def lend(shelf: Shelf[C], old: SessionId, heir: SessionId, layers: LayerRange) -> bool:
    """Let `old` go by the name of `heir`, if it is here, at rest and of these layers."""
    entry = shelf.entries.get(old)
    if entry is None or not _at_rest(entry) or entry.layers != layers:
        return False
    entry.lent = Lent(old, entry.used_at, entry.reserved, entry.attempt)
    entry.attempt, entry.prefilled, entry.lingers = None, False, False
    shelf.rename(entry, heir)
    return True


def refuse_lent(shelf: Shelf[C], session: SessionId) -> None:
    """Raise StaleAttempt for the name of a session that is lent: who asks for it comes late."""
    if _heir_of(shelf, session) is not None:
        raise StaleAttempt("the session ended, and is promised to another")


def give_back(shelf: Shelf[C], entry: SessionCacheEntry[C]) -> None:
    """Undo `lend`: the heir does not need it."""
    lent = entry.lent
    assert lent is not None, f"{entry.session}: not lent"
    entry.used_at, entry.reserved, entry.attempt = (
        lent.used_at,
        lent.reserved,
        lent.attempt,
    )
    entry.prefilled, entry.lingers, entry.lent = True, True, None
    shelf.rename(entry, lent.session)


def adoptable(
    shelf: Shelf[C], heir: SessionId, old: SessionId, layers: LayerRange, attempt: int | None
) -> SessionCacheEntry[C]:
    """Return what `heir` asks to adopt, if there is nothing else under its name and it may.

    Raises:
        KVCacheMiss: also for a late copy of a step that adopted, or was overtaken by a prefill.
    """
    entry = shelf.entries.get(heir)
    if _heir_of(shelf, heir) is not None:
        raise KVCacheMiss(MissReason.UNKNOWN_SESSION, "the session ended")
    if entry is None or entry.lent is None:
        if entry is not None:
            _refuse_started(entry, attempt)
        entry = shelf.entries.get(old)
        if entry is None or not _known(entry):
            raise KVCacheMiss(MissReason.UNKNOWN_SESSION, "no such session to adopt here")
    elif entry.lent.session != old:
        raise KVCacheMiss(MissReason.UNKNOWN_SESSION, "another session was promised")
    if entry.lease is not None:
        raise KVCacheMiss(MissReason.BUSY, "a step of the session to adopt is running")
    if entry.layers != layers:
        held = f"layers: asked for {layers}, session holds {entry.layers}"
        raise KVCacheMiss(MissReason.START_LAYER, held)
    return entry


def take_over(
    shelf: Shelf[C], entry: SessionCacheEntry[C], heir: SessionId, attempt: int | None
) -> None:
    """Let `entry` be the session `heir` from now on; an empty place of that name is joined."""
    place = None if entry.session == heir else shelf.entries.pop(heir, None)
    promised = entry.reserved if entry.lent is not None else NOTHING
    entry.reserved = max(promised, NOTHING if place is None else place.reserved, key=_whole)
    entry.attempt, entry.prefilled = attempt, True
    entry.lent, entry.lingers = None, False
    shelf.rename(entry, heir)


def forget_lent(shelf: Shelf[C], old: SessionId) -> bool:
    """Leave the heir of `old` an empty place. False: nobody was lent it."""
    entry = _heir_of(shelf, old)
    if entry is None:
        return False
    entry.lent, entry.attempt = None, None
    entry.length, entry.ids, entry.state, entry.held = 0, None, None, NOTHING
    return True


def _heir_of(shelf: Shelf[C], old: SessionId) -> SessionCacheEntry[C] | None:
    """Return what is lent and comes back under this name, if no step adopts it."""
    for entry in shelf.entries.values():
        if entry.lent is not None and entry.lent.session == old:
            return entry
    return None


def _refuse_started(entry: SessionCacheEntry[C], attempt: int | None) -> None:
    if entry.prefilled:
        raise KVCacheMiss(MissReason.UNKNOWN_SESSION, "the session has begun already")
    if attempt is not None and entry.attempt is not None and attempt < entry.attempt:
        raise KVCacheMiss(MissReason.ATTEMPT, f"attempt {attempt} is older than {entry.attempt}")


def _known(entry: SessionCacheEntry[C]) -> bool:
    """Whether it holds positions of its own name."""
    return entry.lent is None and (entry.state is not None or entry.lease is not None)


def _at_rest(entry: SessionCacheEntry[C]) -> bool:
    return entry.lease is None and entry.lent is None and entry.state is not None


def _whole(need: Need) -> int:
    return need.bytes
