"""What a generation asks next: the step its caches make possible, put to one hop after the other.

    sequence, route --next_step--> Step --ask--> Asking (one question to one hop)

Keeps what names a question (attempt, step number) and whom it went to. It decides nothing about
answers.
"""

from __future__ import annotations

from meshnet.core.generation.accounting import Accounts
from meshnet.core.generation.drafting import Drafter
from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.generation.requests import forward_for
from meshnet.core.generation.sequence import CacheUse, Step, TokenSequence
from meshnet.core.generation.states import Asking, GenerationSpec
from meshnet.core.generation.transcript import StepRef
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import DRAFTS_MAX, Activation, Drawn, NodeId, Route

DRAFTS_FAILED_MAX = 2
"""Misses of shortened sessions after which a generation goes on without drafts."""


class Questions:
    """The questions of one generation. `attempt` rises with every start, and never falls."""

    def __init__(
        self,
        spec: GenerationSpec,
        route: Route,
        sequence: TokenSequence,
        *,
        limits: GenerationLimits,
        accounts: Accounts,
    ) -> None:
        self._spec, self._limits = spec, limits
        self._sequence, self._accounts = sequence, accounts
        self.route = route
        self.attempt, self._step = 0, 0
        self.filling_since = 0.0
        self._asked_at = 0.0
        self._drafter = Drafter(sequence.ids, spec.stop.stop_ids, fixed=limits.drafts)
        self._drafts_failed = 0
        self._touched: dict[NodeId, None] = {}
        if spec.reserved:
            self._touched = {hop.node: None for hop in route.hops}

    @property
    def touched(self) -> tuple[NodeId, ...]:
        """The nodes that may hold something of the session."""
        return tuple(self._touched)

    def reroute(self, route: Route) -> None:
        self.route = route
        if not route.kv_cache:
            self._sequence.degrade(CacheUse.NONE)

    def next_step(self, now: float) -> Step:
        chunk = self._limits.prefill_chunk if self.route.multi_token else self._sequence.length
        step = self._sequence.next_step(chunk=chunk)
        self._step += 1
        self._asked_at = now
        if self._may_guess(step):
            step = step.guessing(self._drafter.guesses(self._guesses_most()))
        if step.mode is not Mode.DECODE or step.adopt is not None:
            self.attempt += 1
            self._accounts.prefills += step.mode is not Mode.DECODE
            self.filling_since = now
        return step

    def judged(self, step: Step, drawn: Drawn, now: float) -> int:
        """Learn from a step that ended; return how many of its guesses were right."""
        right = len(drawn.tokens) - 1
        if self._may_guess(step):
            self._drafter.judged(drawn.ids, took_s=now - self._asked_at)
        self._accounts.guessed += step.drafts
        self._accounts.accepted += right
        return right

    def missed(self, step: Step) -> None:
        """A hop could not serve `step`; one that cannot truncate must not be asked to for ever."""
        self._drafts_failed += step.truncate and step.adopt is None

    def _may_guess(self, step: Step) -> bool:
        able = self.route.truncate and self.route.multi_token and self._limits.drafts != 0
        single = step.mode is Mode.DECODE and len(step.tokens) - step.drafts == 1
        return able and single and self._drafts_failed < DRAFTS_FAILED_MAX

    def _guesses_most(self) -> int:
        """The last token allowed is drawn, never guessed: no step is longer than one without."""
        left = self._spec.stop.tokens_max - self._sequence.generated
        return min(DRAFTS_MAX, left - 1)

    def ask(
        self, step: Step, hop: int, activation: Activation | None, *, remaining_s: float, now: float
    ) -> Asking:
        """Put `step` to the route's hop number `hop`."""
        forward = forward_for(
            step,
            StepRef(self.attempt, self._step, hop),
            activation,
            spec=self._spec,
            route=self.route,
            limits=self._limits,
            remaining_s=remaining_s,
        )
        if step.mode is not Mode.STATELESS:
            self._touched[forward.hop.node] = None
        self._accounts.asked(forward.hop, tokens=len(step.tokens), activation=activation)
        return Asking(forward, step, now, now + forward.silence_s)
