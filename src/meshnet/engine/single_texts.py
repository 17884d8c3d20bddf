"""The text of each token by itself, in about as many bytes as the texts have.

A tokenizer takes tens of megabytes for the same, and a node has no other use for one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class SingleTexts:
    """Texts by token id, from 0 on; ids beyond have none."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._ends = array("I", [0])
        held = bytearray()
        for text in texts:
            held += text.encode("utf-8", errors="replace")
            self._ends.append(len(held))
        self._texts = bytes(held)

    def __call__(self, token_id: int) -> str:
        if not 0 <= token_id < len(self._ends) - 1:
            return ""
        return self._texts[self._ends[token_id] : self._ends[token_id + 1]].decode("utf-8")
