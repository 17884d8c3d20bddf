"""A byte-level text model: exact, tiny, and with everything that makes text hard.

    0..255    single bytes
    256..     special tokens: bos, eos, end of turn, one per role
    264..     words, parts of words, and halves of multi-byte characters

Encoding takes the longest token that fits, so halves of a character appear
only where a test asks for them by id.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from meshnet.core.vocabulary import GrammarError, ModelId, NoTemplate, TemplateError

BOS, EOS, END_OF_TURN = 256, 257, 258
SPECIAL = (
    "<|bos|>",
    "<|eos|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|think|>",
)
WORDS = (
    b" quick",
    b" br",
    b"own",
    b" fox",
    b" fox.",
    b"The",
    b"ing",
    b" '",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xe4\xbd",
    b"\xa0",
    "好".encode(),
    "é".encode(),
)
TOY_MODEL = ModelId("org/toy")
FIRST_SPECIAL = 256
FIRST_WORD = FIRST_SPECIAL + len(SPECIAL)
VOCABULARY = FIRST_WORD + len(WORDS)


@dataclass(frozen=True, slots=True)
class ToyDefaults:
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


@dataclass(frozen=True, slots=True)
class ToyText:
    """What a tokenizer and a chat template would be.

    `alternating` makes the template as strict as Mistral's: no system role, and users and
    assistants in turns.
    """

    model: ModelId = TOY_MODEL
    context_length: int = 256
    stop_ids: frozenset[int] = frozenset({EOS, END_OF_TURN})
    generation_defaults: ToyDefaults | None = None
    template: bool = True
    alternating: bool = False

    @property
    def vocab_size(self) -> int:
        return VOCABULARY

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids = [BOS] if special else []
        data = text.encode()
        position = 0
        while position < len(data):
            token_id = _longest(data, position)
            ids.append(token_id)
            position += len(self.token_bytes(token_id))
        return ids

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        template_kwargs: dict[str, Any],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """Role, content, end of turn for each message, then the assistant's role."""
        if not self.template:
            raise NoTemplate("this model has no chat template")
        if self.alternating:
            _check_turns([message["role"] for message in messages])
        ids = [BOS, *self.encode(json.dumps(list(tools)), special=False)] if tools else [BOS]
        for message in messages:
            ids.append(_role(message["role"]))
            ids += self.encode(message["content"], special=False)
            ids.append(END_OF_TURN)
        ids.append(_role("assistant"))
        if template_kwargs.get("enable_thinking"):
            ids.append(FIRST_SPECIAL + SPECIAL.index("<|think|>"))
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        shown = [token_id for token_id in ids if not (skip_special and _is_special(token_id))]
        return b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")

    def decoder(self, *, skip_special: bool = True) -> ToyDecoder:
        return ToyDecoder(self, skip_special=skip_special)

    def grammar_of(self, schema: dict[str, Any]) -> str:
        raise GrammarError("the toy keeps to no grammar")

    def grammar_of_call(self, prompt: Sequence[int], tools: Sequence[dict[str, Any]]) -> str:
        raise GrammarError("the toy keeps to no grammar")

    def follow(self, grammar: str) -> NoReturn:
        raise GrammarError("the toy keeps to no grammar")

    @property
    def calls_tools(self) -> bool:
        return False

    def speech(
        self, prompt: Sequence[int], tools: Sequence[dict[str, Any]], *, thoughts: bool
    ) -> None:
        """All that it answers is text."""

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < FIRST_SPECIAL:
            return bytes([token_id])
        if token_id < FIRST_WORD:
            return SPECIAL[token_id - FIRST_SPECIAL].encode()
        return WORDS[token_id - FIRST_WORD]


class ToyDecoder:
    """Complete code points only; special tokens have no text unless it is wanted."""

    def __init__(self, text: ToyText, *, skip_special: bool = True) -> None:
        self._text, self._skip_special = text, skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if _is_special(token_id) and self._skip_special:
            return ""
        return self._decoder.decode(self._text.token_bytes(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


def word(data: str | bytes) -> int:
    """The id of the token that is exactly this text or these bytes."""
    wanted = data.encode() if isinstance(data, str) else data
    if wanted in WORDS:
        return FIRST_WORD + WORDS.index(wanted)
    if wanted.decode("ascii", "replace") in SPECIAL:
        return FIRST_SPECIAL + SPECIAL.index(wanted.decode("ascii"))
    if len(wanted) != 1:
        raise ValueError(f"toy vocabulary: no token is {data!r}")
    return wanted[0]


def _longest(data: bytes, position: int) -> int:
    best = data[position]
    length = 1
    for index, candidate in enumerate(WORDS):
        whole = candidate.decode("utf-8", "ignore").encode() == candidate
        if whole and len(candidate) > length and data.startswith(candidate, position):
            best, length = FIRST_WORD + index, len(candidate)
    return best


def _is_special(token_id: int) -> bool:
    return FIRST_SPECIAL <= token_id < FIRST_WORD


def _role(role: str) -> int:
    return FIRST_SPECIAL + SPECIAL.index(f"<|{role}|>")


def _check_turns(roles: Sequence[str]) -> None:
    if "system" in roles:
        raise TemplateError("System role not supported")
    for index, role in enumerate(roles):
        if role != ("user", "assistant")[index % 2]:
            raise TemplateError("Conversation roles must alternate user/assistant/user/assistant/")
