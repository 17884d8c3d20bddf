"""What the gateway asks of the parts around it: tokens, text, readiness, time, ids and chance.

`Generator` is `meshnet.head.Head` and the scripted generators of the tests; `TextModel` is
`meshnet.engine.text.HFText` and `meshnet.simulation.toy_text.ToyText`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from meshnet.core.vocabulary import ModelId, Said
from meshnet.head import FinishEvent, GenerationRequest, TokenEvent


class Generator(Protocol):
    def generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[TokenEvent | FinishEvent, None]:
        """Draw tokens until the last item, a FinishEvent; closing it cancels.

        Raises GenerationFailed.
        """
        ...


class StreamDecoder(Protocol):
    """Text of a growing list of ids: complete code points only."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class Speech(Protocol):
    """Parts the text of one answer, special tokens and all: answer, thoughts, calls of tools."""

    def feed(self, text: str) -> list[Said]: ...

    def end(self) -> list[Said]: ...


class Follower(Protocol):
    """Where an answer is in its grammar."""

    def take(self, token_id: int) -> bool:
        """Go on by one id; False: the grammar does not allow it."""
        ...


class GenerationDefaults(Protocol):
    """What the model's own generation_config recommends; None where it is silent."""

    @property
    def temperature(self) -> float | None: ...

    @property
    def top_p(self) -> float | None: ...

    @property
    def top_k(self) -> int | None: ...


class TextModel(Protocol):
    """Everything about one model that concerns text. Blocking; safe to call from threads."""

    @property
    def model(self) -> ModelId: ...

    @property
    def context_length(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def stop_ids(self) -> frozenset[int]: ...

    @property
    def generation_defaults(self) -> GenerationDefaults | None: ...

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of a raw prompt. Raises TextTooLong where that needs no counting."""
        ...

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        template_kwargs: dict[str, Any],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """Prompt ids of a chat. Raises TemplateError, or NoTemplate."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str: ...

    def decoder(self, *, skip_special: bool = True) -> StreamDecoder: ...

    def grammar_of(self, schema: dict[str, Any]) -> str:
        """The grammar of a JSON schema, compiled once. Raises GrammarError."""
        ...

    def grammar_of_call(self, prompt: Sequence[int], tools: Sequence[dict[str, Any]]) -> str:
        """The grammar of an answer that calls one of `tools`, compiled. Raises GrammarError."""
        ...

    def follow(self, grammar: str) -> Follower:
        """A grammar that `grammar_of` gave, at its beginning."""
        ...

    @property
    def calls_tools(self) -> bool:
        """Whether calls of tools can be told from the text of this model."""
        ...

    def speech(
        self, prompt: Sequence[int], tools: Sequence[dict[str, Any]], *, thoughts: bool
    ) -> Speech | None:
        """Return what parts an answer to `prompt`; None where all of it is text."""
        ...

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether every layer is served now, and if not, what is missing."""

    ready: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ambient:
    """Time, ids and chance: whatever the gateway would otherwise take from the machine."""

    now: Callable[[], float]
    """Unix time, seconds."""
    clock: Callable[[], float]
    """Monotonic, seconds."""
    new_id: Callable[[], str]
    """At least 64 unguessable bits out of [A-Za-z0-9]."""
    new_seed: Callable[[], int]
    """Uniform in [0, 2**64)."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What `/metrics` answers."""

    content_type: str
    render: Callable[[], bytes]
