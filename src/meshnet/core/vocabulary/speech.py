"""What an assistant's text says, part by part: for the user, to itself, to a tool."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spoken:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that the model writes before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is the text of a JSON object."""

    name: str
    arguments: str


Said = Spoken | Thought | ToolCall
