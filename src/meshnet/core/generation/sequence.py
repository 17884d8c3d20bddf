"""What a generation knows of its tokens, how many of them the nodes hold, and what to send next.

    ids       p p p p p p g g          prompt, then generated; grows, never changes
    cached    ------->|                positions every hop has confirmed
    held      ------------->|          what the hops hold: guesses that were wrong as well
    next steps        p p p|p g g      the rest, cut into chunks; the last wants a token

One rule serves first prefill, further chunks, decode and refill: a refill only
sets `cached` back to 0. Where the prompt goes on with what an earlier session holds, `cached`
starts there, and the first step says whose positions it means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.marks import Marks
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import SessionId


class CacheUse(Enum):
    """How much a generation trusts its route's caches. It only ever falls.

    CACHED      every hop confirms what it holds: prefill once, then decode.
    EACH_STEP   some hop confirms nothing (an older node) or its tail names no token: prefill
                every step, as ADR-0022 has it. Its cost is the old cost, its tokens are right.
    NONE        some hop cannot cache: stateless requests only, on the whole route.
    """

    CACHED = 0
    EACH_STEP = 1
    NONE = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One traversal: `tokens` are the ids of its new positions."""

    mode: Mode
    past_length: int
    tokens: tuple[int, ...]
    want_token: bool
    prefix: str | None
    truncate: bool = False
    """The nodes hold more than `past_length`: guesses that were not confirmed."""
    drafts: int = 0
    """How many of the last `tokens` are guesses."""
    adopt: SessionId | None = None
    """The session that held the `past_length` positions so far."""

    @property
    def length_after(self) -> int:
        return self.past_length + len(self.tokens)

    @property
    def guesses(self) -> tuple[int, ...]:
        return self.tokens[len(self.tokens) - self.drafts :]

    def guessing(self, guesses: tuple[int, ...]) -> Step:
        """This step, and in the same go what may follow it."""
        return replace(self, tokens=self.tokens + guesses, drafts=len(guesses))


@dataclass(frozen=True, slots=True)
class Adoption:
    """The session a prompt continues: they share `length` of the `held` positions it has."""

    session: SessionId
    length: int
    held: int
    marks: Marks = Marks()  # noqa: RUF009
    """Of its first `length` positions."""


