"""What a store of sessions must do, decided anew by searching a plain list of rows.

The model makes room one session at a time where the store plans all at once, and never sees an
answer of the store before it has given its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from meshnet.core.sessions.entry import Lease
from meshnet.core.vocabulary import LayerRange, NoRoom, SessionId, StaleAttempt

PLACES, BYTES_MAX, TTL_S, PIN_S = 2, 16, 60.0, 5.0

Refusal = type[NoRoom] | type[StaleAttempt]


@dataclass(frozen=True, slots=True)
class Before:
    """What a row was when it was lent to another session."""

    session: SessionId
    used: float
    promised: int
    attempt: int | None


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
    ended: bool = False
    """Its head said that it lingers."""
    lent: Before | None = None
    """It answers to its heir's name, and nothing may run on it before that adopts it."""

    @property
    def weight(self) -> int:
        return max(self.promised, len(self.ids), self.running_bytes if self.running else 0)


@dataclass(frozen=True, slots=True)
class Decoding:
    """A decode; its prefix is none, the right one or a wrong one."""

    session: SessionId
    layers: LayerRange
    past: int
    tokens: int
    prefix: str
    attempt: int | None
    shortens: bool = False
    adopt: SessionId | None = None

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
        self.streams: Counter[SessionId] = Counter()

    def find(self, shard: int, session: SessionId) -> Row | None:
        for row in self.rows:
            if (row.shard, row.session) == (shard, session):
                return row
        return None

    def heir_of(self, shard: int, name: SessionId) -> Row | None:
        """The row that was `name` and comes back as `name` if its heir does not adopt it."""
        for row in self.rows:
            if row.shard == shard and row.lent is not None and row.lent.session == name:
                return row
        return None

    def source(self, shard: int, asked: Decoding) -> Row | None:
        """The row whose positions a decode means."""
        row = self.find(shard, asked.session)
        if asked.adopt is None or (row is not None and row.lent is not None):
            return row
        return self.find(shard, asked.adopt)

    def forget_the_old(self) -> None:
        self.rows = [r for r in self.rows if r.running or self.now - r.used <= TTL_S]

    def is_idle(self, row: Row) -> bool:
        touched = not row.ended and self.now - row.used < PIN_S
        return row.running is None and not touched and not self.streams[row.session]

    def first(self, rows: list[Row], choices: list[Callable[[Row], bool]], by: str) -> Row | None:
        """The least recently used (or youngest) row that meets the first choice anybody meets.

        By use, those whose chats ended go before all others.
        Where one id is held on both shards, it goes first from the shard that was loaded first.
        """
        for meets in choices:
            found = [row for row in rows if meets(row)]
            if found and by == "used":
                return min(found, key=lambda row: (not row.ended, row.used, row.born))
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
        elder = me if me is not None and me.lent is None else None
        while sum(row.weight for row in rows if row is not me) + needed > BYTES_MAX:
            others = [row for row in rows if row is not me]
            leaver = self.first(others, [self.is_idle], "used")
            if leaver is None and old_head:
                anyone = [lambda row: row.running is None, lambda row: True]
                leaver = self.first(others, anyone, "used")
            elif leaver is None:
                younger = [row for row in others if elder and row.session > elder.session]
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
        self,
        shard: int,
        session: SessionId,
        layers: LayerRange,
        size: int,
        attempt: int | None,
        adopt: SessionId | None,
    ) -> Row | Refusal:
        row = self.find(shard, session)
        over = self.heir_of(shard, session) is not None or (row is not None and row.ended)
        if over or self.is_stale(row, attempt):
            return StaleAttempt
        lent = self.lend(shard, session, layers, adopt) if row is None else None
        row = row or lent
        needed = max(size, len(row.ids) if row else 0)
        answer = self.settle(shard, session, layers, needed, old_head=False)
        if isinstance(answer, Row):
            answer.used, answer.promised = self.now, size
            if not answer.spoken_for:
                answer.layers = answer.layers if answer.lent is not None else layers
                answer.attempt = answer.attempt if attempt is None else attempt
        elif lent is not None:
            self.give_back(lent)
        return answer

    def lend(
        self, shard: int, heir: SessionId, layers: LayerRange, adopt: SessionId | None
    ) -> Row | None:
        row = None if adopt is None else self.find(shard, adopt)
        if row is None or row.running or row.lent or not row.ids or row.layers != layers:
            return None
        row.lent = Before(row.session, row.used, row.promised, row.attempt)
        row.session, row.attempt, row.spoken_for, row.ended = heir, None, False, False
        return row

    def give_back(self, row: Row) -> None:
        was = row.lent
        assert was is not None
        row.session, row.used, row.promised = was.session, was.used, was.promised
        row.attempt, row.spoken_for, row.ended, row.lent = was.attempt, True, True, None

    def released(self, shard: int, session: SessionId, *, lingers: bool) -> bool:
        row, heir = self.find(shard, session), self.heir_of(shard, session)
        if row is None and heir is not None and not lingers:
            heir.lent, heir.attempt, heir.ids = None, None, ()
            return True
        if row is None:
            return False
        if row.lent is not None:
            self.give_back(row)
        elif lingers and row.ids and row.running is None:
            row.ended, row.promised = True, 0
        else:
            self.rows = [other for other in self.rows if other is not row]
        return True

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
        promised_away = self.heir_of(shard, session) is not None
        if promised_away or self.is_stale(row, attempt) or repeated:
            return StaleAttempt
        needed = max(tokens, row.promised if row else 0)
        again = attempt is not None and attempt > 1
        return self.settle(shard, session, layers, needed, old_head=old_head, refilled=again)

    def grown(self, shard: int, asked: Decoding) -> Row | None:
        """The row that runs the decode, if one may; one without room for it is forgotten."""
        row = self.source(shard, asked)
        own = asked.adopt is None
        if row is None or not (self.is_own(row, asked) if own else self.is_heirs(shard, asked)):
            return None
        servable = (
            row.running is None
            and len(row.ids) > 0
            and (asked.past == len(row.ids) or self.is_cut(row, asked))
            and asked.layers == row.layers
            and (asked.prefix == "none" or (asked.prefix == "right" and row.all_ids_known))
        )
        if not servable:
            return None
        if not own:
            self.adopt(row, asked)
        try:
            if asked.length > row.weight:
                self.rows = self.with_bytes(row, asked.length, self.rows, old_head=False)
        except Refused:
            self.rows = [other for other in self.rows if other is not row]
            return None
        if row.attempt is not None and asked.attempt is not None:
            row.attempt = asked.attempt
        return row

    def is_own(self, row: Row, asked: Decoding) -> bool:
        return not row.ended and row.lent is None and self.follows(row, asked)

    def follows(self, row: Row, asked: Decoding) -> bool:
        """A later attempt goes on with what it can name; an older one with nothing."""
        if asked.attempt is None or row.attempt is None:
            return True
        if asked.attempt > row.attempt:
            return asked.prefix != "none"
        return asked.attempt == row.attempt

    def is_heirs(self, shard: int, asked: Decoding) -> bool:
        """Whether the decode may adopt what it names, as far as names and attempts go."""
        row, old = self.find(shard, asked.session), self.find(shard, asked.adopt or asked.session)
        if self.heir_of(shard, asked.session) is not None:
            return False
        if row is not None and row.lent is not None:
            return row.lent.session == asked.adopt
        begun = row is not None and (row.spoken_for or self.is_stale(row, asked.attempt))
        return not begun and old is not None and old.lent is None

    def adopt(self, row: Row, asked: Decoding) -> None:
        place = self.find(row.shard, asked.session)
        promised = row.promised if row.lent is not None else 0
        if place is not None and place is not row:
            promised = place.promised
            self.rows = [other for other in self.rows if other is not place]
        row.session, row.attempt, row.promised = asked.session, asked.attempt, promised
        row.spoken_for, row.lent, row.ended = True, None, False

    def is_cut(self, row: Row, asked: Decoding) -> bool:
        """Whether the row is to lose its last ids, and may: nobody cuts what he cannot name."""
        return asked.shortens and asked.prefix != "none" and 0 < asked.past < len(row.ids)

    def is_stale(self, row: Row | None, attempt: int | None) -> bool:
        known = row is not None and row.attempt is not None and attempt is not None
        return known and row is not None and attempt < row.attempt  # type: ignore[operator]
