"""Ended sessions that the nodes still hold, and the request that may go on with one.

    a generation ends ──keep──▶ lingering ──take──▶ the next turn adopts it
                                    └──too old, too many, no use──▶ let go: a release hint

Nothing is promised by it: the nodes give such a session's room to whoever asks, and then the next
turn is filled like any other. So it is never a reason to refuse or to wait.

Invariants
    * a session is offered to requests of its own owner only (equal prompts of two owners tell
      neither of them anything), and to one of them;
    * what is shared is found by comparing ids, never digests of them;
    * no more than `sessions_max` of an owner and `total_max` in all, none for longer than
      `seconds`; beyond that the oldest goes of whoever has the most, so that many chats of one
      owner cost another none of his few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshnet.core.generation.sequence import Adoption
from meshnet.core.generation.transcript import Remains
from meshnet.core.vocabulary import Route, SessionId

Standing = tuple[str, ...]
"""The arithmetic of each hop of a route."""


@dataclass(frozen=True, slots=True)
class PrefixLimits:
    """How long an ended session may linger, how many may, and what is worth it."""

    seconds: float = 300.0
    sessions_max: int = 8
    """Of one owner."""
    total_max: int = 32
    tokens_min: int = 32


@dataclass(frozen=True, slots=True)
class Lingering:
    """One ended session. `standing` is what its nodes computed with."""

    session: SessionId
    owner: str
    remains: Remains
    standing: Standing
    until: float


@dataclass(frozen=True, slots=True)
class Taken:
    """A session that a request goes on with."""

    lingering: Lingering
    adoption: Adoption

    @property
    def route(self) -> Route:
        return self.lingering.remains.route


class LingeringSessions:
    """Those of one head, the least recently ended first.

    Args:
        standing: what the hops of a route compute with now; None: it is not served as it was.
        let_go: called for each session that lingers no longer and was not taken.
    """

    def __init__(
        self,
        limits: PrefixLimits,
        *,
        standing: Callable[[Route], Standing | None],
        let_go: Callable[[Lingering], None],
    ) -> None:
        self._limits, self._standing, self._let_go = limits, standing, let_go
        self._sessions: dict[SessionId, Lingering] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def keep(self, session: SessionId, owner: str | None, remains: Remains, now: float) -> bool:
        """Offer an ended session to later requests of `owner`. False: it is of no use."""
        standing = self._standing(remains.route)
        able = remains.route.kv_cache and remains.route.multi_token
        if owner is None or standing is None or not able or not self._limits.sessions_max:
            return False
        if len(remains.ids) < self._limits.tokens_min:
            return False
        until = now + self._limits.seconds
        self._expire(now)
        self._offer(Lingering(session, owner, remains, standing, until))
        return True

    def take(self, owner: str | None, prompt: Sequence[int], now: float) -> Taken | None:
        """Return the session that saves most of `prompt`; it is offered to nobody else."""
        self._expire(now)
        best: Taken | None = None
        for each in list(self._sessions.values()):
            if not self._open_to(each, owner):
                continue
            if self._standing(each.remains.route) != each.standing:
                self._drop(each)
                continue
            length = self._saves(each.remains, prompt)
            if length and (best is None or length >= best.adoption.length):
                marks = each.remains.marks.cut(length)
                best = Taken(each, Adoption(each.session, length, each.remains.held, marks))
        if best is not None:
            del self._sessions[best.lingering.session]
        return best

    def put_back(self, taken: Taken) -> None:
        """The request came to nothing before a node heard of its first step."""
        self._offer(taken.lingering)

    def forget(self, taken: Taken) -> None:
        """Its nodes did not hold what was asked for, or not all of them."""
        self._let_go(taken.lingering)

    def clear(self) -> None:
        """Let all of them go: this head is about to end."""
        for each in list(self._sessions.values()):
            self._drop(each)

    def _offer(self, each: Lingering) -> None:
        self._sessions[each.session] = each
        counts = Counter(held.owner for held in self._sessions.values())
        if counts[each.owner] > self._limits.sessions_max:
            self._drop_oldest_of(each.owner)
        elif len(self._sessions) > self._limits.total_max:
            self._drop_oldest_of(max(counts, key=lambda owner: counts[owner]))

    def _drop_oldest_of(self, owner: str) -> None:
        self._drop(next(held for held in self._sessions.values() if held.owner == owner))

    def _open_to(self, each: Lingering, owner: str | None) -> bool:
        return each.owner == owner

    def _saves(self, remains: Remains, prompt: Sequence[int]) -> int:
        """Tell how many positions need not be run; the last one must, for its logits.

        A chat that begins like another one, but asks something else, does not cut the other off.
        """
        length = min(shared(remains.ids, prompt), len(prompt) - 1)
        if length < remains.held and not remains.route.truncate:
            lengths = remains.marks.lengths if remains.route.marks else ()
            length = max((mark for mark in lengths if mark <= length), default=0)
        if length < self._limits.tokens_min or 2 * length < remains.prompt_length:
            return 0
        return length

    def _expire(self, now: float) -> None:
        for each in list(self._sessions.values()):
            if now >= each.until:
                self._drop(each)

    def _drop(self, each: Lingering) -> None:
        del self._sessions[each.session]
        self._let_go(each)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common prefix, by slices: in a loop they are slow."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
