"""Hidden states between tensors and the bytes of the wire, without copying where possible.

Invariants
    * a received activation is checked whole (names, shapes, element types) before it is used;
    * converting to the shard's element type never turns a number into infinity unnoticed.

Legend: B batch (1), T new positions, D hidden, L layers still to run, P per-layer input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    BadField,
    Buffer,
    DType,
    LayerRange,
    NumericalError,
    TensorSpec,
)
from meshnet.engine.runner import Passing

PER_LAYER_INPUTS = "per_layer_inputs"

TORCH_DTYPES = {
    DType.FP32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
}
WIRE_DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class ActivationForm:
    """What activations of one model look like."""

    leading_axes: tuple[int, ...]
    """Axes before BTD: Gemma 3n carries several streams."""
    hidden_size: int
    per_layer_width: int
    """P, or 0 for models without per-layer inputs."""
    layers_total: int

    def check(self, activation: Activation, layers: LayerRange, length: int) -> None:
        """Raise BadField unless `activation` is T = `length` positions entering `layers`."""
        shapes = {HIDDEN: (*self.leading_axes, 1, length, self.hidden_size)}
        if self.per_layer_width:
            rest = self.layers_total - layers.start
            shapes[PER_LAYER_INPUTS] = (1, length, rest, self.per_layer_width)
        got = {spec.name: spec.shape for spec in activation.tensors}
        if got != shapes or activation.hidden.name != HIDDEN:
            raise BadField("shape", f"{shapes}", got)


def packed(passing: Passing) -> Activation:
    """Describe and expose what leaves a shard; one tensor is not copied on the CPU."""
    tensors = [(HIDDEN, passing.hidden)]
    if passing.per_layer_inputs_BTLP is not None:
        tensors.append((PER_LAYER_INPUTS, passing.per_layer_inputs_BTLP))
    specs = tuple(
        TensorSpec(name, WIRE_DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors
    )
    views = [bytes_of(tensor) for _, tensor in tensors]
    return Activation(specs, views[0] if len(views) == 1 else b"".join(views))


def unpacked(activation: Activation, dtype: torch.dtype, device: torch.device) -> Passing:
    """Tensors over the activation's bytes, in the shard's element type.

    Raises:
        NumericalError: a value does not fit into `dtype` (a bf16 model on an fp16 node).
    """
    tensors: dict[str, Tensor] = {}
    offset = 0
    for spec in activation.tensors:
        tensor = tensor_over(activation.data, offset, spec)
        tensors[spec.name] = _converted(tensor, dtype, device, spec.name)
        offset += spec.nbytes
    return Passing(tensors[HIDDEN], tensors.get(PER_LAYER_INPUTS))


def bytes_of(tensor: Tensor) -> Buffer:
    """The values of `tensor`, row by row; not copied where they lie so on the CPU."""
    flat = tensor.detach().contiguous().cpu()
    if flat.dtype == torch.float32 and flat.numel():
        return flat.numpy().data.cast("B")
    return flat.reshape(-1).view(torch.uint8).numpy().data  # numpy knows no bf16


def tensor_over(data: Buffer, offset: int, spec: TensorSpec) -> Tensor:
    """What `spec` says lies in `data` from `offset` on; not copied where `data` is writable."""
    # Torch wants writable memory; layers never write to what enters them, but it cannot know.
    writable = isinstance(data, bytearray) or (isinstance(data, memoryview) and not data.readonly)
    part = memoryview(data)[offset : offset + spec.nbytes]
    if not writable:
        copied = torch.frombuffer(bytearray(part), dtype=TORCH_DTYPES[spec.dtype])
        return copied.view(spec.shape)
    raw = torch.frombuffer(part, dtype=torch.uint8)
    if raw.data_ptr() % spec.dtype.itemsize:
        raw = raw.clone()
    assert raw.numel() == math.prod(spec.shape) * spec.dtype.itemsize
    return raw.view(TORCH_DTYPES[spec.dtype]).view(spec.shape)


def _converted(tensor: Tensor, dtype: torch.dtype, device: torch.device, name: str) -> Tensor:
    if tensor.dtype == dtype and device.type == "cpu":
        return tensor
    converted = tensor.to(device=device, dtype=dtype)
    if tensor.dtype != dtype and not bool(torch.isfinite(converted).all()):
        raise NumericalError(
            f"{name}: values of the received {tensor.dtype} do not fit into this shard's {dtype}"
        )
    return converted
