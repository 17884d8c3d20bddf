"""Whose turn it is to send a chained step of a session: in the order of asking, a few at once.

Steps that were overtaken are out like any other until they end, so places go by what is on its
way, not by what is still wanted. A step that must go waits for a place.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from meshnet.core.protocol.limits import STEPS_OUT_MAX
from meshnet.core.vocabulary import SessionId


class Turns:
    """Of one session: hold a place until the step ended, and `opening` until it can be sent."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(STEPS_OUT_MAX)
        self.opening = asyncio.Lock()


class ChainTurns:
    """The turns of all sessions of a head; one that asks nothing takes no memory."""

    def __init__(self) -> None:
        self._sessions: WeakValueDictionary[SessionId, Turns] = WeakValueDictionary()

    def of(self, session: SessionId) -> Turns:
        turns = self._sessions.get(session)
        if turns is None:
            turns = self._sessions[session] = Turns()
        return turns
