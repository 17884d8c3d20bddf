"""A trimmed model on the meta device: shapes as a loaded shard has them, and no memory.

Made int8 as loading does it, but for products that multiply nothing, and with experts left out
where the model is to run: where they send rows depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.formats import INT8_ROWS, dtype_of
from meshnet.engine.layerwise import drop_unused_embedding
from meshnet.engine.linear import Int8Linear
from meshnet.engine.linear_choice import LinearChoice
from meshnet.engine.linear_experts import is_experts
from meshnet.engine.quantising import Quantiser
from meshnet.engine.trimming import TrimmedLayers, shard_class

META = torch.device("meta")


def meta_model(config: Any, held: LayerRange, weights: WeightFormat) -> Any:
    """Build the model with `held` layers only, in floating point."""
    model_class = shard_class(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], held)
    with META:
        model = model_class(config)
    return model.to(dtype_of(weights)).eval().requires_grad_(False)


def held_layers(model: Any) -> list[nn.Module]:
    layers: TrimmedLayers = model.meshnet_layers
    return [layers.layer(index) for index in range(layers.held.start, layers.held.stop)]


def make_int8(model: Any, weights: WeightFormat) -> None:
    """Replace what loading would replace; nothing if the format is a floating-point one."""
    rows = INT8_ROWS.get(weights)
    if rows is None:
        return
    quantiser = Quantiser(_Sizes(rows))
    quantiser.convert(model)
    for layer in held_layers(model):
        quantiser.convert(layer)
    drop_unused_embedding(model, model.meshnet_layers.held)


def leave_experts_out(model: Any) -> None:
    """Let rows pass experts as they are."""
    for owner in [*model.modules()]:
        for name, child in [*owner.named_children()]:
            if is_experts(child):
                setattr(owner, name, _Passed())


class _Passed(nn.Module):
    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden


class _NoProduct:
    """Weights that nobody has."""

    exact = True

    def __init__(self, *_: Tensor) -> None:
        pass

    def __call__(self, rows_RK: Tensor) -> Tensor:
        raise NotImplementedError

    def unpacked(self) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class _Sizes(LinearChoice):
    """Makes layers of the right size, and tries nothing."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, {"none": _NoProduct})

    def linear(self, weight_NK: Tensor, bias_N: Tensor | None) -> Int8Linear:
        outputs, inputs = weight_NK.shape
        scales_N = torch.empty(outputs, device=META)
        return Int8Linear(_NoProduct(), scales_N, bias_N, inputs=inputs, rows=self.rows)

    def try_tile(self, weight_NK: Tensor) -> None:
        pass

    def try_activation(self, name: str, function: Callable[[Tensor], Tensor]) -> None:
        pass


def parameters_of(module: nn.Module) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every parameter below `module` with the module that it belongs to."""
    for owner in module.modules():
        for weight in owner.parameters(recurse=False):
            yield owner, weight
