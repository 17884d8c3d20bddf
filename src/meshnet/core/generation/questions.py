"""What a generation asks next: the step its caches make possible, put to one hop after the other.

    sequence, route --next_step--> Step --ask--> Asking (one question to one hop)

Keeps what names a question (attempt, step number) and whom it went to. It decides nothing about
answers.
"""

from __future__ import annotations

from meshnet.core.generation.accounting import Accounts
from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.generation.requests import forward_for
from meshnet.core.generation.sequence import CacheUse, Step, TokenSequence
from meshnet.core.generation.states import Asking, GenerationSpec
from meshnet.core.generation.transcript import StepRef
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import Activation, NodeId, Route


class Questions:
    """The questions of one generation. `attempt` rises with every prefill, and never falls."""

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
        if step.mode is not Mode.DECODE:
            self.attempt += 1
            self._accounts.prefills += 1
            self.filling_since = now
        return step

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
