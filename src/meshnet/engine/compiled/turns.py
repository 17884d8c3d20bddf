"""The rotary turn of every position that any session has reached.

Invariants
    * a position's turn does not depend on which others are asked for: blocks are made whole.

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

    def up_to(self, stop: int) -> tuple[int, int]:
        """Addresses of both at position 0; positions below `stop` are there."""
        held = len(self._cosine_PS)
        if held < stop:
            blocks = range(held, max(2 * held, stop), BLOCK)
            cosines, sines = zip(*map(self._block, blocks), strict=True)
            self._cosine_PS = torch.cat([*([self._cosine_PS] if held else ()), *cosines])
            self._sine_PS = torch.cat([*([self._sine_PS] if held else ()), *sines])
        return self._cosine_PS.data_ptr(), self._sine_PS.data_ptr()

    def _block(self, start: int) -> tuple[Tensor, Tensor]:
        positions_1P = torch.arange(start, start + BLOCK)[None]
        turn = Rotary.of(*self._rotary(self._like_1D[None], positions_1P))
        return turn.cosine[:, 0], turn.sine[:, 0]
