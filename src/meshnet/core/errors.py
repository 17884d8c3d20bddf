"""What meshnet raises on purpose, and the reasons a decode is refused for.

Everyone imports these from `vocabulary`.
"""

from __future__ import annotations

from enum import Enum
from typing import Self


class MeshnetError(Exception):
    """Root of the errors meshnet raises on purpose; everything else that escapes is a bug.

    MeshnetError
        BadField            a field is present and wrong, or undecidable    400
            TooLarge        a body or meta block over the limit             413
        WrongShard          this node does not hold that model or layers    404
        KVCacheMiss         an explicit decode that cannot be served        409
        StaleAttempt        a prefill of an older attempt                   412
        NoRoom              no place or bytes for the session now           429
        StepTorn            a step failed midway; its cache is unusable     500, 503
        NumericalError      NaN or infinity where tokens are drawn          500
        HopLost             a hop did not answer: timeout, reset, half body
        ModelError          a model cannot be found, read or served
        TemplateError       the chat template refuses these messages        400
            NoTemplate      the model has no chat template                  400
    """

    def without_frames(self) -> Self:
        """Forget where it was raised: frames hold the tensors of sessions, and go with the error.

        For errors that are returned. The list they stand in would else keep them, and they it.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class BadField(MeshnetError):
    def __init__(self, field: str, expected: str, got: object) -> None:
        shown = repr(got)
        super().__init__(f"{field}: expected {expected}, got {shown[:80]}")
        self.field = field


class TooLarge(BadField):
    pass


class WrongShard(MeshnetError):
    pass


class MissReason(Enum):
    UNKNOWN_SESSION = "unknown_session"
    PAST_LENGTH = "past_length"
    PREFIX = "prefix"
    START_LAYER = "start_layer"
    ATTEMPT = "attempt"
    BUSY = "busy"
    CACHING_OFF = "caching_off"
    SUPERSEDED = "superseded"
    PREEMPTED = "preempted"
    POSITION_LIMIT = "position_limit"


class KVCacheMiss(MeshnetError):
    """An explicit decode cannot be served; the head answers it with one prefill (ADR-0022)."""

    def __init__(self, reason: MissReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StaleAttempt(MeshnetError):
    pass


class NoRoom(MeshnetError):
    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StepTorn(MeshnetError):
    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


class NumericalError(MeshnetError):
    pass


class GrammarError(MeshnetError):
    """A schema or grammar that no answer could be kept to."""


class HopLost(MeshnetError):
    pass


class ModelError(MeshnetError):
    pass


class TextTooLong(MeshnetError):
    """A prompt so long that its ids need not be counted: there are more than the context holds."""

    def __init__(self, tokens_at_least: int, context_length: int) -> None:
        super().__init__(
            f"the prompt has more than {tokens_at_least} tokens, "
            f"the model's context {context_length}"
        )
        self.tokens_at_least = tokens_at_least


class TemplateError(MeshnetError):
    pass


class NoTemplate(TemplateError):
    pass
