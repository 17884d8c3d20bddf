"""Linear layers whose result for a row depends on that row alone.

`Int8Linear` holds weights as int8, one scale per output. A row x of fp32 becomes whole numbers by
its own largest magnitude, s = max|x| / 127, in one or in two rows of the same product:

    int8-fast   x = s * round(x/s)
    int8        x = s * (round(x/s) + rest/254),   rest = round(254 * (x/s - round(x/s)))

Two rows carry 16 bits of an activation, so the error that remains is that of the weights, and
what one row costs alone is small where reading the weights takes the time. Integers are added up
exactly, and the few operators around them work value by value: a row's bits are the same alone
or in any batch.

`TiledLinear` is the floating-point counterpart for what must not be quantised: small, and run on
a fixed number of rows.

Invariants
    * outputs are fresh tensors: callers may write to them;
    * NaN and infinity of a row make its whole result NaN or infinite, and no other row's.

Legend: N outputs, K inputs, M rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshnet.engine.heap import blocks
from meshnet.engine.linear_products import LayerProduct, Product, ProductOf, tiled

LEVELS = 127
REST = 2 * LEVELS
SMALLEST = 1e-20
"""Rows below are zero; it keeps a row of zeros from being divided by zero."""


class Int8Linear(nn.Module):
    """A linear layer with int8 weights; fp32 in, fp32 out, any leading shape."""

    def __init__(
        self, product: Product, scales_N: Tensor, bias_N: Tensor | None, *, inputs: int, rows: int
    ) -> None:
        """`rows`: 2 for `int8`, 1 for `int8-fast`."""
        super().__init__()
        self.in_features, self.out_features, self.rows = inputs, len(scales_N), rows
        self.product = product
        self._whole = product.linear if isinstance(product, LayerProduct) else None
        # An operator takes a Python number only after making a tensor of it.
        self._step, self._rest = scales_N.new_tensor(1 / LEVELS), scales_N.new_tensor(float(REST))
        self.scale = nn.Parameter(scales_N.float(), requires_grad=False)
        self.bias = None if bias_N is None else nn.Parameter(bias_N.float(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """Shape, type and device, for code that asks; NaN, lest anybody compute with it."""
        return self.scale.new_full((), torch.nan).expand(self.out_features, self.in_features)

    @property
    def weight_bytes(self) -> int:
        vectors = sum(vector.numel() for vector in self.parameters())
        return self.out_features * self.in_features + vectors * 4

    def forward(self, x: Tensor) -> Tensor:
        x_MK = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        if not x_MK.shape[0]:
            return x.new_zeros((*x.shape[:-1], self.out_features))
        if self._whole is not None and x_MK.dtype == torch.float32:
            y_MN = self._whole(x_MK, self.bias, self.rows)
        else:
            y_MN = self._multiplied(x_MK)
            if self.bias is not None:
                y_MN.add_(self.bias)
        return y_MN if x.dim() == 2 else y_MN.view(*x.shape[:-1], self.out_features)

    def _multiplied(self, x_MK: Tensor) -> Tensor:
        if not self.product.exact:
            return self.product(x_MK)
        s_M1 = x_MK.abs().amax(-1, keepdim=True).clamp_min_(SMALLEST).mul_(self._step)
        if self.rows == 1:
            return self.product(x_MK / s_M1).mul_(s_M1)
        # Rounded here: a product may round a value that is a hair below one half otherwise, and
        # the rest must be what was left of the very same number.
        both_2MK = torch.empty((2 * x_MK.shape[0], self.in_features), device=x_MK.device)
        rest_MK, whole_MK = both_2MK.chunk(2)
        torch.div(x_MK, s_M1, out=rest_MK)
        torch.round(rest_MK, out=whole_MK)
        rest_MK.sub_(whole_MK).mul_(self._rest)
        rest_MN, whole_MN = self.product(both_2MK).chunk(2)
        return torch.add(whole_MN, rest_MN, alpha=1 / REST).mul_(s_M1)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rows={self.rows}"


class TiledLinear(nn.Linear):
    """A linear layer in floating point that sees a fixed number of rows, whoever calls."""

    def forward(self, x: Tensor) -> Tensor:
        x_MK = x.reshape(-1, self.in_features)
        if not len(x_MK):
            return x.new_zeros((*x.shape[:-1], self.out_features))
        y_MN: Tensor = tiled(lambda rows: functional.linear(rows, self.weight, self.bias), x_MK)
        return y_MN.reshape(*x.shape[:-1], self.out_features)

    @classmethod
    def of(cls, linear: nn.Linear) -> TiledLinear:
        """Return a layer that shares the weights of `linear`."""
        made = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        made.weight = linear.weight
        made.register_parameter("bias", linear.bias)
        return made


def quantised(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 NK and fp32 scales N: symmetric, each output by its largest magnitude.

    Works through a few outputs at a time, so no second matrix in fp32 is made.
    """
    outputs, inputs = weight_NK.shape
    levels_NK = torch.empty((outputs, inputs), dtype=torch.int8, device=weight_NK.device)
    scales_N = torch.empty(outputs, dtype=torch.float32, device=weight_NK.device)
    start = 0
    for block in blocks(weight_NK):
        part, stop = block.float(), start + len(block)
        scales = part.abs().amax(-1).clamp_min_(SMALLEST).div_(LEVELS)
        levels_NK[start:stop] = part.div(scales[:, None]).round_()
        scales_N[start:stop] = scales
        start = stop
    return levels_NK, scales_N


