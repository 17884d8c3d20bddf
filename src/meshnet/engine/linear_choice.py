"""Which product int8 layers use on this machine, found by trying each on the weights at hand.

Kernels are not trusted: on processors without 8-bit dot products some add pairs in 16 bits, which
overflow at full range, and some choose their arithmetic by the number of rows. So for each shape
the candidates are tried in order of speed, on weights as loaded and on weights all at full range:

    wrong       off from the sums done in fp64                     -> the next one
    unsteady    a row's bits change with the rows beside it        -> the next one

Invariants
    * a layer never uses a product that was wrong for its shape;
    * one that is unsteady serves only if nothing better does, and it is told.

Legend: N outputs, K inputs, M rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from meshnet.core.vocabulary import ModelError
from meshnet.engine.heap import raise_if_out_of_memory
from meshnet.engine.linear import LEVELS, REST, SMALLEST, Int8Linear, TiledLinear, quantised
from meshnet.engine.linear_products import PRODUCTS, ZERO_POINT, ProductOf, tiled

TRIAL_ROWS = 64
COMPANIES = (1, 2, 3, 8)
"""Numbers of rows whose results are compared with those among all `TRIAL_ROWS`."""
ACTIVATION_WIDTH = 131
"""No whole number of vectors, so that places within one differ from row to row."""
OUTPUTS_MAX = 256
"""Outputs compared with fp64; all are compared among companies."""
TOLERANCE = 1e-4
"""Of a row's largest result. A saturated sum is off by tenths, the last bits by 1e-7."""

Failure = str


class LinearChoice:
    """Makes linear layers of one format, each with the best product that passes its trial."""

    def __init__(self, rows: int, products: Mapping[str, ProductOf] = PRODUCTS) -> None:
        """`rows`: 2 for `int8`, 1 for `int8-fast`. `products`: best first."""
        self.rows = rows
        self.notes: list[str] = []
        """In sentences, what was passed over and why."""
        self.steady = True
        """Whether a row's bits never depend on the rows beside it."""
        self._products = products
        self._names: dict[tuple[int, int], str] = {}
        self._tiled: set[tuple[int, ...]] = set()

    @property
    def operators(self) -> str:
        """Names of the products in use, best first."""
        used = set(self._names.values())
        return ", ".join(name for name in self._products if name in used)

    def linear(self, weight_NK: Tensor, bias_N: Tensor | None) -> Int8Linear:
        """Quantise a matrix. Raises ModelError: no product multiplies it rightly."""
        levels_NK, scales_N = quantised(weight_NK)
        shape = (int(weight_NK.shape[0]), int(weight_NK.shape[1]))
        if shape not in self._names:
            self._names[shape] = self._chosen(levels_NK, scales_N)
        product = self._products[self._names[shape]](levels_NK, scales_N)
        return Int8Linear(product, scales_N, bias_N, inputs=shape[1], rows=self.rows)

    def tiled(self, linear: torch.nn.Linear) -> TiledLinear:
        """Keep a layer in floating point, on a fixed number of rows."""
        self.try_tile(linear.weight)
        return TiledLinear.of(linear)

    def try_tile(self, weight_NK: Tensor) -> None:
        """Find out whether a fixed number of rows is enough for this matrix in floating point."""
        shape = tuple(weight_NK.shape)
        if shape in self._tiled:
            return
        self._tiled.add(shape)
        x_MK = trial_rows(shape[1], weight_NK.device).to(weight_NK.dtype)
        if not steady(
            lambda some: tiled(lambda rows: functional.linear(rows, weight_NK), some), x_MK
        ):
            self._tell_unsteady(f"floating-point layers of {shape[0]} x {shape[1]}")

    def try_activation(self, name: str, function: torch.nn.Module) -> None:
        """Find out whether a value's result depends on the values beside it."""
        generator = torch.Generator().manual_seed(0)
        x_MK = torch.randn((TRIAL_ROWS, ACTIVATION_WIDTH), generator=generator).mul_(3)
        device = next((weight.device for weight in function.parameters()), x_MK.device)
        if not steady(function, x_MK.to(device)):
            self._tell_unsteady(f"the activation function {name}")

    def digest(self, device: torch.device) -> str:
        """Digest of what a fixed layer yields, as its low bits come out on this machine."""
        weight_NK = torch.linspace(-1, 1, 64 * 96).sin_().mul_(3).sin_().view(64, 96).to(device)
        layer = self.linear(weight_NK, None)
        result = layer(trial_rows(96, device)[:8]).cpu().numpy().tobytes()
        return hashlib.sha256(result).hexdigest()[:16]

    def _chosen(self, levels_NK: Tensor, scales_N: Tensor) -> str:
        outputs, inputs = levels_NK.shape
        unsteady = None
        for name, product_of in self._products.items():
            failure = self._wrong(product_of, levels_NK, scales_N)
            if failure is None:
                if self._is_steady(product_of, levels_NK, scales_N):
                    return name
                unsteady = unsteady or name
                failure = "a row's result depends on the rows beside it"
            self.notes.append(f"int8 by {name!r} is not used for {outputs} x {inputs}: {failure}")
        if unsteady is None:
            raise ModelError(f"no int8 product works for {outputs} x {inputs}: {self.notes[-1]}")
        self._tell_unsteady(f"int8 layers of {outputs} x {inputs}, by {unsteady!r}")
        return unsteady

    def _tell_unsteady(self, what: str) -> None:
        self.steady = False
        self.notes.append(f"{what}: results depend on the batch, so recovery is not bitwise")

    def _wrong(self, product_of: ProductOf, levels_NK: Tensor, scales_N: Tensor) -> Failure | None:
        x_MK = trial_rows(levels_NK.shape[1], levels_NK.device)
        chosen = _spread(len(levels_NK), levels_NK.device)
        full_NK = _full_range(levels_NK.shape[1], levels_NK.device)
        full_N = torch.full((len(full_NK),), 1 / LEVELS, device=levels_NK.device)
        try:
            for levels, scales, some in (
                (full_NK, full_N, _spread(len(full_NK), levels_NK.device)),
                (levels_NK, scales_N, chosen),
            ):
                product = product_of(levels, scales)
                layer = Int8Linear(product, scales, None, inputs=levels.shape[1], rows=self.rows)
                want = expected(x_MK, levels[some], scales[some], self.rows, exact=product.exact)
                error = _error(layer(x_MK)[:, some], want)
                if not error <= TOLERANCE:
                    return f"off by {error:.2g} of a row's largest result"
        except (RuntimeError, NotImplementedError, AttributeError) as error_here:
            raise_if_out_of_memory(error_here)
            return f"not available here: {str(error_here).partition(chr(10))[0]}"
        return None

    def _is_steady(self, product_of: ProductOf, levels_NK: Tensor, scales_N: Tensor) -> bool:
        inputs = levels_NK.shape[1]
        product = product_of(levels_NK, scales_N)
        layer = Int8Linear(product, scales_N, None, inputs=inputs, rows=self.rows)
        return steady(layer, trial_rows(inputs, levels_NK.device))


