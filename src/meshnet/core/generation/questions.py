"""What a generation asks next: the steps its caches make possible, each put to hop after hop.

    sequence, route --next_steps--> Pipeline --ask--> Forwards (one question to one stage each)

Keeps what names a question (attempt, step number) and whom it went to. It decides nothing about
answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshnet.core.generation.accounting import Accounts
from meshnet.core.generation.chunking import Chunking, opening_apart
from meshnet.core.generation.drafting import Drafter
from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.generation.pipeline import Entering, Pipeline, Question
from meshnet.core.generation.requests import forward_for
from meshnet.core.generation.sequence import CacheUse, Step, TokenSequence
from meshnet.core.generation.states import GenerationSpec
from meshnet.core.generation.transcript import Forward, StepRef
from meshnet.core.protocol.limits import STEPS_OUT_MAX
from meshnet.core.protocol.messages import Mode, TokenReply
from meshnet.core.vocabulary import DRAFTS_MAX, Drawn, Hop, NodeId, Route

DRAFTS_FAILED_MAX = 2
"""Misses of shortened sessions after which a generation goes on without drafts."""


class Questions:
    """The questions of one generation. `attempt` rises with every start, and never falls.

    `guessed` says whether guesses are among what was asked since the last start.
    """

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
        self._drafter = Drafter(
            sequence.ids, spec.stop.stop_ids, fixed=limits.drafts, windows=limits.windows
        )
        self._chains = limits.chains
        self._staged: Route | None = None
        """The route that the stages are of, and whether its hops hand steps on."""
        self._chained = False
        self._stages: tuple[tuple[Hop, ...], ...] = ()
        self._rooms: tuple[int, ...] = ()
        self._guessing, self._drafts_failed = False, 0
        self.guessed = False
        self._chunking = Chunking(limits.prefill_chunk, limits.chunk_grain, limits.step_price)
        self._touched: dict[NodeId, None] = {}
        if spec.reserved:
            self._touched = {hop.node: None for hop in route.hops}

    @property
    def touched(self) -> tuple[NodeId, ...]:
        """The nodes that may hold something of the session."""
        return tuple(self._touched)

    @property
    def fingerprint(self) -> str | None:
        """Of the only weights that may go on; before the first token any will do."""
        return (self.route.fingerprint or None) if self._sequence.generated else None

    def touch(self, node: NodeId) -> None:
        """Note that `node` may hold something of the session."""
        self._touched[node] = None

    def reroute(self, route: Route) -> None:
        self.route = route
        if not route.kv_cache:
            self._sequence.degrade(CacheUse.NONE)

    def next_steps(self, now: float, void: int = 0) -> Pipeline:
        steps = self._sequence.next_steps(self._ends)
        self._asked_at = now
        self._guessing = self._may_guess(steps)
        if self._guessing:
            steps = (steps[0].guessing(self._drafter.guesses(self._guesses_most())),)
        self.guessed = steps[0].drafts > 0
        if steps[0].mode is not Mode.DECODE or steps[0].adopt is not None:
            self.attempt += 1
            self._accounts.prefills += steps[0].mode is not Mode.DECODE
            self.filling_since = now
        first_number = self._step + 1
        self._step += len(steps)
        self._set_stages()
        pipeline = Pipeline(steps, first_number, self._rooms)
        self.add_windows(pipeline, void)
        return pipeline

    def add_windows(self, pipeline: Pipeline, void: int) -> None:
        """Let windows of guesses follow those on their way, as many as pay.

        `void` windows were overtaken and are on their way, too: the places they take are taken.
        """
        room = min(pipeline.room, STEPS_OUT_MAX - void)
        while self._guessing and room > 1:
            steps = pipeline.steps
            left = self._left - sum(len(step.tokens) for step in steps)
            tokens = self._drafter.further(left, room)
            if not tokens:
                return
            self._step, self.guessed = self._step + 1, True
            pipeline.add(self._sequence.window(steps, tokens), self._step)

    def follows(self, pipeline: Pipeline, drawn: Drawn, right: int, guesses: int) -> bool:
        """Whether the windows on their way are built on what was drawn."""
        steps = pipeline.steps
        return bool(steps) and right == guesses and steps[0].tokens[0] == drawn.ids[-1]

    def _set_stages(self) -> None:
        """Say which hops answer as one: those that hand steps on, of sessions that all hold."""
        chained = self._chains and self._sequence.use is CacheUse.CACHED
        if self._staged is self.route and self._chained == chained:
            return
        self._staged, self._chained = self.route, chained
        self._stages = self.route.segments if chained else tuple((hop,) for hop in self.route.hops)
        self._rooms = tuple(map(_room, self._stages))

    def leave_chain(self) -> None:
        """Nodes failed to hand a step on: from now on each is asked by itself."""
        self._chains = False

    def _ends(self, past: int, length: int) -> Iterable[int]:
        if not self.route.multi_token:
            return (length,)
        ends = self._chunking.ends(past, length, len(self.route.hops))
        if self._spec.lingers and self.route.marks and not self.route.truncate:
            return opening_apart(ends, past, length, self._limits.opening)
        return ends

    def judged(self, question: Question, reply: TokenReply, drawn: Drawn, now: float) -> int:
        """Learn from a step that ended; return how many of its guesses were right."""
        step, right = question.step, len(drawn.tokens) - 1
        if self._guessing:
            self._drafter.judged(
                drawn.ids,
                took_s=now - self._asked_at,
                work_s=reply.compute_us / 1e6,
                hops=len(question.forward.hops),
            )
        self._accounts.guessed += step.drafts
        self._accounts.accepted += right
        return right

    def missed(self, step: Step) -> None:
        """A hop could not serve `step`; one that cannot truncate must not be asked to for ever."""
        self._drafts_failed += step.truncate and step.adopt is None

    def stop_guessing(self) -> None:
        """Send no more guesses in this generation."""
        self._drafts_failed = DRAFTS_FAILED_MAX

    def _may_guess(self, steps: Sequence[Step]) -> bool:
        able = self.route.truncate and self.route.multi_token and self._limits.drafts != 0
        single = steps[0].mode is Mode.DECODE and len(steps) == len(steps[0].tokens) == 1
        return able and single and self._drafts_failed < DRAFTS_FAILED_MAX

    def _guesses_most(self) -> int:
        """The last token allowed is drawn, never guessed: no step is longer than one without."""
        return min(DRAFTS_MAX, self._left - 1)

    @property
    def _left(self) -> int:
        """How many tokens may still be drawn."""
        return self._spec.stop.tokens_max - self._sequence.generated

    def ask(self, pipeline: Pipeline, *, remaining_s: float, now: float) -> list[Forward]:
        """Put to each hop what it can be asked now, the hops nearest the end first."""
        return [self._ask(pipeline, each, remaining_s, now) for each in pipeline.ready()]

    def _ask(
        self, pipeline: Pipeline, entering: Entering, remaining_s: float, now: float
    ) -> Forward:
        step, hops = entering.step, self._stages[entering.stage]
        forward = forward_for(
            step,
            StepRef(self.attempt, entering.number, entering.stage),
            entering.activation,
            hops=hops,
            spec=self._spec,
            route=self.route,
            limits=self._limits,
            remaining_s=remaining_s,
        )
        if step.mode is not Mode.STATELESS:
            for hop in hops:
                self._touched[hop.node] = None
        tokens, activation = len(step.tokens), entering.activation
        self._accounts.asked(hops, tokens=tokens, activation=activation)
        pipeline.ask(Question(forward, step, now, now + forward.silence_s))
        return forward


def _room(hops: tuple[Hop, ...]) -> int:
    """Say how many steps a stage may have: one hop one, others one at work and one on its way."""
    return 1 if len(hops) == 1 else min(2 * len(hops), STEPS_OUT_MAX)
