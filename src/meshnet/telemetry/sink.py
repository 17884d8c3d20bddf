"""Where events go: one line each on a text stream, and the process's metrics.

Invariants
    * `record` never raises for a full or closed stream: telemetry cannot end a generation;
    * nothing is configured globally, so importing a library never changes the format.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any, TextIO

import structlog

from meshnet.telemetry.events import (
    ChildDied,
    Event,
    Fault,
    FirstToken,
    ForwardServed,
    GatewayAnswered,
    GenerationAsked,
    GenerationStarted,
    Record,
    RegistryAway,
    SessionEvicted,
    SessionsHeld,
    ShardAway,
    ShardDegraded,
    ShardFailed,
    ShardLoaded,
    StepAsked,
)
from meshnet.telemetry.metrics import Metrics
from meshnet.telemetry.pace import Pace


class LogFormat(Enum):
    CONSOLE = "console"
    JSON = "json"


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        number: int = getattr(logging, self.name)
        return number


class Telemetry:
    """The one sink of a process: hand `record` to every driver."""

    def __init__(
        self,
        *,
        stream: TextIO,
        log_format: LogFormat = LogFormat.CONSOLE,
        level: LogLevel = LogLevel.INFO,
        role: str = "",
        also: Sequence[Record] = (),
    ) -> None:
        """`also` hear every event, whatever its level."""
        self.metrics = Metrics()
        self.pace = Pace()
        self._lowest = level.number
        self._also = also
        self._log = _logger(stream, log_format, level, role)

    def record(self, event: Event) -> None:
        self.metrics.observe(event)
        self.pace.observe(event)
        for hear in self._also:
            hear(event)
        level = _level_of(event)
        if level < self._lowest:
            return  # a step tells two events: what nobody sees is not put into words
        name = _snake(type(event).__name__)
        # A closed pipe or terminal: the reader is gone, the work goes on.
        with contextlib.suppress(OSError, ValueError):
            self._log.log(level, name, **_fields(event))


def _fields(event: Event) -> dict[str, Any]:
    shown = {key: value for key, value in asdict(event).items() if value is not None}
    if (trace := shown.pop("trace", None)) is not None:
        shown["trace_id"] = trace["trace_id"]
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in shown.items()}


def _level_of(event: Event) -> int:
    match event:
        case ForwardServed(outcome="ok") | StepAsked() | SessionsHeld() | FirstToken():
            return logging.DEBUG
        case GenerationAsked() | GenerationStarted():
            return logging.DEBUG
        case SessionEvicted(reason="released"):
            return logging.DEBUG
        case GatewayAnswered(path="/ready", status=503):
            # A probe that asks while nodes load: it has its answer.
            return logging.DEBUG
        case GatewayAnswered(status=status) if status >= 500:
            return logging.ERROR
        case GatewayAnswered(method="GET", status=status) if status < 400:
            # Probes and scrapes: every few seconds, for ever.
            return logging.DEBUG
        case ShardLoaded(kv_cache=False) | ShardDegraded() | ShardAway() | RegistryAway():
            return logging.WARNING
        case ChildDied():
            return logging.WARNING
        case ShardFailed() | Fault():
            return logging.ERROR
        case _:
            return logging.INFO


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _logger(stream: TextIO, log_format: LogFormat, level: LogLevel, role: str) -> Any:
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if log_format is LogFormat.JSON
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    logger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level.number),
        cache_logger_on_first_use=False,
    )
    return logger.bind(role=role) if role else logger
