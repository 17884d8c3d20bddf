"""What a refusal means for the generation that got it. One table, no state."""

from __future__ import annotations

from enum import Enum

from meshnet.core.generation.transcript import FailureCode
from meshnet.core.protocol.messages import Code, Mode, Refusal
from meshnet.core.vocabulary import MissReason


class Verdict(Enum):
    MISS = "refill under the same session id"
    CHAIN_BROKEN = "ask hop by hop from now on, and refill"
    CACHING_OFF = "stop using caches on this route"
    STALE = "raise the attempt and refill"
    WAIT = "wait as asked, then refill"
    MOVED = "route again: the node is well but serves something else, or nobody new"
    LOST = "route again: the hop is lost"
    NUMERICAL = "refill once without guesses if there were any, else fail"
    FATAL = "fail the generation"


def verdict_of(refusal: Refusal, asked: Mode) -> Verdict:
    """Judge a refusal. A miss answers an explicit decode only; any other 409 is a broken hop.

    A preempted session waits: the older one needs its bytes now, and a refill at once would meet
    the same refusal until the bound on refills ends the generation.
    """
    match refusal.code:
        case Code.CACHE_MISS if asked is not Mode.DECODE:
            return Verdict.LOST
        case Code.CACHE_MISS if refusal.reason is MissReason.CACHING_OFF:
            return Verdict.CACHING_OFF
        case Code.CACHE_MISS if refusal.reason is MissReason.PREEMPTED:
            return Verdict.WAIT
        case Code.CACHE_MISS:
            return Verdict.MISS
        case Code.STALE_ATTEMPT:
            return Verdict.STALE
        case Code.NO_ROOM | Code.NOT_READY | Code.OUT_OF_MEMORY | Code.DEADLINE:
            return Verdict.WAIT
        case Code.NOT_FOUND | Code.DRAINING:
            return Verdict.MOVED
        case Code.HOP_FAILED:
            return Verdict.CHAIN_BROKEN
        case Code.INTERNAL:
            return Verdict.LOST
        case Code.NUMERICAL_ERROR:
            return Verdict.NUMERICAL
        case Code.BAD_REQUEST | Code.UNAUTHORIZED | Code.FORBIDDEN | Code.TOO_LARGE:
            return Verdict.FATAL


def failure_of(refusal: Refusal) -> FailureCode:
    """Name the failure of a refusal after which nothing more is tried."""
    match refusal.code:
        case Code.UNAUTHORIZED | Code.FORBIDDEN:
            return FailureCode.UNAUTHORIZED
        case Code.TOO_LARGE:
            return FailureCode.TOO_LARGE
        case Code.NUMERICAL_ERROR:
            return FailureCode.NUMERICAL
        case _:
            return FailureCode.UPSTREAM
