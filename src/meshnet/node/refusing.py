"""Refusals of a node that no MeshnetError stands for."""

from __future__ import annotations

from meshnet.core.protocol.messages import Code, Refusal

RETRY_AFTER_S = 0.5


class Refused(Exception):
    """Ends a request with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def not_ready() -> Refusal:
    return Refusal(Code.NOT_READY, "this node is not ready yet", RETRY_AFTER_S)


def spent() -> Refusal:
    return Refusal(Code.DEADLINE, "the deadline passed before the step could run")


def draining() -> Refusal:
    return Refusal(Code.DRAINING, "this node takes no new sessions", RETRY_AFTER_S)
