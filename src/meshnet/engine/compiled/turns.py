"""The rotary turn of every position that any session has reached.

Invariants
    * a position's turn does not depend on which others are asked for: blocks are made whole;
    * positions that no session has come to are not kept: a trial at the end of a long context
      would else leave hundreds of megabytes behind.

Legend: P positions, S head size, D hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshnet.engine.lean import Rotary

BLOCK = 256
"""Positions whose turns are made at once."""


class Turns:
    """Cosine, and sine with the sign of `rotate_half`, PS each."""

    def __init__(self, rotary: Any, like_1D: Tensor) -> None:
        self._rotary, self._like_1D = rotary, like_1D
        self._cosine_PS = self._sine_PS = like_1D.new_empty((0, 0))
        self._far: tuple[Tensor, Tensor] | None = None

    def reaching(self, start: int, stop: int) -> tuple[int, int]:
        """Addresses of both as if at position 0; those from `start` up to `stop` are there.

        They hold until the next call.
        """
        held = len(self._cosine_PS)
        if held < start:
            first = start // BLOCK * BLOCK
            self._far = self._blocks(range(first, stop, BLOCK))
            return self._addresses(*self._far, first)
        if held < stop:
            cosine_PS, sine_PS = self._blocks(range(held, max(2 * held, stop), BLOCK))
            self._cosine_PS = torch.cat([self._cosine_PS, cosine_PS]) if held else cosine_PS
            self._sine_PS = torch.cat([self._sine_PS, sine_PS]) if held else sine_PS
        self._far = None
        return self._addresses(self._cosine_PS, self._sine_PS, 0)

    def _addresses(self, cosine_PS: Tensor, sine_PS: Tensor, first: int) -> tuple[int, int]:
        before = first * cosine_PS.shape[1] * 4
        return cosine_PS.data_ptr() - before, sine_PS.data_ptr() - before

    def _blocks(self, starts: range) -> tuple[Tensor, Tensor]:
        cosines, sines = zip(*map(self._block, starts), strict=True)
        return torch.cat(cosines), torch.cat(sines)

    def _block(self, start: int) -> tuple[Tensor, Tensor]:
        positions_1P = torch.arange(start, start + BLOCK)[None]
        turn = Rotary.of(*self._rotary(self._like_1D[None], positions_1P))
        return turn.cosine[:, 0], turn.sine[:, 0]
