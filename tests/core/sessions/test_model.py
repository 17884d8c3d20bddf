"""The store against a model that decides by itself what must happen; two shards share a device."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.sessions.model import BYTES_MAX, PIN_S, PLACES, TTL_S, Decoding, Model, Row

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import Lease
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import KVCacheMiss, LayerRange, SessionId

SHARDS = st.integers(0, 1)
SESSIONS = st.sampled_from([SessionId(name) for name in "abcd"])
LAYERS = st.sampled_from([LayerRange(0, 2), LayerRange(0, 2), LayerRange(1, 2)])
ATTEMPTS = st.sampled_from([None, 1, 2, 3])
IDS = st.lists(st.integers(0, 1), min_size=1, max_size=6)


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
        row = model.reserved(shard, session, layers, size, attempt)

        def ask() -> None:
            self.stores[shard].reserve(
                session, layers=layers, bytes_needed=size, attempt=attempt, now=model.now
            )

        if not isinstance(row, Row):
            with pytest.raises(row):
                ask()
            return
        ask()
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
        row = model.prefilled(shard, session, layers, len(ids), attempt, old_head=wire == 0)

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

        if not isinstance(row, Row):
            with pytest.raises(row):
                ask()
            return
        lease = ask()
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
        off=st.sampled_from([0, 0, 0, 1, -1, -2]),
        shortens=st.booleans(),
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
        shortens: bool,
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
        attempt = data.draw(st.sampled_from([None, row.attempt if row else 1, 2]))
        asked = Decoding(layers, past, len(ids), prefix, attempt, shortens)

        if row is None or not model.grows(row, asked):
            with pytest.raises(KVCacheMiss):
                self._ask(shard, session, asked, held)
            return
        lease = self._ask(shard, session, asked, held)
        assert lease.state == repr(row.ids)
        assert lease.truncate == (past < len(row.ids))
        row.used, row.running, row.running_bytes = model.now, lease, asked.length
        self.out.append((shard, lease, tuple(ids)))

    def _ask(
        self, shard: int, session: SessionId, asked: Decoding, held: tuple[int, ...]
    ) -> Lease[str]:
        right = PrefixDigest.of(held[: asked.past]).hex
        return self.stores[shard].decode(
            session,
            layers=asked.layers,
            past_length=asked.past,
            tokens=asked.tokens,
            prefix={"none": None, "right": right, "wrong": "0" * 16}[asked.prefix],
            attempt=asked.attempt,
            bytes_needed=asked.length,
            now=self.model.now,
            truncate=asked.shortens,
        )

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
        after = (row.ids[: lease.length_before] if row is not None else ()) + ids
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
