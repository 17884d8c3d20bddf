"""From token ids to text, one id at a time, and to the bytes each id stands for.

    ids --byte-level vocabulary--> bytes --incremental UTF-8--> text
    ids --any other-------------> decode(window) minus decode(window without the new ids)

Invariant: all that `push` and `flush` return, joined, is what decoding all ids at once returns,
and no piece ends within a code point. Where a decoder could take back what it has said (a run of
byte tokens that turns out not to be UTF-8), the text waits until it cannot.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNFINISHED = "\ufffd"


class StreamDecoder(Protocol):
    """Text of a growing list of ids: complete code points only."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class Pieces:
    """What each id of one vocabulary stands for."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._special = {
            token_id: token.content
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        }
        steps = _decoder_steps(backend)
        self._kinds = [step["type"] for step in steps]
        self._alphabet = _byte_alphabet() if self.are_byte_level else {}
        self._spaces = [mark for step in steps if (mark := _space_mark(step))]

    @property
    def are_byte_level(self) -> bool:
        """Each token is a run of bytes, spelled in GPT-2's alphabet, and nothing else happens."""
        return self._kinds == ["ByteLevel"]

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self._special)

    def is_byte(self, token_id: int) -> bool:
        """Whether the id is one byte of a byte-fallback vocabulary."""
        return "ByteFallback" in self._kinds and bool(
            _BYTE_TOKEN.fullmatch(self._backend.id_to_token(token_id) or "")
        )

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes an id adds to the text; a special token's are its name."""
        if token_id in self._special:
            return self._special[token_id].encode()
        piece = self._backend.id_to_token(token_id) or ""
        if self.are_byte_level:
            return self.spelled(piece)
        if "ByteFallback" in self._kinds and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for mark in self._spaces:
            piece = piece.replace(mark, " ")
        return piece.encode()

    def spelled(self, piece: str) -> bytes:
        """Bytes of a token in GPT-2's alphabet; one that uses other characters is literal."""
        try:
            return bytes([self._alphabet[character] for character in piece])
        except KeyError:
            return piece.encode()

    def decoder(self, *, skip_special: bool) -> StreamDecoder:
        kind = ByteLevelDecoder if self.are_byte_level else WindowDecoder
        return kind(self, self._backend, skip_special=skip_special)


class ByteLevelDecoder:
    """Constant work per id; text appears with the byte that completes it."""

    def __init__(self, pieces: Pieces, backend: Tokenizer, *, skip_special: bool) -> None:
        self._pieces = pieces
        self._backend = backend
        self._skipped = pieces.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        return self._utf8.decode(self._pieces.spelled(self._backend.id_to_token(token_id) or ""))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """Decodes the latest ids with and without the new one, and says the difference.

        ids:  ....... | anchor | ....... | latest said | new
                      '--------'         '-------------------' the window
    The anchor is ids that gave visible text, so a decoder that strips the first space of what
    it gets strips the same one twice. What was said between is forgotten: work per id is constant.
    """

    def __init__(self, pieces: Pieces, backend: Tokenizer, *, skip_special: bool) -> None:
        self._pieces = pieces
        self._backend = backend
        self._skipped = pieces.special_ids if skip_special else frozenset()
        self._window: list[int] = []
        self._anchor_ids = 0
        self._said_ids = 0

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        if self._pieces.is_byte(token_id):
            return ""
        whole, said = self._decode(self._window), self._decode(self._window[: self._said_ids])
        if whole.endswith(_UNFINISHED) or not whole.startswith(said):
            return ""
        new = self._window[self._said_ids :]
        if self._decode(new).strip():
            self._window, self._anchor_ids = new, len(new)
        else:
            self._window = self._window[: self._anchor_ids] + new
        self._said_ids = len(self._window)
        return whole[len(said) :]

    def flush(self) -> str:
        whole, said = self._decode(self._window), self._decode(self._window[: self._said_ids])
        self._said_ids = len(self._window)
        return whole[len(said) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)


def _decoder_steps(backend: Tokenizer) -> list[dict[str, object]]:
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return list(steps)


def _space_mark(step: dict[str, object]) -> str | None:
    """The character that a decoding step turns into a space, if it does."""
    pattern = step.get("pattern")
    if step["type"] == "Replace" and step.get("content") == " " and isinstance(pattern, dict):
        return str(pattern.get("String", "")) or None
    return str(step["replacement"]) if step["type"] == "Metaspace" else None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the rest from U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {chr(byte): byte for byte in printable}
    return spelling | {chr(0x100 + index): byte for index, byte in enumerate(others)}
