"""What a generation asks next: the steps its caches make possible, each put to hop after hop.

    sequence, route --next_steps--> Pipeline --ask--> Forwards (one question to one stage each)

Keeps what names a question (attempt, step number) and whom it went to. It decides nothing about
answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from meshnet.core.generation.accounting import Accounts
from meshnet.core.generation.chunking import Chunking, opening_apart
from meshnet.core.generation.drafting import Drafter
from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.generation.pipeline import Entering, Pipeline, Question
from meshnet.core.generation.requests import Answer, forward_for, is_answer
from meshnet.core.generation.sequence import CacheUse, Step, TokenSequence
from meshnet.core.generation.states import GenerationSpec
from meshnet.core.generation.survivors import Found, Salvage, Span, candidates, salvage
from meshnet.core.generation.transcript import Forward, Remains, StepRef
from meshnet.core.protocol.limits import STEPS_OUT_MAX
from meshnet.core.protocol.messages import Mode, TokenReply
from meshnet.core.vocabulary import DRAFTS_MAX, Drawn, Hop, NodeId, Route, segments_of

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
            sequence.ids,
            spec.stop.stop_ids,
            fixed=limits.drafts,
            windows=limits.windows,
            told=spec.sampling.forced,
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
        self._spoiled: set[Hop] = set()
        """Hops that could not go on with what they held, since the last token."""
        self._unfilled: deque[Span] = deque()
        self._filling: Span | None = None
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
        if self.route.arithmetic and route.arithmetic - self.route.arithmetic:
            self._accounts.inexact += 1
        self.route = route
        if not route.kv_cache:
            self._sequence.degrade(CacheUse.NONE)

    def kept(self, lost: Hop | None) -> tuple[Hop, ...]:
        """The hops besides `lost` that may still hold what was confirmed."""
        if self._sequence.confirmed is None:
            return ()
        return tuple(hop for hop in candidates(self.route, self._spoiled) if hop != lost)

    def remains(self) -> Remains | None:
        """Return what the hops hold, if every step has ended; None: nobody can go on from there."""
        cached, sequence = self._sequence.cached(), self._sequence
        if cached is None:
            return None
        return Remains(*cached, sequence.prompt_length, self.route, sequence.marks)

    def progress(self) -> None:
        """A token came: what every hop holds is as it should be."""
        self._spoiled.clear()

    def salvaged(self, found: Sequence[Found]) -> Salvage | None:
        """Say what survived by what the hops of the route said; None: nothing."""
        if (confirmed := self._sequence.confirmed) is None:
            return None
        return salvage(
            self.route,
            found,
            confirmed=confirmed,
            attempt=self.attempt,
            spoiled=self._spoiled,
        )

    def go_on(self, salvaged: Salvage, now: float) -> Pipeline:
        """Begin a new attempt with what survived: fill the other hops, then go on."""
        self.attempt += 1
        self.filling_since = now
        # A step that ran when a hop told its length may still be counted in there.
        self._sequence.survive(salvaged.held + self.route.truncate)
        self._unfilled = deque(salvaged.spans)
        return self._next_filled(now)

    def unfilled(self, pipeline: Pipeline, now: float) -> Pipeline:
        """Return what is left of a span to fill, or what is to be asked behind it."""
        return self._next_filled(now) if pipeline.ended else pipeline

    def _next_filled(self, now: float) -> Pipeline:
        """Return the steps that fill the next span, or those after all of them."""
        if not self._unfilled:
            return self.next_steps(now)
        self._filling = span = self._unfilled.popleft()
        self._set_stages(span.stages(self.route, chained=self._chains))
        steps = self._sequence.fill_steps(partial(self._ends, hops=len(span.hops)))
        first_number = self._step + 1
        self._step += len(steps)
        return Pipeline(steps, first_number, self._rooms)

    def fills(self, question: Question) -> bool:
        """Whether this step fills a span, and ends where it was asked."""
        return self._ends_fill(question.forward.ref.hop)

    @property
    def filling(self) -> bool:
        return self._filling is not None

    def answers(self, question: Question, hop: Hop, reply: Answer) -> bool:
        """Whether this is what was asked, and comes from whom it should."""
        last, expected = self.route.hops[-1], question.forward.hops[-1]
        if hop is not expected and hop != expected:
            return False
        if self.fills(question) and isinstance(reply, TokenReply):
            return reply.drawn is None
        is_tail = expected is last or expected == last
        return is_answer(reply, question.step, is_tail=is_tail)

    def next_steps(self, now: float, void: int = 0) -> Pipeline:
        steps = self._sequence.next_steps(self._ends)
        self._asked_at, self._filling = now, None
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
        self._set_way()
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

    def _set_way(self) -> None:
        """Say which hops answer as one: those that hand steps on, of sessions that all hold."""
        chained = self._chains and self._sequence.use is CacheUse.CACHED
        if self._staged is self.route and self._chained == chained:
            return
        self._set_stages(segments_of(self.route.hops, self.route.onward if chained else ()))
        self._staged, self._chained = self.route, chained

    def _set_stages(self, stages: tuple[tuple[Hop, ...], ...]) -> None:
        self._staged, self._stages = None, stages
        self._rooms = tuple(map(_room, stages))

    def leave_chain(self) -> None:
        """Nodes failed to hand a step on: from now on each is asked by itself."""
        self._chains = False

    def _ends(self, past: int, length: int, hops: int | None = None) -> Iterable[int]:
        if not self.route.multi_token:
            return (length,)
        ends = self._chunking.ends(past, length, hops or len(self.route.hops))
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

    def missed(self, step: Step, hops: Iterable[Hop]) -> None:
        """Hops could not serve `step`; one that cannot truncate must not be asked to for ever."""
        self._spoiled.update(hops)
        self._drafts_failed += step.truncate and step.adopt is None

    def spoil(self, hop: Hop) -> None:
        """What this hop holds is not what it should be."""
        self._spoiled.add(hop)

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
            replay=self._replays(entering.stage),
            fill=self._ends_fill(entering.stage)
            and all(hop.node in self.route.replay for hop in hops),
        )
        if step.mode is not Mode.STATELESS:
            for hop in hops:
                self._touched[hop.node] = None
        tokens, activation = len(step.tokens), entering.activation
        self._accounts.asked(
            hops, tokens=tokens, activation=activation, replays=forward.request.replay
        )
        pipeline.ask(Question(forward, step, now, now + forward.silence_s))
        return forward

    def _replays(self, stage: int) -> bool:
        return not stage and self._filling is not None and self._filling.source is not None

    def _ends_fill(self, stage: int) -> bool:
        return self._filling is not None and stage == len(self._stages) - 1


def _room(hops: tuple[Hop, ...]) -> int:
    """Say how many steps a stage may have: one hop one, others one at work and one on its way."""
    return 1 if len(hops) == 1 else min(2 * len(hops), STEPS_OUT_MAX)
