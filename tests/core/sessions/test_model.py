"""The store against a model that decides by itself what must happen.

Two shards share one device. The model is a plain list of rows, searched anew for every question;
it makes room one session at a time where the store plans all at once, and never sees an answer
of the store before it has given its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import Lease
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import KVCacheMiss, LayerRange, NoRoom, SessionId, StaleAttempt

PLACES, BYTES_MAX, TTL_S, PIN_S = 2, 16, 60.0, 5.0
SHARDS = st.integers(0, 1)
SESSIONS = st.sampled_from([SessionId(name) for name in "abcd"])
LAYERS = st.sampled_from([LayerRange(0, 2), LayerRange(0, 2), LayerRange(1, 2)])
ATTEMPTS = st.sampled_from([None, 1, 2, 3])
TOKENS = st.integers(1, 6)
IDS = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@dataclass
class Row:
    """What the model believes of one session on one shard."""

    shard: int
    session: SessionId
    layers: LayerRange
    born: int
    used: float
    attempt: int | None = None
    spoken_for: bool = False
    ids: tuple[int, ...] = ()
    all_ids_known: bool = True
    running: Lease[str] | None = None
    running_bytes: int = 0
    promised: int = 0

    @property
    def weight(self) -> int:
        return max(self.promised, len(self.ids), self.running_bytes if self.running else 0)


class Refused(Exception):
    """The model says no."""


class Model:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.now = 0.0
        self.births = 0

    def find(self, shard: int, session: SessionId) -> Row | None:
        for row in self.rows:
            if (row.shard, row.session) == (shard, session):
                return row
        return None

    def forget_the_old(self) -> None:
        self.rows = [r for r in self.rows if r.running or self.now - r.used <= TTL_S]

    def is_idle(self, row: Row) -> bool:
        return row.running is None and self.now - row.used >= PIN_S

    def first(self, rows: list[Row], choices: list[Callable[[Row], bool]], by: str) -> Row | None:
        """The least recently used (or youngest) row that meets the first choice anybody meets."""
        for meets in choices:
            found = [row for row in rows if meets(row)]
            if found and by == "used":
                return min(found, key=lambda row: (row.used, row.born))
            if found:
                return max(found, key=lambda row: row.session)
        return None

    def without_one_for_its_place(self, shard: int, rows: list[Row], old_head: bool) -> list[Row]:
        here = [row for row in rows if row.shard == shard]
        if len(here) < PLACES:
            return rows
        choices: list[Callable[[Row], bool]] = [self.is_idle]
        if old_head:
            choices = [lambda row: row.running is None, lambda row: True]
        leaver = self.first(here, choices, "used")
        if leaver is None:
            raise Refused
        return [row for row in rows if row is not leaver]

    def with_bytes(self, me: Row | None, needed: int, rows: list[Row], old_head: bool) -> list[Row]:
        while sum(row.weight for row in rows if row is not me) + needed > BYTES_MAX:
            others = [row for row in rows if row is not me]
            leaver = self.first(others, [self.is_idle], "used")
            if leaver is None and old_head:
                anyone = [lambda row: row.running is None, lambda row: True]
                leaver = self.first(others, anyone, "used")
            elif leaver is None:
                younger = [row for row in others if me is not None and row.session > me.session]
                choices = [lambda row: row.running is None, lambda row: True]
                leaver = self.first(younger, choices, "session")
            if leaver is None:
                raise Refused
            rows = [row for row in rows if row is not leaver]
        return rows

    def settle(
        self, shard: int, session: SessionId, layers: LayerRange, needed: int, old_head: bool
    ) -> Row:
        """Give the session a row with room for `needed` bytes, or refuse and change nothing."""
        row, rows = self.find(shard, session), self.rows
        if row is None:
            rows = self.without_one_for_its_place(shard, rows, old_head)
        if row is None or needed > row.weight:
            rows = self.with_bytes(row, needed, rows, old_head)
        self.rows = rows
        if row is None:
            self.births += 1
            row = Row(shard, session, layers, self.births, self.now)
            self.rows.append(row)
        return row

    def is_stale(self, row: Row | None, attempt: int | None) -> bool:
        known = row is not None and row.attempt is not None and attempt is not None
        return known and row is not None and attempt < row.attempt  # type: ignore[operator]


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        budget = ByteBudget(BYTES_MAX)
        self.budget = budget
        self.stores: list[SessionCacheStore[str]] = [
            SessionCacheStore(budget=budget, sessions_max=PLACES, ttl_s=TTL_S, pin_s=PIN_S)
            for _ in range(2)
        ]
        self.model = Model()
        self.out: list[tuple[int, Lease[str], tuple[int, ...]]] = []

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 5.0, 30.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.model.now += seconds

    @rule(shard=SHARDS, session=SESSIONS, layers=LAYERS, size=st.integers(1, 16), attempt=ATTEMPTS)
    def reserve(
        self, shard: int, session: SessionId, layers: LayerRange, size: int, attempt: int | None
    ) -> None:
        model = self.model
        model.forget_the_old()
        row = model.find(shard, session)
        expected: type[Exception] | None = StaleAttempt if model.is_stale(row, attempt) else None
        if expected is None:
            try:
                needed = max(size, len(row.ids) if row else 0)
                row = model.settle(shard, session, layers, needed, old_head=False)
            except Refused:
                expected = NoRoom

        def ask() -> None:
            self.stores[shard].reserve(
                session, layers=layers, bytes_needed=size, attempt=attempt, now=model.now
            )

        if expected is not None:
            with pytest.raises(expected):
                ask()
            return
        ask()
        assert row is not None
        row.used, row.promised = model.now, size
        if not row.spoken_for:
            row.layers = layers
            row.attempt = row.attempt if attempt is None else attempt

    @rule(
        shard=SHARDS,
        session=SESSIONS,
        layers=LAYERS,
        ids=IDS,
        attempt=ATTEMPTS,
        wire=st.integers(0, 1),
    )
    def prefill(
        self,
        shard: int,
        session: SessionId,
        layers: LayerRange,
        ids: list[int],
        attempt: int | None,
        wire: int,
    ) -> None:
        model = self.model
        model.forget_the_old()
        row = model.find(shard, session)
        expected: type[Exception] | None = None
        repeated = row is not None and row.spoken_for and attempt == row.attempt is not None
        if model.is_stale(row, attempt) or repeated:
            expected = StaleAttempt
        else:
            try:
                needed = max(len(ids), row.promised if row else 0)
                row = model.settle(shard, session, layers, needed, old_head=wire == 0)
            except Refused:
                expected = NoRoom

        def ask() -> Lease[str]:
            return self.stores[shard].prefill(
                session,
                layers=layers,
                tokens=len(ids),
                attempt=attempt,
                wire=wire,
                bytes_needed=len(ids),
                now=model.now,
            )

        if expected is not None:
            with pytest.raises(expected):
                ask()
            return
        lease = ask()
        assert row is not None
        row.layers, row.attempt, row.spoken_for, row.used = layers, attempt, True, model.now
        row.ids, row.all_ids_known = (), True
        row.running, row.running_bytes = lease, len(ids)
        self.out.append((shard, lease, tuple(ids)))

    @rule(
        data=st.data(),
        shard=SHARDS,
        session=SESSIONS,
        layers=LAYERS,
        ids=IDS,
        off=st.sampled_from([0, 0, 0, 1, -1]),
        prefix=st.sampled_from(["none", "right", "right", "wrong"]),
    )
    def decode(
        self,
        data: st.DataObject,
        shard: int,
        session: SessionId,
        layers: LayerRange,
        ids: list[int],
        off: int,
        prefix: str,
    ) -> None:
        model = self.model
        model.forget_the_old()
        row = model.find(shard, session)
        held = row.ids if row else ()
        past = max(len(held) + off, 0)
        ids = ids[: max(BYTES_MAX - past, 0)]
        if not ids:
            return
        right = PrefixDigest.of(held).hex
        digest = {"none": None, "right": right, "wrong": "0" * 16}[prefix]
        attempt = data.draw(st.sampled_from([None, row.attempt if row else 1, 2]))
        servable = (
            row is not None
            and row.running is None
            and len(row.ids) > 0
            and past == len(row.ids)
            and layers == row.layers
            and (attempt is None or row.attempt is None or attempt == row.attempt)
            and (prefix == "none" or (prefix == "right" and row.all_ids_known))
        )
        if servable:
            assert row is not None
            try:
                if past + len(ids) > row.weight:
                    model.rows = model.with_bytes(row, past + len(ids), model.rows, old_head=False)
            except Refused:
                model.rows = [other for other in model.rows if other is not row]
                servable = False

        def ask() -> Lease[str]:
            return self.stores[shard].decode(
                session,
                layers=layers,
                past_length=past,
                tokens=len(ids),
                prefix=digest,
                attempt=attempt,
                bytes_needed=past + len(ids),
                now=model.now,
            )

        if not servable:
            with pytest.raises(KVCacheMiss):
                ask()
            return
        lease = ask()
        assert row is not None
        assert lease.state == repr(row.ids)
        row.used, row.running, row.running_bytes = model.now, lease, past + len(ids)
        self.out.append((shard, lease, tuple(ids)))

    @rule(
        data=st.data(),
        ending=st.sampled_from(["commit", "commit", "without ids", "abandon", "withdraw"]),
    )
    def finish(self, data: st.DataObject, ending: str) -> None:
        if not self.out:
            return
        index = data.draw(st.integers(0, len(self.out) - 1))
        shard, lease, ids = self.out.pop(index)
        store, model = self.stores[shard], self.model
        row = model.find(shard, lease.session)
        wanted = row is not None and row.running is lease
        assert store.holds(lease) == wanted
        if ending == "abandon":
            assert store.abandon(lease) == wanted
            model.rows = [other for other in model.rows if other is not row or not wanted]
            return
        if ending == "withdraw":
            assert store.withdraw(lease) == wanted
            if wanted and row is not None:
                row.running = None
                row.spoken_for = bool(row.ids)
            return
        model.forget_the_old()
        after = (row.ids if row is not None else ()) + ids
        told = ids if ending == "commit" else ()
        done = store.commit(
            lease, state=repr(after), ids=told, state_bytes=len(after), now=model.now
        )
        assert done == wanted
        if wanted and row is not None:
            row.running, row.ids, row.used = None, after, model.now
            row.all_ids_known = row.all_ids_known and bool(told)

    @rule(shard=SHARDS, session=SESSIONS)
    def release(self, shard: int, session: SessionId) -> None:
        model = self.model
        model.forget_the_old()
        row = model.find(shard, session)

        assert self.stores[shard].release(session, model.now) == (row is not None)

        model.rows = [other for other in model.rows if other is not row]

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        model = self.model
        model.forget_the_old()
        for shard, store in enumerate(self.stores):
            store.check_integrity()
            found = {held.session: held for held in store.sessions(model.now)}
            rows = {row.session: row for row in model.rows if row.shard == shard}
            assert found.keys() == rows.keys()
            for session, row in rows.items():
                held = found[session]
                assert (held.length, held.layers) == (len(row.ids), row.layers)
                assert (held.attempt, held.kv_bytes) == (row.attempt, row.weight)
                proven = bool(row.ids) and row.all_ids_known
                assert held.prefix == (PrefixDigest.of(row.ids).hex if proven else None)
                assert store.describe(session, model.now) == held
        assert self.budget.bytes == sum(row.weight for row in model.rows) <= BYTES_MAX


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=150, stateful_step_count=40, derandomize=True, deadline=None
)
