"""Everything about one model that concerns text: ids from text and chats, text from ids.

Works on the tokenizers library's own object, so it may be called from several threads:
transformers' wrapper sets truncation on the shared object before each call, and fails when two
threads do. torch is not imported for models whose tokenizer class is the generic one.

Invariants
    * templated text is encoded without special tokens: what BOS it has, the template wrote;
    * text is never cleaned up: the spaces of the ids are the spaces of the text;
    * no code of a model's directory ever runs (`trust_remote_code` is always off).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from meshnet.core.vocabulary import ModelError, ModelId, NoTemplate, TemplateError, TextTooLong
from meshnet.engine.config_sizes import check_sizes
from meshnet.engine.context import UNLIMITED_CONTEXT, stated_context
from meshnet.engine.decoding import Pieces, StreamDecoder
from meshnet.engine.grammar import Following, Grammars, Vocabulary, grammar_of
from meshnet.engine.speech import Speech, Style
from meshnet.engine.templates import rendered

_PIECE_CHARACTERS = 64 * 1024
_PIECE_TOKENS_SPARE = 1024
_GENERIC_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_OWN_ARGUMENTS = frozenset(
    (
        "conversation",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "sanitize_control_tokens",
        "tokenizer_kwargs",
        "messages",
        "tools",
    )
)


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's generation_config recommends; None where it is silent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


class HFText:
    """A tokenizer in Hugging Face layout, with its chat template and stop ids."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        model: ModelId,
        context_length: int,
        vocab_size: int,
        stop_ids: frozenset[int],
        generation_defaults: GenerationDefaults | None,
    ) -> None:
        self.model = model
        self.context_length = context_length
        self.vocab_size = vocab_size
        self.stop_ids = stop_ids
        self.generation_defaults = generation_defaults
        self._tokenizer = tokenizer
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._pieces = Pieces(self._backend)
        template = getattr(tokenizer, "response_template", None)
        self._grammars = Grammars(self.vocabulary)
        self._style = Style(str(tokenizer.chat_template or ""), template)

    @classmethod
    def load(cls, path: Path, model: ModelId) -> HFText:
        """Read tokenizer, template and stop ids from a model's directory. Raises ModelError."""
        config, generation = _read(path / "config.json"), _read(path / "generation_config.json")
        inner = config.get("text_config")
        check_sizes(path / "config.json", config)
        config = {**config, **inner} if isinstance(inner, dict) else config
        tokenizer = _tokenizer(path)
        return cls(
            tokenizer,
            model=model,
            context_length=_context_length(path, config, tokenizer),
            vocab_size=_integer(config.get("vocab_size")) or len(tokenizer),
            stop_ids=frozenset(
                _ids(
                    tokenizer.eos_token_id,
                    config.get("eos_token_id"),
                    generation.get("eos_token_id"),
                )
            ),
            generation_defaults=_defaults(generation),
        )

    @property
    def calls_tools(self) -> bool:
        """Whether calls of tools can be told from the text of this model."""
        return self._style.calls_tools

    def speech(
        self, prompt: Sequence[int], tools: Sequence[dict[str, Any]], *, thoughts: bool
    ) -> Speech | None:
        """Return what parts an answer to `prompt`; None where all of it is text.

        It reads text with its special tokens.
        """
        return self._style.speech(self.decode(prompt, skip_special=False), tools, thoughts=thoughts)

    @property
    def has_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of a raw prompt; `special` adds what the tokenizer adds, mostly BOS.

        The batch form releases the interpreter while it works, which `encode` does not: a prompt
        of megabytes would stop every other request of the process (pit A91). Raises TextTooLong.
        """
        self._refuse_hopeless(text)
        return self._ids(text, special=special)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=special)
        return list(encoded.ids)

    def _refuse_hopeless(self, text: str) -> None:
        """Raise TextTooLong as soon as pieces of the text have twice the ids that would fit.

        The tokenizer takes 150 bytes and more for each character, so 30 MB at once would take
        all memory. A cut may add a few ids to each piece, never as many as the piece is long.
        """
        if len(text) <= _PIECE_CHARACTERS:
            return
        tokens = 0
        for start in range(0, len(text), _PIECE_CHARACTERS):
            tokens += len(self._ids(text[start : start + _PIECE_CHARACTERS], special=False))
            if tokens > 2 * self.context_length + _PIECE_TOKENS_SPARE:
                raise TextTooLong(tokens // 2, self.context_length)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Prompt ids of a chat, up to where the assistant's next answer begins.

        Raises:
            NoTemplate: the model has no chat template.
            TemplateError: the template refuses the messages; carries its own message.
            TextTooLong: the chat cannot fit the context.
        """
        if not self.has_template:
            raise NoTemplate(
                f"{self.model} has no chat template; use completions, or a model for chats"
            )
        if taken := _OWN_ARGUMENTS & template_kwargs.keys():
            raise TemplateError(f"not an argument of a chat template: {', '.join(sorted(taken))}")
        conversation = [_plain(message) for message in messages]
        text = rendered(
            lambda: self._tokenizer.apply_chat_template(
                conversation,
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=True,
                **template_kwargs,
            )
        )
        return self.encode(text, special=False)

    def grammar_of(self, schema: dict[str, Any]) -> str:
        """Return the grammar of a JSON schema, compiled once. Raises GrammarError."""
        grammar = grammar_of(schema)
        self.follow(grammar)
        return grammar

    def grammar_of_call(self, prompt: Sequence[int], tools: Sequence[dict[str, Any]]) -> str:
        """Return the grammar of an answer that calls one of `tools`, compiled once.

        Raises GrammarError.
        """
        grammar = self._style.grammar_of_call(self.decode(prompt, skip_special=False), tools)
        self.follow(grammar)
        return grammar

    def follow(self, grammar: str) -> Following:
        """Return a grammar at its beginning. Raises GrammarError."""
        return self._grammars.follow(grammar)

    def vocabulary(self) -> Vocabulary:
        return self._backend.to_str(), self.vocab_size, self.stop_ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        return self._backend.decode(ids, skip_special_tokens=skip_special)

    def decoder(self, *, skip_special: bool = True) -> StreamDecoder:
        """A fresh decoder for one stream of ids; special tokens give no text."""
        return self._pieces.decoder(skip_special=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes an id adds to the text, which may be part of a character."""
        return self._pieces.bytes_of(token_id)

    def token_text(self, token_id: int) -> str:
        """An id on its own, for people: part of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")


def vocabulary_of(path: Path) -> Vocabulary:
    """What grammars need to know of the model in `path`. Raises ModelError."""
    return HFText.load(path, ModelId(path.name)).vocabulary()


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """One message as templates expect it: developers are the system, text parts are one text."""
    plain = dict(message)
    if plain.get("role") == "developer":
        plain["role"] = "system"
    content = plain.get("content")
    if content is None:
        plain["content"] = ""
    elif not isinstance(content, str):
        plain["content"] = "".join(_part_text(part) for part in content)
    return plain


def _part_text(part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part["text"], str):
        return part["text"]
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise TemplateError(f"content: only parts of type text are understood, got {kind!r}")


def _tokenizer(path: Path) -> Any:
    kind = _read(path / "tokenizer_config.json").get("tokenizer_class")
    try:
        if kind in _GENERIC_CLASSES and (path / "tokenizer.json").is_file():
            from transformers.tokenization_utils_tokenizers import TokenizersBackend

            tokenizer = TokenizersBackend.from_pretrained(path)
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception on a bad file
        raise ModelError(f"{path}: cannot load its tokenizer: {_first_line(error)}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ModelError(f"{path}: its tokenizer cannot be run by the tokenizers library")
    return tokenizer


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(" :")


def _read(path: Path) -> dict[str, Any]:
    """A JSON object of a model's directory; empty if the file is absent."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return values


def _context_length(path: Path, config: Mapping[str, Any], tokenizer: Any) -> int:
    if stated := stated_context(config.get):
        return stated
    # Rare and slow (torch): the file leaves it to the default of the model's class.
    from transformers import AutoConfig

    try:
        whole = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # whatever validates the class of a configuration
        raise ModelError(f"{path}: cannot read its configuration: {error}") from error
    decoder = whole.get_text_config(decoder=True)
    found = stated_context(lambda name: getattr(decoder, name, None))
    return found or min(int(tokenizer.model_max_length), UNLIMITED_CONTEXT)


def _defaults(generation: Mapping[str, Any]) -> GenerationDefaults | None:
    if not generation.get("do_sample"):
        return None
    return GenerationDefaults(
        temperature=_number(generation.get("temperature")),
        top_p=_number(generation.get("top_p")),
        top_k=_integer(generation.get("top_k")),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value is not True else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ids(*values: object) -> Iterable[int]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _ids(*value)
        elif (one := _integer(value)) is not None and one >= 0:
            yield one
