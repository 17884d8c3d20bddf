"""The ids of a generation so far, and what the tail keeps about them so that a draw stays cheap.

All of it follows from the ids: it is built when first asked for, caught up, and cut with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from meshnet.core.vocabulary import SamplingParams
from meshnet.engine.grammar import Following, Grammars


class History(Sequence[int]):
    """The ids of a generation so far, prompt first, with counts that grow by one id at a time.

    Counts are built when a penalty first asks and then caught up, so a draw costs the new ids
    and not the whole history.
    """

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._ids: list[int] = list(ids)
        self._counts: dict[int, _Counts] = {}
        self._answer: Following | None = None
        self._answer_from = 0

    def extend(self, ids: Sequence[int]) -> None:
        self._ids.extend(ids)

    def truncate(self, length: int) -> None:
        """Forget the ids from `length` on."""
        for counts in self._counts.values():
            counts.cut(self._ids, length)
        if self._answer is not None:
            self._answer.cut(length - self._answer_from)
        del self._ids[length:]

    def counts(self, start: int) -> tuple[Tensor, Tensor]:
        """Distinct ids of `self[start:]` and how often each occurs; views, valid until `extend`."""
        counts = self._counts.get(start)
        if counts is None:
            self._counts = {0: self._counts[0]} if 0 in self._counts else {}
            counts = self._counts[start] = _Counts(start)
        return counts.caught_up(self._ids)

    def follows(self, sampling: SamplingParams) -> bool:
        """Whether this answer has the grammar of `sampling` at hand, compiled."""
        begun = (sampling.grammar, sampling.prompt_length)
        return self._answer is not None and begun == (self._answer.grammar, self._answer_from)

    def allow(self, scores_V: Tensor, grammars: Grammars, sampling: SamplingParams) -> None:
        """Set to -inf what the grammar does not allow after the ids so far. Raises GrammarError."""
        if self._answer is None or not self.follows(sampling):
            self._answer = grammars.follow(sampling.grammar)
            self._answer_from = sampling.prompt_length
        self._answer.catch_up(self._ids, self._answer_from)
        self._answer.forbid(scores_V.numpy())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._ids[index]

    def __len__(self) -> int:
        return len(self._ids)


class _Counts:
    """Counts of the ids from one position on; `ids[slot]` occurs `counts[slot]` times."""

    def __init__(self, start: int) -> None:
        self._start = self._upto = start
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)

    def caught_up(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        for position in range(self._upto, len(ids)):
            token = ids[position]
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token
            self._counts[slot] += 1
        self._upto = max(self._upto, len(ids))
        used = len(self._slots)
        return torch.from_numpy(self._ids[:used]), torch.from_numpy(self._counts[:used])

    def cut(self, ids: list[int], length: int) -> None:
        """Take back the ids from `length` on, the last first: `ids` still holds them."""
        while self._upto > max(length, self._start):
            self._upto -= 1
            token = ids[self._upto]
            slot = self._slots[token]
            self._counts[slot] -= 1
            if not self._counts[slot]:
                self._forget(token, slot)

    def _forget(self, token: int, slot: int) -> None:
        """Free a slot; the last one moves into it."""
        last = len(self._slots) - 1
        self._ids[slot], self._counts[slot] = self._ids[last], self._counts[last]
        self._counts[last] = 0
        self._slots[int(self._ids[slot])] = slot
        del self._slots[token]
