"""Layers of the short forward with everything between their int8 products compiled.

    levels -> qkv ==> heads -> attention -> levels -> out ==> add_norm_levels
           -> gate_up ==> gate_levels -> down ==> add_norm_levels (the next layer's norm) -> ...

In a small model at one token a call of torch costs more than the values it works on: here a
layer takes five calls of compiled loops (fused.py), four products and the attention. Weights,
attention and buffers are those of the short forward (lean.py), whose layers these are made from.

Invariants
    * memory that loops get the addresses of is held by the layer or by the step;
    * what enters is not written to.

Legend: T rows of a step, L of one segment, R kept, D hidden, H query heads, K key/value heads,
S head size, N outputs of a product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from meshnet.core.vocabulary import LayerRange
from meshnet.engine import fused
from meshnet.engine.lean import LeanLayer, Norm, Part, Rotary
from meshnet.engine.linear import Int8Linear
from meshnet.engine.pointwise import SteadySiLU

THREADS_MAX = 4
"""Loops run on one thread: with more, torch's operators would overtake them in a prefill."""


def fused_layers(layers: Mapping[int, LeanLayer]) -> FusedLayers | None:
    """Return the compiled form of joined layers, if they are such that there is one."""
    if torch.get_num_threads() > THREADS_MAX or not all(map(_fits, layers.values())):
        return None
    return FusedLayers({index: FusedLayer(layer) for index, layer in layers.items()})


def _fits(layer: LeanLayer) -> bool:
    linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
    if not all(isinstance(linear, Int8Linear) and linear.product.exact for linear in linears):
        return False
    if len({linear.rows for linear in linears}) > 1 or layer.size % 2:
        return False
    norms = [layer.before_attention.weight, layer.before_mlp.weight]
    on_cpu = all(norm.dtype == torch.float32 and norm.is_cpu for norm in norms)
    return on_cpu and isinstance(layer.activation, SteadySiLU | nn.SiLU)


class _Step:
    """The memory of a step, which all its layers share."""

    def __init__(self, hidden_TD: Tensor, pair: bool) -> None:
        self.hidden_TD = hidden_TD
        self.hidden = hidden_TD.data_ptr()
        self.rows = len(hidden_TD)
        self.behind = self.rows if pair else 0
        self._scales_T = hidden_TD.new_empty(self.rows)
        self.scales = self._scales_T.data_ptr()
        self._levels: dict[int, Tensor] = {}

    def levels(self, width: int) -> Tensor:
        """What enters a product of so many inputs; the same memory whenever asked."""
        made = self._levels.get(width)
        if made is None:
            made = self.hidden_TD.new_empty((self.rows + self.behind, width))
            self._levels[width] = made
        return made


