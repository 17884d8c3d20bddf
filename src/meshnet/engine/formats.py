"""Loading layers in the weight format asked for, and what of it decides the bits of a result.

    fp32, bf16, fp16    tensors as they are read, converted to one element type
    int8, int8-fast     linear layers as int8, by operators that passed their trial; the rest fp32

Nodes of unlike formats work together: activations between them are of the sender's element type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from meshnet.core.vocabulary import DType, LayerRange, WeightFormat
from meshnet.engine.activations import TORCH_DTYPES
from meshnet.engine.checkpoint import LoadedLayers, Tensors, load_layers
from meshnet.engine.layerwise import load_converted
from meshnet.engine.linear_choice import LinearChoice

INT8_ROWS = {WeightFormat.INT8: 2, WeightFormat.INT8_FAST: 1}
FLOAT_OPERATORS = "linear"


@dataclass(frozen=True, slots=True)
class Form:
    """A weight format as it turned out on this machine."""

    weights: WeightFormat
    operators: str
    """Names of what multiplies the weights."""
    digest: str
    """Of a fixed layer's result; empty in floating point, where operators are torch's alone."""
    steady: bool
    """False: a row's result may depend on the rows beside it, as it does in floating point."""

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, and of weights that are not int8."""
        return dtype_of(self.weights)


def dtype_of(weights: WeightFormat) -> torch.dtype:
    """Of activations, and of what is not int8."""
    return TORCH_DTYPES[DType.FP32 if weights in INT8_ROWS else DType(weights.value)]


def format_for(device: torch.device) -> WeightFormat:
    """On a CPU int8 is the fastest that is as good as q8_0, and exact however work is cut."""
    return WeightFormat.BF16 if device.type == "cuda" else WeightFormat.INT8


def load_in_format(
    path: Path,
    tensors: Tensors,
    config: Any,
    held: LayerRange,
    weights: WeightFormat,
    device: torch.device,
    report: Callable[[str], None],
) -> tuple[LoadedLayers, Form]:
    """Read the tensors of `held` layers. Raises ModelError.

    Args:
        report: told, in a sentence, what int8 could not do or left in floating point.
    """
    rows = INT8_ROWS.get(weights)
    if rows is None:
        form = Form(weights, FLOAT_OPERATORS, "", steady=False)
        return load_layers(path, tensors, config, held, form.dtype, device), form
    choice = LinearChoice(rows)
    converted = load_converted(path, tensors, config, held, choice, device)
    digest = choice.digest(device)
    for note in choice.notes:
        report(f"layers {held}: {note}")
    if converted.left:
        report(f"layers {held}: not made int8: {', '.join(converted.left)}")
    return converted.loaded, Form(weights, choice.operators, digest, choice.steady)
