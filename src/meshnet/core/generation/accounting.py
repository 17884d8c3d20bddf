"""What a generation cost, hop by hop. Counts only; decides nothing.

Wire seconds are the head's waiting time less the node's compute time, so they hold
transport, queueing and (de)coding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshnet.core.protocol.messages import ActivationReply, Refusal, Reply
from meshnet.core.vocabulary import Activation, Hop, LayerRange, NodeId


@dataclass(frozen=True, slots=True)
class HopStats:
    node: NodeId
    layers: LayerRange
    steps: int
    positions: int
    """Sum of the steps' new positions: what the hop ran its layers over."""
    bytes_out: int
    """Activation bytes the head sent it, token ids (4 bytes each) included; headers are not
    counted, nor is what another node handed on."""
    bytes_in: int
    """Activation bytes the head received from it."""
    wire_s: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class GenerationStats:
    prompt_tokens: int
    completion_tokens: int
    prefills: int
    refills: int
    ttft_s: float | None
    duration_s: float
    hops: tuple[HopStats, ...]
    guessed: int = 0
    """Draft tokens sent for verification."""
    accepted: int = 0
    """Those of them that were right."""
    reused: int = 0
    """Tokens of the prompt that an earlier session held, and that were not run again for it."""
    partial_refills: int = 0
    """Those of the refills in which some hops kept what they held."""
    refilled_positions: int = 0
    """What hops ran again for refills, those of each hop counted."""
    inexact: int = 0
    """How often a hop of another arithmetic took part from then on."""


@dataclass(slots=True)
class HopAccount:
    """Running sums of one hop."""

    steps: int = 0
    positions: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    waited_s: float = 0.0
    compute_s: float = 0.0


@dataclass(slots=True)
class Accounts:
    """Running sums of one generation; a hop appears once however often it is left and rejoined."""

    prefills: int = 0
    refills: int = 0
    guessed: int = 0
    accepted: int = 0
    reused: int = 0
    partial_refills: int = 0
    refilled_positions: int = 0
    inexact: int = 0
    started_at: float | None = None
    first_token_at: float | None = None
    hops: dict[Hop, HopAccount] = field(default_factory=dict)

    def asked(
        self,
        hops: Sequence[Hop],
        *,
        tokens: int,
        activation: Activation | None,
        replays: bool = False,
    ) -> None:
        """`hops` do a step, and the first of them gets it from the head, or replays it."""
        sent = 4 * tokens + (0 if activation is None else len(activation.data))
        for at, hop in enumerate(hops):
            account = self._of(hop)
            account.steps += 1
            account.positions += 0 if replays and not at else tokens
            account.bytes_out += sent
            sent = 0

    def answered(self, hop: Hop, reply: Reply, *, waited_s: float) -> None:
        account = self._of(hop)
        account.waited_s += waited_s
        if not isinstance(reply, Refusal):
            account.compute_s += reply.compute_us / 1e6
        if isinstance(reply, ActivationReply):
            account.bytes_in += len(reply.activation.data)

    def refilled(self, *, generated: int, positions: int, partial: bool) -> None:
        """Hops run so many positions anew, in all; before the first token, of the prompt."""
        self.refills += 1
        self.partial_refills += partial
        self.refilled_positions += positions
        if not generated and not partial:
            self.reused = 0

    def _of(self, hop: Hop) -> HopAccount:
        account = self.hops.get(hop)
        if account is None:
            account = self.hops[hop] = HopAccount()
        return account

    def emitted(self, now: float) -> None:
        if self.first_token_at is None:
            self.first_token_at = now

    def prefill_speed(self, prompt_length: int) -> float | None:
        """Positions a second from the start to the first token; None if that is not known."""
        if self.started_at is None or self.first_token_at is None:
            return None
        took_s = self.first_token_at - self.started_at
        return max(prompt_length - self.reused, 1) / took_s if took_s > 0.0 else None

    def stats(self, *, prompt_tokens: int, completion_tokens: int, now: float) -> GenerationStats:
        started = now if self.started_at is None else self.started_at
        first = self.first_token_at
        return GenerationStats(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            prefills=self.prefills,
            refills=self.refills,
            ttft_s=None if first is None else first - started,
            duration_s=now - started,
            hops=tuple(_closed(hop, account) for hop, account in self.hops.items()),
            guessed=self.guessed,
            accepted=self.accepted,
            reused=self.reused,
            partial_refills=self.partial_refills,
            refilled_positions=self.refilled_positions,
            inexact=self.inexact,
        )


def _closed(hop: Hop, account: HopAccount) -> HopStats:
    return HopStats(
        node=hop.node,
        layers=hop.layers,
        steps=account.steps,
        positions=account.positions,
        bytes_out=account.bytes_out,
        bytes_in=account.bytes_in,
        wire_s=max(account.waited_s - account.compute_s, 0.0),
        compute_s=account.compute_s,
    )
