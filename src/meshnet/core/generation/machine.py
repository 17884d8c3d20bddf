"""One generation, as the head sees it: events in, actions out, no I/O (ADR-0022, ADR-0023).

    idle -started-> asking -token-> delivering -delivered-> asking ... -> done
                      |  ^
          refused:    |  |  tick: refill
          wait        +--+--> waiting, then rerouting
          lost, moved +--+--> rerouting -rerouted-> refill
    a silent chain    +--+--> locating, then rerouting or refill

Steps walk the route stage by stage, those of a long prompt behind each other; a stage is a hop, or
hops that hand steps on to each other. Any miss or loss sets the cached length back to zero and the
next step is a prefill of all ids so far, under the same session id and a higher attempt: the
recovery path is the starting path. What it is, is decided in recovery.py. How much the caches are
trusted only falls (sequence.py).

Invariants
    * an answer counts while its question is open, and in the order of the questions;
    * a token is emitted once and never changes; exactly one Finish or Fail ends a generation
      that is not cancelled, and nothing follows it;
    * every state but idle and done has a deadline; recoveries are bounded (limits.py);
    * nothing a peer sends and no order of events raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from meshnet.core.generation.accounting import Accounts, GenerationStats
from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.generation.pipeline import Pipeline, Question
from meshnet.core.generation.questions import Questions
from meshnet.core.generation.recovery import Recovery, Refill, Turn
from meshnet.core.generation.requests import Answer
from meshnet.core.generation.sequence import CacheUse, TokenSequence
from meshnet.core.generation.states import (
    Asking,
    Delivering,
    Done,
    GenerationSpec,
    Idle,
    Locating,
    Rerouting,
    State,
    Surveying,
    Waiting,
    own_deadline,
)
from meshnet.core.generation.survivors import Found
from meshnet.core.generation.transcript import (
    Alive,
    Cancelled,
    Delivered,
    Emit,
    Fail,
    Finish,
    FinishReason,
    GenerationAction,
    GenerationEvent,
    Locate,
    Located,
    Lost,
    NoRoute,
    Overtaken,
    Refilling,
    RefillReason,
    Release,
    Replied,
    Rerouted,
    Started,
    StepRef,
    Tick,
)
from meshnet.core.protocol.messages import ActivationReply, Mode, Refusal, Reply, TokenReply
from meshnet.core.vocabulary import Hop, Route, SampledToken

Actions = list[GenerationAction]


class Generation:
    """Drive one prompt to one completion.

    `encode_text` turns the text of a tail that names no token id into ids (ADR-0022's fleet before
    `token_id`): only such tails need it, and text drift is theirs alone. It may give several ids,
    each of which counts as a token; none means that the text ended. `jitter` gives numbers in
    [0, 1) and spreads the waits.
    """

    def __init__(
        self,
        spec: GenerationSpec,
        route: Route,
        *,
        limits: GenerationLimits,
        encode_text: Callable[[str], tuple[int, ...]],
        jitter: Callable[[], float],
    ) -> None:
        sampling = spec.sampling.after(len(spec.prompt))
        self._spec, self._encode_text = replace(spec, sampling=sampling), encode_text
        self._limits = limits
        use = CacheUse.CACHED if route.kv_cache else CacheUse.NONE
        self._sequence = TokenSequence(spec.prompt, use, spec.adoption)
        self._accounts = Accounts()
        self._questions = Questions(
            self._spec, route, self._sequence, limits=limits, accounts=self._accounts
        )
        self._recovery = Recovery(
            limits, self._sequence, self._questions, deadline_at=spec.deadline_at, jitter=jitter
        )
        self._state: State = Idle()

    @property
    def done(self) -> bool:
        return isinstance(self._state, Done)

    @property
    def route(self) -> Route:
        """The hops that the present step goes through."""
        return self._questions.route

    def asks(self, ref: StepRef) -> bool:
        """Whether this question is still open."""
        return self._open_question(ref) is not None

    @property
    def reused(self) -> int:
        return self._accounts.reused

    @property
    def cache_use(self) -> CacheUse:
        return self._sequence.use

    def stats(self, now: float) -> GenerationStats:
        return self._accounts.stats(
            prompt_tokens=self._sequence.prompt_length,
            completion_tokens=self._sequence.generated,
            now=now,
        )

    def deadline(self) -> float | None:
        """The time at which the machine must be ticked if nothing else happened before."""
        if self.done:
            return None
        own = own_deadline(self._state)
        return self._recovery.until if own is None else min(own, self._recovery.until)

    def handle(self, event: GenerationEvent, now: float) -> Actions:
        if isinstance(self._state, Done):
            return []
        match event:
            case Started():
                return self._started(now)
            case Delivered(void):
                return self._delivered(void, now)
            case Replied(ref, reply, hop):
                return self._replied(ref, reply, hop, now)
            case Lost(ref, reason, hop):
                return self._lost(ref, reason, hop, now)
            case Alive(ref):
                return self._alive(ref, now)
            case Located(found):
                return self._located(found, now)
            case Rerouted(route):
                return self._rerouted(route, now)
            case NoRoute(message):
                return self._no_route(message, now)
            case Tick():
                return self._tick(now)
            case Cancelled():
                return self._end([], at_rest=isinstance(self._state, Delivering))
            case _:
                assert_never(event)

    # --- events -------------------------------------------------------------------------------

    def _started(self, now: float) -> Actions:
        if not isinstance(self._state, Idle):
            return []
        self._accounts.started_at = now
        return self._ask(self._questions.next_steps(now), now)

    def _delivered(self, void: int, now: float) -> Actions:
        match self._state:
            case Delivering(None):
                return self._ask(self._questions.next_steps(now, void), now)
            case Delivering(Pipeline() as pipeline):
                pipeline.resume(now)
                self._questions.add_windows(pipeline, void)
                return self._ask(pipeline, now)
        return []

    def _replied(self, ref: StepRef, reply: Reply, by: Hop | None, now: float) -> Actions:
        question = self._open_question(ref)
        if question is None:
            return []
        hop = by or question.forward.hop
        self._accounts.answered(hop, reply, waited_s=now - question.asked_at)
        if isinstance(reply, Refusal):
            return self._turn(self._recovery.refused(question, hop, reply, now), now)
        if not self._questions.answers(question, hop, reply):
            return self._lose(hop, "answered something else than was asked", now)
        return self._answered(question, reply, now)

    def _lost(self, ref: StepRef, reason: str, hop: Hop | None, now: float) -> Actions:
        question = self._open_question(ref)
        if question is None:
            return []
        if question.forward.chain and hop is None:
            self._state = Locating(question, now + 2 * self._limits.locate_s)
            return [Locate(self._spec.session, question.forward.hops, self._limits.locate_s)]
        return self._lose(hop or question.forward.hop, reason, now)

    def _located(self, found: Sequence[Found], now: float) -> Actions:
        match self._state:
            case Locating(question):
                return self._turn(self._recovery.silent(question, found, now), now)
            case Surveying(reason):
                return self._surveyed(reason, found, now)
        return []

    def _alive(self, ref: StepRef, now: float) -> Actions:
        if isinstance(self._state, Asking) and (question := self._open_question(ref)) is not None:
            self._state.pipeline.heard(question, now)
        return []

    def _rerouted(self, route: Route, now: float) -> Actions:
        if not isinstance(self._state, Rerouting):
            return []
        self._questions.reroute(route)
        return self._turn(Refill(self._state.refill), now)

    def _no_route(self, message: str, now: float) -> Actions:
        if isinstance(self._state, Rerouting) and self._state.ask_at is None:
            self._state = self._recovery.no_route(self._state, message, now)
        return []

    def _tick(self, now: float) -> Actions:
        if now >= self._recovery.until:
            return self._out_of_time(now)
        match self._state:
            case Asking(pipeline) if (late := pipeline.overdue(now)) is not None:
                why = f"no answer in {now - late.asked_at:.3g} s"
                return self._lost(late.forward.ref, why, None, now)
            case Locating(until=until) | Surveying(until=until) if now >= until:
                return self._located((), now)
            case Waiting(until, _) if now >= until:
                return self._refill(RefillReason.WAITED, now)
            case Rerouting(ask=ask, ask_at=ask_at) if ask_at is not None and now >= ask_at:
                self._state = replace(self._state, ask_at=None)
                return [ask]
            case _:
                return []

    def _answered(self, question: Question, reply: Answer, now: float) -> Actions:
        step, request = question.step, question.forward.request
        if request.mode is not Mode.STATELESS and reply.cached != step.length_after:
            if reply.cached is not None or request.mode is Mode.DECODE:
                short = f"holds {reply.cached} positions"
                self._questions.spoil(question.forward.hops[-1])
                return self._turn(self._recovery.refill(RefillReason.MISS, short, now), now)
            # A prefill without confirmation: an older node, which would run a decode statelessly
            # and answer 200. Its answer to a whole prefill is right all the same.
            self._sequence.degrade(CacheUse.EACH_STEP)
            if not step.want_token:
                return self._refill(RefillReason.DEGRADED, now)
        assert isinstance(self._state, Asking), "a question is open"
        pipeline = self._state.pipeline
        if not pipeline.in_turn(question):
            return self._turn(self._recovery.chain_broken("answers in another order", now), now)
        if isinstance(reply, ActivationReply) and not self._questions.fills(question):
            pipeline.passed(question, reply.activation, now)
            return self._ask(pipeline, now)
        pipeline.passed(question, None, now)
        if isinstance(reply, ActivationReply) or self._questions.filling:
            return self._ask(self._questions.unfilled(pipeline, now), now)
        return self._complete(question, reply, pipeline, now)

    def _complete(
        self, question: Question, reply: TokenReply, rest: Pipeline, now: float
    ) -> Actions:
        step = question.step
        drawn = reply.drawn if step.want_token else None
        right = 0 if drawn is None else self._questions.judged(question, reply, drawn, now)
        self._sequence.commit(step, accepted=right)
        self._accounts.reused += step.past_length if step.adopt is not None else 0
        if not step.want_token:
            return self._ask(rest, now)
        if drawn is None:
            self._sequence.degrade(CacheUse.EACH_STEP)
            tokens = tuple(SampledToken(token_id) for token_id in self._encode_text(reply.text))
            return self._emit(tokens, now)
        follows = self._questions.follows(rest, drawn, right, step.drafts)
        behind = rest.open
        for question in behind:
            self._sequence.reach(question.step.length_after)
        emitted = self._emit(drawn.tokens, now)
        if not behind and not follows:
            return emitted
        return self._go_on(emitted, rest, behind, follows=follows)

    def _go_on(
        self, emitted: Actions, rest: Pipeline, behind: Sequence[Question], *, follows: bool
    ) -> Actions:
        """Keep the windows that are on their way, if they follow what was emitted."""
        if self.done:
            return emitted
        if follows:
            self._state = Delivering(rest)
            return emitted
        self._accounts.guessed += sum(question.step.drafts for question in behind)
        return [*emitted, Overtaken(tuple(question.forward.ref for question in behind))]

    def _emit(self, tokens: tuple[SampledToken, ...], now: float) -> Actions:
        """Hand the tokens on, up to the one that ends the generation."""
        emitted: Actions = []
        for token in tokens:
            self._sequence.append(token.token_id)
            self._accounts.emitted(now)
            emitted.append(Emit(token))
            ended = self._spec.stop.after(token.token_id, generated=self._sequence.generated)
            if ended is not None:
                return self._end([*emitted, Finish(ended, self.stats(now))], at_rest=True)
        if not tokens:
            return self._end([Finish(FinishReason.STOP, self.stats(now))])
        self._recovery.progress()
        self._state = Delivering()
        return emitted

    # --- recovery -----------------------------------------------------------------------------

    def _lose(self, hop: Hop, why: str, now: float) -> Actions:
        return self._turn(self._recovery.lost(hop, why, now), now)

    def _turn(self, turn: Turn, now: float) -> Actions:
        match turn:
            case Refill(reason):
                return self._survey(turn, now) or self._refill(reason, now)
            case Fail():
                return self._end([turn])
            case Waiting():
                self._state = turn
                return []
            case Rerouting():
                self._state = turn
                return [turn.ask] if turn.ask_at is None else []

    def _survey(self, refill: Refill, now: float) -> Actions:
        """Ask what is left, if something may be."""
        if not refill.salvages or not self._questions.kept(None):
            return []
        self._state = Surveying(refill.reason, now + 2 * self._limits.locate_s)
        return [Locate(self._spec.session, self.route.hops, self._limits.locate_s)]

    def _surveyed(self, reason: RefillReason, found: Sequence[Found], now: float) -> Actions:
        salvaged = self._questions.salvaged(found)
        if salvaged is None:
            return self._refill(reason, now)
        pipeline = self._questions.go_on(salvaged, now)
        positions = self._sequence.confirmed_length * salvaged.refilled
        return self._refilling(reason, pipeline, now, positions=positions, partial=True)

    def _refill(self, reason: RefillReason, now: float) -> Actions:
        positions = self._sequence.confirmed_length * len(self.route.hops)
        self._sequence.forget_cached()
        pipeline = self._questions.next_steps(now)
        return self._refilling(reason, pipeline, now, positions=positions, partial=False)

    def _refilling(
        self, reason: RefillReason, pipeline: Pipeline, now: float, *, positions: int, partial: bool
    ) -> Actions:
        generated = self._sequence.generated
        self._accounts.refilled(generated=generated, positions=positions, partial=partial)
        asked = self._ask(pipeline, now)
        told = Refilling(reason, self._questions.attempt, positions, partial)
        return asked if self.done else [told, *asked]

    # --- questions ----------------------------------------------------------------------------

    def _ask(self, pipeline: Pipeline, now: float) -> Actions:
        if (remaining_s := self._recovery.until - now) <= 0.0:
            return self._out_of_time(now)
        self._state = Asking(pipeline)
        return [*self._questions.ask(pipeline, remaining_s=remaining_s, now=now)]

    def _open_question(self, ref: StepRef) -> Question | None:
        return self._state.pipeline.question(ref) if isinstance(self._state, Asking) else None

    # --- time and the end ---------------------------------------------------------------------

    def _out_of_time(self, now: float) -> Actions:
        return self._end([self._recovery.late(self._state, now)])

    def _end(self, last: Actions, *, at_rest: bool = False) -> Actions:
        """Release comes first: a consumer that leaves after the last token cannot prevent it."""
        self._state = Done()
        if not (touched := self._questions.touched):
            return last
        remains = self._questions.remains() if at_rest else None
        return [Release(self._spec.session, touched, remains), *last]
