"""Which shards a node serves, the sessions of each, and what each has done.

One device: all shards share one byte budget. One shard per model, at most `shards_max`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import (
    BadField,
    ModelId,
    SessionDescription,
    SessionId,
    ShardDescription,
    WrongShard,
)
from meshnet.node.shard import S, Shard
from meshnet.node.steps import Kept
from meshnet.telemetry.events import Event, SessionEvicted, SessionsHeld

TELL_S = 1.0
"""How old the figures of what is held may be while sessions decode."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """How much a node keeps. `sessions_max` is per shard, `kv_bytes_max` per device."""

    kv_bytes_max: int
    sessions_max: int = 8
    ttl_s: float = 600.0
    pin_s: float = 5.0
    shards_max: int = 1
    move_bytes_per_s: float | None = None
    """How fast a session may come from another node; None: as fast as it can."""
    keep_activations: bool = True
    """What leaves a shard is kept beside its K/V, for a hop behind it that may be lost."""


@dataclass(frozen=True, slots=True)
class ShardWork:
    """What one shard has done since it was loaded."""

    model: ModelId
    steps: int
    tokens: int
    compute_s: float


@dataclass(slots=True)
class LoadedShard(Generic[S]):
    shard: Shard[S]
    store: SessionCacheStore[Kept[S]]
    keeps: bool = True
    steps: int = 0
    tokens: int = 0
    compute_s: float = 0.0

    @property
    def description(self) -> ShardDescription:
        """What the shard says of itself, and the bytes that a session takes here."""
        told = self.shard.description
        return told if self.keeps else replace(told, kv_bytes=told.kv_bytes.without_spare())

    def count(self, tokens: int, compute_s: float) -> None:
        self.steps += 1
        self.tokens += tokens
        self.compute_s += compute_s


class LoadedShards(Generic[S]):
    """The shards of one device by model."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self._budget = ByteBudget(limits.kv_bytes_max)
        self._by_model: dict[ModelId, LoadedShard[S]] = {}
        self._told_sessions, self._told_at = -1, 0.0

    def add(self, shard: Shard[S]) -> None:
        model = shard.description.model
        if model in self._by_model:
            raise ValueError(f"model {model!r}: this node holds a shard of it already")
        if len(self._by_model) >= self._limits.shards_max:
            raise ValueError(f"max_loaded_shards: {self._limits.shards_max} are loaded already")
        store: SessionCacheStore[Kept[S]] = SessionCacheStore(
            budget=self._budget,
            sessions_max=self._limits.sessions_max,
            ttl_s=self._limits.ttl_s,
            pin_s=self._limits.pin_s,
            drop_spare=lambda kept: kept.leaving.drop(),
        )
        self._by_model[model] = LoadedShard(shard, store, self._limits.keep_activations)

    def remove(self, model: ModelId) -> None:
        """Forget the shard of `model` and every session of it. Raises WrongShard."""
        self.of(model).store.close()
        del self._by_model[model]

    def of(self, model: ModelId | None) -> LoadedShard[S]:
        """Return the shard of `model`, or the only one. Raises WrongShard, BadField."""
        if model is None:
            if len(self._by_model) != 1:
                raise BadField("model", f"one of {sorted(self._by_model)}", None)
            return next(iter(self._by_model.values()))
        loaded = self._by_model.get(model)
        if loaded is None:
            raise WrongShard(f"model {model!r}: this node holds {sorted(self._by_model)}")
        return loaded

    def release(
        self, session: SessionId, model: ModelId | None, now: float, *, linger: bool
    ) -> None:
        for name, loaded in self._by_model.items():
            if model in (None, name):
                loaded.store.release(session, now, linger=linger)

    def busy(self, now: float) -> int:
        """How many sessions somebody is likely to come back for soon."""
        return sum(loaded.store.busy(now) for loaded in self._by_model.values())

    def forget_lingering(self, now: float) -> None:
        """Forget the sessions whose heads are done with them."""
        for loaded in self._by_model.values():
            loaded.store.forget_lingering(now)

    def pin(self, session: SessionId) -> None:
        self._budget.streams.pin(session)

    def unpin(self, session: SessionId) -> None:
        self._budget.streams.unpin(session)

    @property
    def pinned(self) -> int:
        return len(self._budget.streams)

    def session(self, session: SessionId, now: float) -> SessionDescription | None:
        for loaded in self._by_model.values():
            found = loaded.store.describe(session, now)
            if found is not None:
                return found
        return None

    def sessions(self, now: float) -> int:
        return sum(len(loaded.store.sessions(now)) for loaded in self._by_model.values())

    @property
    def sessions_max(self) -> int:
        return self._limits.sessions_max * len(self._by_model)

    @property
    def kv_bytes(self) -> int:
        return self._budget.bytes

    def descriptions(self) -> tuple[ShardDescription, ...]:
        return tuple(loaded.description for loaded in self._by_model.values())

    def work(self) -> tuple[ShardWork, ...]:
        return tuple(
            ShardWork(model, loaded.steps, loaded.tokens, loaded.compute_s)
            for model, loaded in self._by_model.items()
        )

    def tell(self, record: Callable[[Event], None], now: float, *, decoded: bool = False) -> None:
        """Record who left since the last call, and what is held now.

        A decode changes little of that, and comes once a token: what is held is then told no more
        than once in TELL_S, unless somebody came or left.
        """
        for loaded in self._by_model.values():
            for eviction in loaded.store.take_evictions():
                record(SessionEvicted(eviction.reason.value, eviction.session))
        sessions = self._budget.sessions
        if decoded and sessions == self._told_sessions and now - self._told_at < TELL_S:
            return
        self._told_sessions, self._told_at = sessions, now
        record(SessionsHeld(sessions, self.kv_bytes, self._limits.kv_bytes_max))

    def check_integrity(self) -> None:
        for loaded in self._by_model.values():
            loaded.store.check_integrity()
