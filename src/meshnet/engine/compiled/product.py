"""Int8 products by compiled loops, and whole linear layers in one call of them.

Weights are held in panels of 32 outputs (products.py), so layers of whole panels are joined by
laying them one behind the other.

Legend: N outputs, K inputs, M rows; P panels, F runs of four inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from meshnet.engine.compiled.cache import compiled
from meshnet.engine.compiled.dots import PANEL
from meshnet.engine.compiled.lanes import SMALLEST_BITS, get, larger
from meshnet.engine.compiled.meeting import meet
from meshnet.engine.compiled.products import INPUTS_MAX, levels_bytes, multiply, put_levels
from meshnet.engine.compiled.region import joined
from meshnet.engine.compiled.team import ALONE, team_of
from meshnet.engine.linear import LEVELS

FULL_RANGE = int(np.float32(LEVELS).view(np.int32))
"""As the largest magnitude of rows, it makes their step 1."""
_SIGN = 0x80


SHARED_MIN = 1 << 23
"""Products of so many are worth waking other threads for: a thread does as many in 20 us."""


@compiled(
    "values rows width pair top levels steps sums weights scales bias outputs out meeting part"
    " parts"
)
def _linear(
    values,
    rows,
    width,
    pair,
    top,
    levels,
    steps,
    sums,
    weights,
    scales,
    bias,
    outputs,
    out,
    meeting,
    part,
    parts,
):
    """`top`: bits of the magnitude that is the highest level, 0 for each row's own."""
    for row in range(part, rows, parts):
        at, highest = values + row * width * 4, top
        if top == 0:
            highest = SMALLEST_BITS
            for i in range(width):
                highest = larger(highest, get(at, i))
        put_levels(at, row, rows, width, pair, highest, levels, steps, sums)
    meet(meeting, 1, parts)
    multiply(
        levels, steps, sums, rows, pair, weights, scales, bias, width, outputs, out, 0, part, parts
    )


class CompiledProduct:
    exact = True

    def __init__(self, weights: Tensor | Panels, scales_N: Tensor) -> None:
        """`weights`: int8 NK. Raises RuntimeError: such weights are none for compiled loops."""
        self.panels = weights if isinstance(weights, Panels) else Panels(weights)
        self.scales = scales_N.detach().float().contiguous()
        self._team = team_of(torch.get_num_threads())

    def __call__(self, rows_RK: Tensor) -> Tensor:
        return self._multiplied(rows_RK, None, 1, FULL_RANGE)

    def linear(self, x_MK: Tensor, bias_N: Tensor | None, rows: int) -> Tensor:
        """Return what `Int8Linear` yields, in one call."""
        return self._multiplied(x_MK, bias_N, rows, 0)

    @property
    def weights(self) -> Tensor:
        """As compiled loops take them."""
        weights: Tensor = self.panels.weights
        return weights

    def unpacked(self) -> tuple[Tensor, Tensor]:
        return self.panels.unpacked(), self.scales

    @classmethod
    def joined(cls, products: Sequence[CompiledProduct]) -> CompiledProduct | None:
        """Return one product with the outputs of all; None if panels cannot be laid together."""
        if any(product.panels.outputs % PANEL for product in products[:-1]):
            return None
        scales_N = torch.cat([product.scales for product in products])
        return cls(Panels.joined([product.panels for product in products]), scales_N)

    def _multiplied(self, x_MK: Tensor, bias_N: Tensor | None, pair: int, top: int) -> Tensor:
        panels, x_MK = self.panels, x_MK.float().contiguous()
        rows, inputs = x_MK.shape
        if inputs != panels.inputs:
            raise RuntimeError(f"expected rows of {panels.inputs} values, got {inputs}")
        bias_N = None if bias_N is None else bias_N.float().contiguous()
        out_MN = torch.empty((rows, panels.outputs))
        level_bytes = levels_bytes.py_func(rows, inputs, pair)
        own = torch.empty(level_bytes + 4 * rows * (1 + pair), dtype=torch.uint8)
        meeting = torch.zeros(1, dtype=torch.int64)
        levels = own.data_ptr()
        steps = levels + level_bytes
        team = self._team if rows * inputs * panels.outputs >= SHARED_MIN else ALONE
        team.run(
            _linear,
            x_MK.data_ptr(),
            rows,
            inputs,
            pair,
            top,
            levels,
            steps,
            steps + 4 * rows,
            panels.weights.data_ptr(),
            self.scales.data_ptr(),
            0 if bias_N is None else bias_N.data_ptr(),
            panels.outputs,
            out_MN.data_ptr(),
            meeting.data_ptr(),
        )
        return out_MN


class Panels:
    """Int8 weights as compiled loops take them."""

    def __init__(self, weights_NK: Tensor) -> None:
        """Raises RuntimeError: such weights are none for compiled loops."""
        outputs, inputs = weights_NK.shape
        if not weights_NK.is_cpu:
            raise RuntimeError(f"compiled for the CPU, weights are on {weights_NK.device}")
        if inputs > INPUTS_MAX:
            raise RuntimeError(f"sums of {inputs} products may not fit 32 bits")
        self.outputs, self.inputs = int(outputs), int(inputs)
        if inputs % 4 or outputs % PANEL:
            weights_NK = functional.pad(weights_NK, (0, -inputs % 4, 0, -outputs % PANEL))
        fours_PNF = weights_NK.contiguous().view(torch.int32).unflatten(0, (-1, PANEL))
        self.weights = joined([fours_PNF.transpose(1, 2)]).view(torch.uint8)
        self.weights.bitwise_xor_(_SIGN)

    @classmethod
    def joined(cls, parts: Sequence[Panels]) -> Panels:
        """All but the last must be of whole panels."""
        made = cls.__new__(cls)
        made.outputs, made.inputs = sum(part.outputs for part in parts), parts[0].inputs
        made.weights = joined([part.weights for part in parts])
        return made

    def unpacked(self) -> Tensor:
        """Return int8 NK."""
        fours_PFN = self.weights.bitwise_xor(_SIGN).view(torch.int32)
        values = fours_PFN.transpose(1, 2).reshape(-1).view(torch.int8)
        weights_NK: Tensor = values.view(fours_PFN.shape[0] * PANEL, -1)
        return weights_NK[: self.outputs, : self.inputs]
