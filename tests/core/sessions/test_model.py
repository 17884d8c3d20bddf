"""The store against a model that decides by itself what must happen; two shards share a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.core.sessions.model import BYTES_MAX, PIN_S, PLACES, TTL_S, Decoding, Model, Row

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.entry import Lease
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import KVCacheMiss, LayerRange, SessionId

NAMES = [SessionId(name) for name in "abcd"]
ALL_LAYERS, OTHER_LAYERS = LayerRange(0, 2), LayerRange(1, 2)
LAYERS = st.sampled_from([*[ALL_LAYERS] * 7, OTHER_LAYERS])
ATTEMPTS = st.sampled_from([None, 1, 2, 3])
IDS = st.lists(st.integers(0, 1), min_size=1, max_size=6)
SIZES = st.sampled_from([*range(1, 9), BYTES_MAX])
SOON = st.sampled_from([True, True, False])
"""Whether a step ends before anything else happens."""


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

    @initialize(
        held=st.lists(
            st.tuples(st.integers(0, 1), st.sampled_from(NAMES), IDS),
            max_size=4,
            unique_by=lambda each: each[:2],
        )
    )
    def begin(self, held: list[tuple[int, SessionId, list[int]]]) -> None:
        """Some sessions are there: most rules need one, and rarely make it themselves."""
        for shard, session, ids in held:
            self._prefill(shard, session, ALL_LAYERS, ids, 1, 0)
            self._finish(-1, "commit")

    def somebody(self, data: st.DataObject) -> tuple[int, SessionId]:
        """A shard and a session, most often one that is there."""
        anybody = [(shard, name) for shard in range(2) for name in NAMES]
        here = [(row.shard, row.session) for row in self.model.rows]
        return data.draw(st.sampled_from(here * 8 + anybody))

    def somebody_going_on(self, data: st.DataObject) -> tuple[int, SessionId, SessionId | None]:
        """A shard, a session, and the one it is to go on with, if any."""
        shard, session = self.somebody(data)
        if data.draw(st.booleans()):
            return shard, session, None
        row, heir = self.model.find(shard, session), data.draw(st.sampled_from(NAMES))
        if row is not None and row.lent is not None:
            session, heir = row.lent.session, data.draw(st.sampled_from([row.session, heir]))
        return shard, heir, None if session == heir else session

    @rule(seconds=st.sampled_from([0.5, 0.5, 1.0, 1.0, 4.0, 4.0, 5.0, 5.0, 30.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.model.now += seconds

    @rule(data=st.data(), layers=LAYERS, size=SIZES, attempt=ATTEMPTS)
    def reserve(
        self, data: st.DataObject, layers: LayerRange, size: int, attempt: int | None
    ) -> None:
        model = self.model
        model.forget_the_old()
        shard, session, adopt = self.somebody_going_on(data)
        row = model.reserved(shard, session, layers, size, attempt, adopt)

        def ask() -> None:
            self.stores[shard].reserve(
                session,
                layers=layers,
                bytes_needed=size,
                attempt=attempt,
                now=model.now,
                adopt=adopt,
            )

        if not isinstance(row, Row):
            with pytest.raises(row):
                ask()
            return
        ask()

    @rule(
        data=st.data(),
        layers=LAYERS,
        ids=IDS,
        attempt=ATTEMPTS,
        wire=st.sampled_from([1, 1, 1, 0]),
        soon=SOON,
    )
    def prefill(
        self,
        data: st.DataObject,
        layers: LayerRange,
        ids: list[int],
        attempt: int | None,
        wire: int,
        soon: bool,
    ) -> None:
        shard, session = self.somebody(data)
        self._prefill(shard, session, layers, ids, attempt, wire)
        if soon and self.out:
            self._finish(-1, "commit")

    def _prefill(
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
        row.ids, row.all_ids_known, row.ended, row.lent = (), True, False, None
        row.running, row.running_bytes = lease, len(ids)
        self.out.append((shard, lease, tuple(ids)))

    @precondition(lambda self: any(row.ids for row in self.model.rows))
    @rule(
        data=st.data(),
        ids=IDS,
        off=st.sampled_from([0, 0, 0, 0, 0, 1, -1, -1, -2]),
        shortens=st.booleans(),
        prefix=st.sampled_from(["none", "right", "right", "right", "right", "wrong"]),
        soon=SOON,
    )
    def decode(
        self,
        data: st.DataObject,
        ids: list[int],
        off: int,
        shortens: bool,
        prefix: str,
        soon: bool,
    ) -> None:
        model = self.model
        model.forget_the_old()
        shard, session, adopt = self.somebody_going_on(data)
        asked = Decoding(session, ALL_LAYERS, 0, 0, prefix, None, shortens, adopt)
        row = model.source(shard, asked)
        held = row.ids if row else ()
        past = max(len(held) + off, 0)
        ids = ids[: max(BYTES_MAX - past, 0)]
        if not ids:
            return
        attempt = data.draw(st.sampled_from([None, *[row.attempt if row else 1] * 4, 2]))
        held_in = row.layers if row else ALL_LAYERS
        layers = data.draw(st.sampled_from([*[held_in] * 9, OTHER_LAYERS]))
        asked = replace(asked, layers=layers, past=past, tokens=len(ids), attempt=attempt)

        row = model.grown(shard, asked)

        if row is None:
            with pytest.raises(KVCacheMiss):
                self._ask(shard, asked, held)
            return
        lease = self._ask(shard, asked, held)
        assert lease.session == session
        assert lease.state == repr(row.ids)
        assert lease.truncate == (past < len(row.ids))
        row.used, row.running, row.running_bytes = model.now, lease, asked.length
        self.out.append((shard, lease, tuple(ids)))
        if soon:
            self._finish(-1, "commit")

    def _ask(self, shard: int, asked: Decoding, held: tuple[int, ...]) -> Lease[str]:
        right = PrefixDigest.of(held[: asked.past]).hex
        return self.stores[shard].decode(
            asked.session,
            layers=asked.layers,
            past_length=asked.past,
            tokens=asked.tokens,
            prefix={"none": None, "right": right, "wrong": "0" * 16}[asked.prefix],
            attempt=asked.attempt,
            bytes_needed=asked.length,
            now=self.model.now,
            truncate=asked.shortens,
            adopt=asked.adopt,
        )

    @rule(
        data=st.data(),
        ending=st.sampled_from(
            ["commit", "commit", "commit", "without ids", "abandon", "withdraw"]
        ),
    )
    def finish(self, data: st.DataObject, ending: str) -> None:
        if self.out:
            self._finish(data.draw(st.integers(0, len(self.out) - 1)), ending)

    def _finish(self, index: int, ending: str) -> None:
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

    @rule(data=st.data(), lingers=st.sampled_from([True, True, True, False]))
    def release(self, data: st.DataObject, lingers: bool) -> None:
        model = self.model
        model.forget_the_old()
        shard, session = self.somebody(data)

        known = self.stores[shard].release(session, model.now, linger=lingers)

        assert known == model.released(shard, session, lingers=lingers)

    @rule(session=st.sampled_from(NAMES), opens=st.booleans())
    def stream(self, session: SessionId, opens: bool) -> None:
        """A stream of the session opens; or one of those that are open closes."""
        streams = self.model.streams
        if opens:
            streams[session] += 1
            self.budget.streams.pin(session)
        elif streams[session]:
            streams[session] -= 1
            self.budget.streams.unpin(session)

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
    max_examples=150, stateful_step_count=50, derandomize=True, deadline=None
)
