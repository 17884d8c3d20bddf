"""The head: owns generation loops and drives their machines over the wire's clients."""

from meshnet.core.generation.transcript import FailureCode, FinishReason
from meshnet.head.client import HopClient
from meshnet.head.directory import Directory
from meshnet.head.driver import Head, HeadLimits
from meshnet.head.seam import FinishEvent, GenerationFailed, GenerationRequest, TokenEvent

__all__ = [
    "Directory",
    "FailureCode",
    "FinishEvent",
    "FinishReason",
    "GenerationFailed",
    "GenerationRequest",
    "Head",
    "HeadLimits",
    "HopClient",
    "TokenEvent",
]
