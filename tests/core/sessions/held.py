"""A session store whose questions are short."""

from __future__ import annotations

import pytest

from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import Lease
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import (
    KVCacheMiss,
    LayerRange,
    MissReason,
    SessionId,
)

LAYERS = LayerRange(2, 6)
OTHER_LAYERS = LayerRange(3, 6)
IDS = (11, 12, 13)


class Held(SessionCacheStore[str]):
    """A store whose questions are short; a token takes a byte, a state is a string."""

    def __init__(
        self, sessions_max: int = 2, bytes_max: int = 1000, budget: ByteBudget | None = None
    ) -> None:
        self.budget = ByteBudget(bytes_max) if budget is None else budget
        super().__init__(budget=self.budget, sessions_max=sessions_max)

    def start(
        self,
        session: str,
        now: float,
        *,
        tokens: int = 3,
        attempt: int | None = 1,
        wire: int = 1,
        layers: LayerRange = LAYERS,
    ) -> Lease[str]:
        return self.prefill(
            SessionId(session),
            layers=layers,
            tokens=tokens,
            attempt=attempt,
            wire=wire,
            bytes_needed=tokens,
            now=now,
        )

    def extend(
        self,
        session: str,
        past_length: int,
        now: float,
        *,
        tokens: int = 1,
        prefix: str | None = None,
        attempt: int | None = 1,
        layers: LayerRange = LAYERS,
        truncate: bool = False,
        adopt: str | None = None,
    ) -> Lease[str]:
        return self.decode(
            SessionId(session),
            layers=layers,
            past_length=past_length,
            tokens=tokens,
            prefix=prefix,
            attempt=attempt,
            bytes_needed=past_length + tokens,
            now=now,
            truncate=truncate,
            adopt=None if adopt is None else SessionId(adopt),
        )

    def end(self, lease: Lease[str], now: float, *, ids: tuple[int, ...] = ()) -> bool:
        size = lease.length_after
        return self.commit(lease, state=f"{size} long", ids=ids, state_bytes=size, now=now)

    def cache(self, session: str, now: float, *, tokens: int = 3, wire: int = 1) -> None:
        assert self.end(self.start(session, now, tokens=tokens, wire=wire), now)

    def take(
        self,
        session: str,
        now: float,
        *,
        size: int = 1,
        attempt: int | None = 1,
        layers: LayerRange = LAYERS,
        adopt: str | None = None,
    ) -> None:
        self.reserve(
            SessionId(session),
            layers=layers,
            bytes_needed=size,
            attempt=attempt,
            now=now,
            adopt=None if adopt is None else SessionId(adopt),
        )

    def lengths(self, now: float) -> dict[str, int]:
        self.check_integrity()
        return {held.session: held.length for held in self.sessions(now)}


def miss(store: Held, *args: object, **fields: object) -> MissReason:
    with pytest.raises(KVCacheMiss) as caught:
        store.extend(*args, **fields)  # type: ignore[arg-type]
    return caught.value.reason
