"""A generation under test and the nodes it talks to, written as a conversation."""

from __future__ import annotations

from collections.abc import Callable

from meshnet.core.generation.limits import GenerationLimits, StepTimeout
from meshnet.core.generation.relocating import Event, RelocatingGeneration
from meshnet.core.generation.sequence import Adoption
from meshnet.core.generation.states import GenerationSpec
from meshnet.core.generation.stopping import StopRules
from meshnet.core.generation.transcript import (
    Delivered,
    Emit,
    Fail,
    Finish,
    Forward,
    GenerationAction,
    Lost,
    Release,
    Replied,
    Reroute,
    Started,
    Tick,
)
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    Mode,
    Refusal,
    Reply,
    TokenReply,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    Drawn,
    DType,
    Hop,
    LayerRange,
    MissReason,
    ModelId,
    NodeId,
    Route,
    SampledToken,
    SamplingParams,
    SessionId,
    TensorSpec,
)

SESSION = SessionId("session")
LIMITS = GenerationLimits(
    prefill_chunk=4,
    step=StepTimeout(base_s=2.0, per_token_s=0.5),
    refills_without_progress=3,
    refills_base=5,
    tokens_per_refill=2,
    recover_s=30.0,
)


def route_of(
    hops: int = 3, *, kv_cache: bool = True, multi_token: bool = True, prefix: str = "node"
) -> Route:
    return Route(
        ModelId("toy"),
        tuple(
            Hop(NodeId(f"{prefix}{index}"), LayerRange(2 * index, 2 * index + 2))
            for index in range(hops)
        ),
        kv_cache=kv_cache,
        multi_token=multi_token,
        fingerprint="weights",
    )


def activation(length: int) -> Activation:
    return Activation((TensorSpec(HIDDEN, DType.FP32, (1, length, 1)),), bytes(4 * length))


def miss(reason: MissReason = MissReason.UNKNOWN_SESSION) -> Refusal:
    return Refusal(Code.CACHE_MISS, reason.value, reason=reason)


def ids_of_text(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


class Talk:
    """`open` is the question the machine waits on, of the oldest step if there are several.

    `tokens` is what the consumer has got.
    """

    def __init__(
        self,
        *,
        prompt: tuple[int, ...] = (1, 2, 3),
        route: Route | None = None,
        tokens_max: int = 8,
        stop_ids: tuple[int, ...] = (),
        limits: GenerationLimits = LIMITS,
        deadline_at: float = 1000.0,
        reserved: bool = False,
        sampling: SamplingParams | None = None,
        owner: str | None = None,
        adoption: Adoption | None = None,
        lingers: bool = False,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.machine = RelocatingGeneration(
            GenerationSpec(
                session=SESSION,
                prompt=prompt,
                sampling=sampling or SamplingParams(),
                owner=owner,
                adoption=adoption,
                lingers=lingers,
                stop=StopRules(frozenset(stop_ids), tokens_max),
                deadline_at=deadline_at,
                reserved=reserved,
            ),
            route or route_of(),
            limits=limits,
            encode_text=ids_of_text,
            jitter=jitter,
        )
        self.now = 0.0
        self.actions: list[GenerationAction] = []
        self.forwards: list[Forward] = []
        self.tokens: list[int] = []
        self.tell(Started())

    @property
    def open(self) -> Forward:
        oldest = min(self.waiting, key=lambda forward: forward.ref.step, default=None)
        return self.forwards[-1] if oldest is None else oldest

    @property
    def waiting(self) -> list[Forward]:
        """All questions that are open."""
        return [forward for forward in self.forwards if self.machine.asks(forward.ref)]

    @property
    def end(self) -> Finish | Fail | None:
        ends = [action for action in self.actions if isinstance(action, Finish | Fail)]
        assert len(ends) <= 1
        return ends[0] if ends else None

    @property
    def releases(self) -> list[Release]:
        return [action for action in self.actions if isinstance(action, Release)]

    @property
    def reroutes(self) -> list[Reroute]:
        return [action for action in self.actions if isinstance(action, Reroute)]

    def tell(self, event: Event) -> list[GenerationAction]:
        actions = self.machine.handle(event, self.now)
        self.actions += actions
        self.forwards += [action for action in actions if isinstance(action, Forward)]
        self.tokens += [action.token.token_id for action in actions if isinstance(action, Emit)]
        return actions

    def reply(self, reply: Reply) -> list[GenerationAction]:
        return self.tell(Replied(self.open.ref, reply))

    def lose(self, reason: str = "connection reset") -> list[GenerationAction]:
        return self.tell(Lost(self.open.ref, reason))

    def pass_deadline(self) -> list[GenerationAction]:
        deadline = self.machine.deadline()
        assert deadline is not None
        self.now = max(deadline, self.now)
        return self.tell(Tick())

    def right_answer(self, token: int = 7, hops: int = 3, to: Forward | None = None) -> Reply:
        """What a node of today answers to a question: to the open one, if not to another."""
        asked = to or self.open
        request = asked.request
        length = len(request.tokens)
        cached = None if request.mode is Mode.STATELESS else request.past_length + length
        if asked.ref.hop + 1 < hops:
            return ActivationReply(activation(length), cached, compute_us=1000)
        return TokenReply(
            Drawn((SampledToken(token),)) if request.want_token else None, "", cached, 1000
        )

    def step(self, token: int = 7, hops: int = 3) -> list[GenerationAction]:
        """Walk the rest of the open step rightly, and take the token if one came."""
        step = self.open.ref.step
        actions: list[GenerationAction] = []
        while self.end is None and self.open.ref.step == step:
            actions = self.reply(self.right_answer(token, hops))
            if any(isinstance(action, Emit) for action in actions):
                break
        return actions + self.tell(Delivered())