def merged(linears: Sequence[nn.Module]) -> nn.Module:
    """Return one layer with the outputs of all, in order; they must take the same inputs.

    Of int8 layers each output's bits are those of the layer it comes from; of floating-point ones
    the joined matrix may round otherwise. The weights are copied: drop the originals.

    Raises:
        TypeError: the layers are of unlike kinds.
    """
    if all(isinstance(linear, Int8Linear) for linear in linears):
        return _merged_int8([linear for linear in linears if isinstance(linear, Int8Linear)])
    if all(isinstance(linear, nn.Linear) for linear in linears):
        return _merged_float([linear for linear in linears if isinstance(linear, nn.Linear)])
    raise TypeError(f"cannot join {[type(linear).__name__ for linear in linears]}")


def _merged_int8(linears: Sequence[Int8Linear]) -> Int8Linear:
    kinds = {(type(linear.product), linear.rows, linear.in_features) for linear in linears}
    if len(kinds) > 1:
        raise TypeError(f"cannot join int8 layers of unlike kinds {kinds}")
    return Int8Linear(
        _joined([linear.product for linear in linears]),
        torch.cat([linear.scale for linear in linears]),
        _merged_bias([(linear.bias, linear.scale) for linear in linears]),
        inputs=linears[0].in_features,
        rows=linears[0].rows,
    )


def _joined(products: Sequence[Product]) -> Product:
    first = products[0]
    made = first.joined(products) if isinstance(first, LayerProduct) else None
    if made is not None:
        return made
    kind: ProductOf = type(first)
    levels, scales = zip(*(product.unpacked() for product in products), strict=True)
    return kind(torch.cat(levels), torch.cat(scales))


def _merged_float(linears: Sequence[nn.Linear]) -> nn.Linear:
    tiles = all(isinstance(linear, TiledLinear) for linear in linears)
    weight = torch.cat([linear.weight for linear in linears])
    made = (TiledLinear if tiles else nn.Linear)(
        weight.shape[1], weight.shape[0], bias=False, device="meta"
    )
    made.weight = nn.Parameter(weight, requires_grad=False)
    bias = _merged_bias([(linear.bias, linear.weight[:, 0]) for linear in linears])
    made.register_parameter(
        "bias", None if bias is None else nn.Parameter(bias, requires_grad=False)
    )
    return made


def _merged_bias(parts: Sequence[tuple[Tensor | None, Tensor]]) -> Tensor | None:
    """Return the biases one after another, zero where there is none; the other of each says N."""
    if all(bias is None for bias, _ in parts):
        return None
    return torch.cat([torch.zeros_like(like) if bias is None else bias for bias, like in parts])
