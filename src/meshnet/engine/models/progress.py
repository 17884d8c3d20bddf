"""How long work tells how far it is; the command line draws it, everybody else ignores it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of one piece of work at a time: start, any number of advances, done."""

    def start(self, label: str, total: int | None) -> None:
        """A piece of work of `total` bytes begins; None when nobody knows how much it is."""

    def advance(self, amount: int) -> None:
        """So many bytes more are finished."""

    def done(self) -> None:
        """The piece of work ended, well or badly."""


class NoProgress:
    """Says nothing."""

    def start(self, label: str, total: int | None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def done(self) -> None:
        pass
