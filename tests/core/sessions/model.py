"""What a store of sessions must do, decided anew by searching a plain list of rows.

The model makes room one session at a time where the store plans all at once, and never sees an
answer of the store before it has given its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshnet.core.sessions.entry import Lease
from meshnet.core.vocabulary import LayerRange, NoRoom, SessionId, StaleAttempt

PLACES, BYTES_MAX, TTL_S, PIN_S = 2, 16, 60.0, 5.0

Refusal = type[NoRoom] | type[StaleAttempt]


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


@dataclass(frozen=True, slots=True)
class Decoding:
    """A decode; its prefix is none, the right one or a wrong one."""

    layers: LayerRange
    past: int
    tokens: int
    prefix: str
    attempt: int | None
    shortens: bool = False

    @property
    def length(self) -> int:
        return self.past + self.tokens


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
        """The least recently used (or youngest) row that meets the first choice anybody meets.

        Where one id is held on both shards, it goes first from the shard that was loaded first.
        """
        for meets in choices:
            found = [row for row in rows if meets(row)]
            if found and by == "used":
                return min(found, key=lambda row: (row.used, row.born))
            if found:
                return max(found, key=lambda row: (row.session, -row.shard))
        return None

    def without_one_for_its_place(
        self, shard: int, rows: list[Row], old_head: bool, elder: SessionId | None
    ) -> list[Row]:
        here = [row for row in rows if row.shard == shard]
        if len(here) < PLACES:
            return rows
        choices: list[Callable[[Row], bool]] = [self.is_idle]
        if old_head:
            choices = [lambda row: row.running is None, lambda row: True]
        leaver = self.first(here, choices, "used")
        if leaver is None and elder is not None:
            younger = [row for row in here if row.session > elder]
            leaver = self.first(younger, [lambda row: row.running is None], "session")
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
        self,
        shard: int,
        session: SessionId,
        layers: LayerRange,
        needed: int,
        *,
        old_head: bool,
        refilled: bool = False,
    ) -> Row | Refusal:
        """Give the session a row with room for `needed` bytes, or refuse and change nothing."""
        row, rows = self.find(shard, session), self.rows
        try:
            if row is None:
                rows = self.without_one_for_its_place(
                    shard, rows, old_head, session if refilled else None
                )
            if row is None or needed > row.weight:
                rows = self.with_bytes(row, needed, rows, old_head)
        except Refused:
            return NoRoom
        self.rows = rows
        if row is None:
            self.births += 1
            row = Row(shard, session, layers, self.births, self.now)
            self.rows.append(row)
        return row

    def reserved(
        self, shard: int, session: SessionId, layers: LayerRange, size: int, attempt: int | None
    ) -> Row | Refusal:
        row = self.find(shard, session)
        if self.is_stale(row, attempt):
            return StaleAttempt
        needed = max(size, len(row.ids) if row else 0)
        return self.settle(shard, session, layers, needed, old_head=False)

    def prefilled(
        self,
        shard: int,
        session: SessionId,
        layers: LayerRange,
        tokens: int,
        attempt: int | None,
        *,
        old_head: bool,
    ) -> Row | Refusal:
        row = self.find(shard, session)
        repeated = row is not None and row.spoken_for and attempt == row.attempt is not None
        if self.is_stale(row, attempt) or repeated:
            return StaleAttempt
        needed = max(tokens, row.promised if row else 0)
        again = attempt is not None and attempt > 1
        return self.settle(shard, session, layers, needed, old_head=old_head, refilled=again)

    def grows(self, row: Row, asked: Decoding) -> bool:
        """Whether the row may run the decode; one that finds no room for it is forgotten."""
        servable = (
            row.running is None
            and len(row.ids) > 0
            and (asked.past == len(row.ids) or self.is_cut(row, asked))
            and asked.layers == row.layers
            and (asked.attempt is None or row.attempt is None or asked.attempt == row.attempt)
            and (asked.prefix == "none" or (asked.prefix == "right" and row.all_ids_known))
        )
        if not servable:
            return False
        try:
            if asked.length > row.weight:
                self.rows = self.with_bytes(row, asked.length, self.rows, old_head=False)
        except Refused:
            self.rows = [other for other in self.rows if other is not row]
            return False
        return True

    def is_cut(self, row: Row, asked: Decoding) -> bool:
        """Whether the row is to lose its last ids, and may: nobody cuts what he cannot name."""
        return asked.shortens and asked.prefix != "none" and 0 < asked.past < len(row.ids)

    def is_stale(self, row: Row | None, attempt: int | None) -> bool:
        known = row is not None and row.attempt is not None and attempt is not None
        return known and row is not None and attempt < row.attempt  # type: ignore[operator]