class TokenSequence:
    """The accumulated ids and the confirmed length. Private to one generation."""

    def __init__(
        self, prompt: tuple[int, ...], use: CacheUse, adoption: Adoption | None = None
    ) -> None:
        if not prompt:
            raise ValueError("prompt: expected at least one token")
        self._ids = list(prompt)
        self._prompt_length = len(prompt)
        self._digest = PrefixDigest()
        self._held = 0
        self._marks = Marks()
        self._use = use
        self._adopt: SessionId | None = None
        self._moving = False
        if adoption is not None and use is CacheUse.CACHED:
            assert 0 < adoption.length < len(prompt), "the last position has to be run"
            self._digest = self._digest.extend(prompt[: adoption.length])
            self._held, self._adopt = adoption.held, adoption.session
            self._marks = adoption.marks

    @property
    def use(self) -> CacheUse:
        return self._use

    @property
    def ids(self) -> Sequence[int]:
        """Prompt and generated ids; what is seen here grows."""
        return self._ids

    @property
    def length(self) -> int:
        return len(self._ids)

    @property
    def generated(self) -> int:
        return len(self._ids) - self._prompt_length

    @property
    def prompt_length(self) -> int:
        return self._prompt_length

    def degrade(self, use: CacheUse) -> None:
        """Trust the caches no more than `use` from now on."""
        if use.value > self._use.value:
            self._use = use

    @property
    def confirmed(self) -> PrefixDigest | None:
        """Of the positions that every hop has confirmed; None if no loss can leave any of them."""
        sure = self._use is CacheUse.CACHED and self._adopt is None and self._digest.length
        return self._digest if sure else None

    @property
    def confirmed_length(self) -> int:
        return 0 if self.confirmed is None else self.confirmed.length

    def survive(self, held: int) -> None:
        """What was confirmed is held again by every hop, up to `held` positions by some of them."""
        self._held, self._moving = max(held, self._digest.length), True
        self._marks = Marks()

    def forget_cached(self) -> None:
        self._digest, self._held, self._adopt = PrefixDigest(), 0, None
        self._moving = False
        self._marks = Marks()

    def append(self, token_id: int) -> None:
        self._ids.append(token_id)

    def commit(self, step: Step, *, accepted: int = 0) -> None:
        """Every hop confirmed `step`: its positions are cached, `accepted` guesses among them."""
        if self._use is CacheUse.CACHED:
            assert step.past_length == self._digest.length
            sure = len(step.tokens) - step.drafts
            self._digest = self._digest.extend(step.tokens[: sure + accepted])
            self._held, self._adopt, self._moving = step.length_after, None, False
            marks = self._marks.before(step.past_length, sure, want_token=step.want_token)
            self._marks = marks.after(step.length_after, sure, want_token=step.want_token)

    def reach(self, length: int) -> None:
        """The hops hold up to `length` positions, or will: steps are on their way to them."""
        self._held, self._moving = max(self._held, length), True

    def window(self, before: Iterable[Step], tokens: tuple[int, ...]) -> Step:
        """Return a step of guesses behind steps on their way, as if all of those were right."""
        digest = self._digest
        for step in before:
            digest = digest.extend(step.tokens)
        return Step(
            Mode.DECODE,
            digest.length,
            tokens,
            want_token=True,
            prefix=digest.hex,
            drafts=len(tokens) - 1,
        )

    @property
    def marks(self) -> Marks:
        """What the hops can go back to, if not to any length."""
        return self._marks

    def cached(self) -> tuple[tuple[int, ...], int] | None:
        """Return the ids that every hop has confirmed, and how many positions the hops hold.

        None if nobody can go on from there, also because steps are still on their way.
        """
        length = min(self._digest.length, len(self._ids))  # guesses may be right beyond the end
        if (
            self._use is not CacheUse.CACHED
            or not length
            or self._adopt is not None
            or self._moving
        ):
            return None
        return tuple(self._ids[:length]), self._held

    def fill_steps(self, ends: Callable[[int, int], Iterable[int]]) -> tuple[Step, ...]:
        """Say what a hop that holds nothing has to get, up to what the others have confirmed."""
        steps: list[Step] = []
        digest = PrefixDigest()
        for end in ends(0, self._digest.length):
            past = digest.length
            mode, tokens = Mode.DECODE if past else Mode.PREFILL, tuple(self._ids[past:end])
            steps.append(Step(mode, past, tokens, want_token=False, prefix=digest.hex))
            digest = digest.extend(tokens)
        return tuple(steps)

    def next_steps(self, ends: Callable[[int, int], Iterable[int]]) -> tuple[Step, ...]:
        """Say what to send next: where caches are used, all up to the next token.

        `ends(past, length)` tells where the positions from `past` to `length` are cut.
        """
        if self._use is not CacheUse.CACHED:
            mode = Mode.PREFILL if self._use is CacheUse.EACH_STEP else Mode.STATELESS
            return (Step(mode, 0, tuple(self._ids), want_token=True, prefix=None),)
        steps: list[Step] = []
        digest = self._digest
        for end in ends(digest.length, len(self._ids)):
            past = digest.length
            step = Step(
                Mode.DECODE if past else Mode.PREFILL,
                past,
                tuple(self._ids[past:end]),
                want_token=end == len(self._ids),
                prefix=digest.hex if past else None,
            )
            if not steps:
                step = replace(step, truncate=0 < past < self._held, adopt=self._adopt)
            steps.append(step)
            if step.want_token:
                break
            digest = digest.extend(step.tokens)
        return tuple(steps)