def steady(function: Callable[[Tensor], Tensor], x_MK: Tensor) -> bool:
    """Whether each row's bits are the same in small companies as among all of `x_MK`."""
    whole = function(x_MK)
    last = len(x_MK)
    return all(
        torch.equal(function(x_MK[start : start + rows]), whole[start : start + rows])
        for rows in COMPANIES
        for start in (0, last // 3, last - rows)
    )


def expected(
    x_MK: Tensor, levels_NK: Tensor, scales_N: Tensor, rows: int, *, exact: bool
) -> Tensor:
    """Return what the format defines, in fp64: sums of whole numbers, or of `x` itself."""
    weights_NK = levels_NK.double() * scales_N.double()[:, None]
    if not exact:
        return x_MK.double() @ weights_NK.T
    s_M1 = x_MK.abs().amax(-1, keepdim=True).clamp_min(SMALLEST) * (1 / LEVELS)
    level_MK = x_MK / s_M1
    whole_MK = _whole(level_MK.round() if rows == 2 else level_MK)
    if rows == 2:
        whole_MK = whole_MK + _whole((level_MK - level_MK.round()) * REST) / REST
    return (whole_MK * s_M1.double()) @ weights_NK.T


def _whole(values: Tensor) -> Tensor:
    return (values + ZERO_POINT).round().double() - ZERO_POINT


def trial_rows(inputs: int, device: torch.device) -> Tensor:
    """Random rows of many magnitudes, and rows that are full range, zero or a single spike."""
    generator = torch.Generator().manual_seed(0)
    x_MK = torch.randn((TRIAL_ROWS, inputs), generator=generator)
    x_MK *= torch.logspace(-6, 6, TRIAL_ROWS)[:, None]
    signs = torch.randint(0, 2, (inputs,), generator=generator) * 2.0 - 1
    x_MK[0], x_MK[1], x_MK[2], x_MK[3] = 1.0, -1.0, signs, 0.0
    x_MK[4] = 0.0
    x_MK[4, inputs // 2] = 5.0
    return x_MK.to(device)


def _full_range(inputs: int, device: torch.device) -> Tensor:
    """Weights all at +-127: all of one sign, alternating, random."""
    generator = torch.Generator().manual_seed(1)
    signs = torch.randint(0, 2, (32, inputs), generator=generator) * 2 - 1
    signs[0], signs[1] = 1, -1
    signs[2, ::2], signs[2, 1::2] = 1, -1
    return (signs * LEVELS).to(torch.int8).to(device)


def _spread(outputs: int, device: torch.device) -> Tensor:
    count = min(outputs, OUTPUTS_MAX)
    return torch.linspace(0, outputs - 1, count).round().long().to(device)


def _error(got: Tensor, want: Tensor) -> float:
    """Largest difference, each relative to the largest result of its row; zero rows must be."""
    scale = want.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    return float(((got.double() - want).abs() / scale).max())
