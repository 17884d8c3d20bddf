"""Four ways to multiply rows by int8 weights; which of them a machine can do is found by trial.

    compiled     loops of our own (compiled/), which take a whole layer in one call; exact
    packed       int8 weights in the layout of the CPU's own kernel; integer sums, exact
    integer      `_int_mm` on the plain int8 matrix; the same integer sums, on CUDA as well
    weight-only  rows stay as they are, weights are widened tile by tile; rounds as fp32 does

The first three round rows to whole numbers from -127 to 127 and add up integers, so a row's result
is the same bits alone or among others, and the same from each.

Invariants
    * weights are held once, in one byte each, and can be taken out again;
    * every product has seen at least one row: empty calls are answered before (linear.py).

Legend: N outputs, K inputs, R rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

ROW_TILE = 64
"""Floating-point products run on this many rows at a time, so each sees the same kernel."""
ZERO_POINT = 128
"""The packed operator wants unsigned rows: it adds this and takes it off again."""
CUDA_ROWS_MIN = 32
CUDA_ALIGNMENT = 8


class Product(Protocol):
    """Rows times int8 weights NK with one scale per output."""

    @property
    def exact(self) -> bool:
        """Whether rows are rounded to whole numbers, which then are added up without error."""
        ...

    def __call__(self, rows_RK: Tensor) -> Tensor:
        """Return fp32 RN, never a view of anything."""
        ...

    def unpacked(self) -> tuple[Tensor, Tensor]:
        """Return the weights, int8 NK, and their scales, fp32 N."""
        ...


@runtime_checkable
class LayerProduct(Product, Protocol):
    """A product that does what surrounds it as well, and can be joined as it is."""

    def linear(self, x_MK: Tensor, bias_N: Tensor | None, rows: int) -> Tensor:
        """Return what `Int8Linear` of `rows` yields: fp32 MN, the same bits."""
        ...

    @classmethod
    def joined(cls, products: Sequence[Any]) -> Product | None:
        """Return one product with the outputs of all, in order; None: these cannot be joined."""
        ...


ProductOf = Callable[[Tensor, Tensor], Product]
"""Makes a product of int8 weights NK and scales N. May raise RuntimeError: not on this machine."""


class PackedProduct:
    exact = True

    def __init__(self, weights_NK: Tensor, scales_N: Tensor) -> None:
        self._packed = _prepacked(weights_NK, scales_N)

    def __call__(self, rows_RK: Tensor) -> Tensor:
        result: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows_RK, 1.0, ZERO_POINT, self._packed
        )
        return result

    def unpacked(self) -> tuple[Tensor, Tensor]:
        weights, _ = torch.ops.quantized.linear_unpack(self._packed)
        return weights.int_repr(), weights.q_per_channel_scales().float()


class IntegerProduct:
    exact = True

    def __init__(self, weights_NK: Tensor, scales_N: Tensor) -> None:
        self._shape = tuple(weights_NK.shape)
        cuda = weights_NK.is_cuda
        self._alignment, self._rows_min = (CUDA_ALIGNMENT, CUDA_ROWS_MIN) if cuda else (1, 1)
        padding = [-extent % self._alignment for extent in self._shape]
        self._weights_NK = functional.pad(weights_NK, (0, padding[1], 0, padding[0])).contiguous()
        self._scales_N = scales_N.float()

    def __call__(self, rows_RK: Tensor) -> Tensor:
        outputs, inputs = self._shape
        # As the packed operator does: in fp32 the sum may carry a value over one half.
        rows = rows_RK.add(ZERO_POINT).round_().sub_(ZERO_POINT).to(torch.int8)
        padding = (self._weights_NK.shape[1] - inputs, max(0, self._rows_min - len(rows)))
        if any(padding):
            rows = functional.pad(rows, (0, padding[0], 0, padding[1]))
        sums = torch._int_mm(rows, self._weights_NK.t())
        result: Tensor = sums[: len(rows_RK), :outputs].to(torch.float32).mul_(self._scales_N)
        return result

    def unpacked(self) -> tuple[Tensor, Tensor]:
        outputs, inputs = self._shape
        return self._weights_NK[:outputs, :inputs], self._scales_N


class WeightOnlyProduct:
    exact = False

    def __init__(self, weights_NK: Tensor, scales_N: Tensor) -> None:
        self._weights_NK = weights_NK.contiguous()
        self._scales_N = scales_N.float()

    def __call__(self, rows_RK: Tensor) -> Tensor:
        weights_NK = self._weights_NK.to(rows_RK.dtype)
        result: Tensor = tiled(lambda rows: functional.linear(rows, weights_NK), rows_RK)
        return result.mul_(self._scales_N)

    def unpacked(self) -> tuple[Tensor, Tensor]:
        return self._weights_NK, self._scales_N


def compiled_product(weights_NK: Tensor, scales_N: Tensor) -> Product:
    """Make a product by compiled loops. Raises RuntimeError: numba or the processor cannot."""
    try:
        from meshnet.engine.compiled.product import CompiledProduct
    except ImportError as missing:
        raise RuntimeError(f"nothing compiles: {missing}") from missing
    return CompiledProduct(weights_NK, scales_N)


PRODUCTS: dict[str, ProductOf] = {
    "compiled": compiled_product,
    "packed": PackedProduct,
    "integer": IntegerProduct,
    "weight-only": WeightOnlyProduct,
}
"""Best first."""


def tiled(function: Callable[[Tensor], Any], rows_RK: Tensor) -> Any:
    """Return `function` of all rows, called with exactly `ROW_TILE` of them at a time.

    A kernel chosen by the number of rows then is the same for every call, and so is what a row
    yields. `function` returns one value a row: a tensor, or a tuple of them.
    """
    results = []
    for rows in torch.split(rows_RK, ROW_TILE):
        missing = ROW_TILE - len(rows)
        result = function(functional.pad(rows, (0, 0, 0, missing)) if missing else rows)
        results.append(_first(result, len(rows)))
    if len(results) == 1:
        return results[0]
    if isinstance(results[0], tuple):
        return tuple(torch.cat(column) for column in zip(*results, strict=True))
    return torch.cat(results)


def _first(result: Any, rows: int) -> Any:
    if isinstance(result, tuple):
        return tuple(part[:rows] for part in result)
    return result[:rows]


def _prepacked(weights_NK: Tensor, scales_N: Tensor) -> Any:
    with warnings.catch_warnings():
        # Deprecated as a public element type; the pinned torch has it, and the trial tells.
        warnings.filterwarnings("ignore", r".*quantized tensor creation", UserWarning)
        quantised = torch._make_per_channel_quantized_tensor(
            weights_NK, scales_N.double(), torch.zeros(len(scales_N), dtype=torch.int64), 0
        )
        return torch.ops.quantized.linear_prepack(quantised, None)