class FusedLayer:
    def __init__(self, lean: LeanLayer) -> None:
        self._lean = lean
        self.pair: bool = lean.qkv.rows == 2
        self.norm = _Norm(lean.before_attention)
        self._before_mlp = _Norm(lean.before_mlp)
        self._of_heads = None if lean.of_heads is None else _Norm(lean.of_heads)
        self._qkv, self._out = _Product(lean.qkv), _Product(lean.out)
        self._gate_up, self._down = _Product(lean.gate_up), _Product(lean.down)
        self._head = lean.before_attention.weight.new_empty(lean.size)
        self._like_K0S = self._head.new_empty((lean.keys, 0, lean.size))

    def __call__(
        self, step: _Step, rotary: Rotary, parts: Sequence[Part], kept: Tensor | None
    ) -> tuple[_Step, Tensor]:
        """Run the layer from levels of the normed hidden states: the product still to be added.

        With `kept` the step that it returns is of those rows.
        """
        attended_TN = self._attended(step, rotary, parts)
        if kept is not None:
            step, attended_TN = _Step(step.hidden_TD[kept], self.pair), attended_TN[kept]
        rows, behind, scales = step.rows, step.behind, step.scales
        levels = step.levels(self._out.inputs)
        fused.levels(
            attended_TN.data_ptr(), levels.data_ptr(), scales, rows, self._out.inputs, behind
        )
        product = self._out(levels)
        self._before_mlp.after(step, product, self._out.bias)
        product = self._gate_up(step.levels(self._gate_up.inputs))
        levels = step.levels(self._down.inputs)
        fused.gate_levels(
            product.data_ptr(),
            scales,
            self._gate_up.bias,
            levels.data_ptr(),
            scales,
            rows,
            self._down.inputs,
            behind,
        )
        return step, self._down(levels)

    @property
    def last_bias(self) -> int:
        return self._down.bias

    def _attended(self, step: _Step, rotary: Rotary, parts: Sequence[Part]) -> Tensor:
        lean, product = self._lean, self._qkv(step.levels(self._qkv.inputs))
        query_THS = product.new_empty((step.rows, lean.queries, lean.size))
        for part in parts:
            self._place(step, product, query_THS, rotary, part)
        return lean.attended(query_THS, parts).contiguous()

    def _place(
        self, step: _Step, product: Tensor, query_THS: Tensor, rotary: Rotary, part: Part
    ) -> None:
        """Write the keys and values of a part to their buffer, and its queries."""
        lean, start = self._lean, part.start
        buffer = lean.buffer(part)
        slot = buffer.extend(part.length, self._like_K0S, self._like_K0S)
        keys_KCS, values_KCS = buffer.keys, buffer.values
        assert keys_KCS is not None
        assert values_KCS is not None
        assert keys_KCS.is_contiguous()
        assert values_KCS.is_contiguous()
        row, size = 4 * start, lean.size
        fused.heads(
            product.data_ptr() + row * self._qkv.outputs,
            step.scales + row,
            self._qkv.bias,
            0 if self._of_heads is None else self._of_heads.weight,
            0.0 if self._of_heads is None else self._of_heads.eps,
            rotary.cosine.data_ptr() + row * size,
            rotary.sine.data_ptr() + row * size,
            self._head.data_ptr(),
            query_THS.data_ptr() + row * lean.queries * size,
            keys_KCS.data_ptr() + 4 * slot * size,
            values_KCS.data_ptr() + 4 * slot * size,
            part.length,
            step.behind,
            lean.queries,
            lean.queries + lean.keys,
            size,
            keys_KCS.shape[1],
        )


class FusedLayers:
    suffix = "-fused"

    def __init__(self, layers: Mapping[int, FusedLayer]) -> None:
        self._layers = layers

    def run(
        self,
        hidden_TD: Tensor,
        layers: LayerRange,
        rotary: Rotary,
        parts: Sequence[Part],
        kept: Tensor | None,
    ) -> Tensor:
        first = self._layers[layers.start]
        step = _Step(hidden_TD.clone(memory_format=torch.contiguous_format), first.pair)
        rotary = Rotary(rotary.cosine.contiguous(), rotary.sine.contiguous())
        first.norm.first(step)
        for index in range(layers.start, layers.stop - 1):
            layer = self._layers[index]
            _, product = layer(step, rotary, parts, None)
            self._layers[index + 1].norm.after(step, product, layer.last_bias)
        last = self._layers[layers.stop - 1]
        step, product = last(step, rotary, parts, kept)
        width = hidden_TD.shape[-1]
        fused.add(
            product.data_ptr(),
            step.scales,
            last.last_bias,
            step.hidden,
            step.rows,
            width,
            step.behind,
        )
        return step.hidden_TD


class _Norm:
    """A norm of hidden states that makes the levels of what comes after it."""

    def __init__(self, norm: Norm) -> None:
        self._weight = norm.weight.detach().contiguous()
        self.weight, self.eps, self._width = (
            self._weight.data_ptr(),
            norm.eps,
            norm.weight.shape[-1],
        )

    def first(self, step: _Step) -> None:
        levels = step.levels(self._width).data_ptr()
        fused.norm_levels(
            step.hidden,
            self.weight,
            self.eps,
            levels,
            step.scales,
            step.rows,
            self._width,
            step.behind,
        )

    def after(self, step: _Step, product: Tensor, bias: int) -> None:
        """Add a product to the hidden states first."""
        fused.add_norm_levels(
            product.data_ptr(),
            step.scales,
            bias,
            step.hidden,
            self.weight,
            self.eps,
            step.levels(self._width).data_ptr(),
            step.rows,
            self._width,
            step.behind,
        )


class _Product:
    """An int8 product without what surrounds it."""

    def __init__(self, linear: Any) -> None:
        self._multiply = linear.product
        self._bias = None if linear.bias is None else linear.bias.detach().contiguous()
        self.bias = 0 if self._bias is None else self._bias.data_ptr()
        self.inputs, self.outputs = linear.in_features, linear.out_features

    def __call__(self, levels: Tensor) -> Tensor:
        product: Tensor = self._multiply(levels)
        return product
