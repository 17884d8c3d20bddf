"""Loading a model in int8 without ever holding it in fp32.

    ends      embedding, norm, output head, in fp32                    -> converted
    layers    a few at a time, large matrices as stored, else fp32     -> converted, moved

What a group is read into is the same trimmed model as always, of that group's layers and nothing
else, so renaming and merging stay the loader's; only the converted layers outlive it.

Invariants
    * at most one group, or the ends, are in memory unconverted at a time;
    * each tensor is read once, but for a first group of several element types, and nothing that
      stays keeps a file mapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.checkpoint import LoadedLayers, Tensors, check_numbers, read_model
from meshnet.engine.heap import blocks, give_back
from meshnet.engine.linear_choice import LinearChoice
from meshnet.engine.quantising import Quantiser
from meshnet.engine.trimming import Part, TrimmedLayers

GROUP_BYTES = 16 << 20
"""Layers smaller than this together are read at once: building a model for each takes time."""
FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Converted:
    """A model whose linear layers are int8, and what stayed in floating point."""

    loaded: LoadedLayers
    left: tuple[str, ...]


def load_converted(
    path: Path,
    tensors: Tensors,
    config: Any,
    held: LayerRange,
    choice: LinearChoice,
    device: torch.device,
) -> Converted:
    """Read the tensors of `held` layers and make them int8 group by group. Raises ModelError."""
    quantiser = Quantiser(choice)
    model = read_model(path, tensors, config, held, torch.float32, Part.ENDS).to(device)
    layers: TrimmedLayers = model.meshnet_layers
    tensors.close()
    check_numbers(path, model)
    quantiser.convert(model)
    drop_unused_embedding(model, held)
    _own(model)
    stored = _stored(config)
    for group in groups(held, layer_bytes(layers)):
        part = read_model(path, tensors, config, group, torch.float32, Part.LAYERS, stored)
        if stored is not None and tensors.dtypes != {stored}:
            # The configuration does not tell the truth of all tensors: none may lose digits.
            stored = None
            part = read_model(path, tensors, config, group, torch.float32, Part.LAYERS)
        tensors.close()
        check_numbers(path, part)
        _move(part.meshnet_layers, layers, quantiser, device)
        del part
        give_back()
    loaded = LoadedLayers(
        model=model,
        bytes_read=tensors.bytes_read,
        files_opened=tensors.files_opened,
        checkpoint_names=tensors.names,
    )
    return Converted(loaded, tuple(quantiser.left))


def _move(
    made: TrimmedLayers, layers: TrimmedLayers, quantiser: Quantiser, device: torch.device
) -> None:
    for index in range(made.held.start, made.held.stop):
        layer = made.layer(index).to(device)
        quantiser.convert(layer)
        _own(layer)
        layers.place(index, layer)


def _stored(config: Any) -> torch.dtype | None:
    """The half-precision type in which the tensors are said to be stored, if it is one.

    Matrices are made int8 from it row by row: in fp32 a layer would be in memory three times.
    """
    said = getattr(config.get_text_config(decoder=True), "dtype", None) or config.dtype
    return said if said in (torch.bfloat16, torch.float16) else None


def groups(held: LayerRange, bytes_of: Mapping[int, int]) -> list[LayerRange]:
    """Cut a range into runs of at most `GROUP_BYTES` in fp32, of one layer if it is larger."""
    made: list[LayerRange] = []
    start, total = held.start, 0
    for index in range(held.start, held.stop):
        size = bytes_of.get(index, 0)
        if index > start and total + size > GROUP_BYTES:
            made.append(LayerRange(start, index))
            start, total = index, 0
        total += size
    return [*made, LayerRange(start, held.stop)]


def layer_bytes(layers: TrimmedLayers) -> dict[int, int]:
    """Bytes of each layer in fp32, by the shapes of the whole model."""
    sizes: dict[int, int] = {}
    index_of = re.compile(rf"(?:^|\.){re.escape(layers.name)}\.(\d+)\.")
    for name, shape in layers.whole_shapes.items():
        found = index_of.search(name)
        if found is not None:
            index = int(found[1])
            sizes[index] = sizes.get(index, 0) + torch.Size(shape).numel() * FP32_BYTES
    return sizes


def drop_unused_embedding(model: Any, held: LayerRange) -> None:
    """A tail whose head is tied kept the embedding only to tie it: the head has its own now."""
    if held.start > 0 and isinstance(model.get_input_embeddings(), nn.Embedding):
        model.set_input_embeddings(nn.Identity())


def _own(module: nn.Module) -> None:
    """Copy what may be a view of a mapped file: a norm's few bytes would keep all of it.

    A matrix that stayed as it was stored is fp32 from now on, like all that is not int8.
    """
    distinct = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for tensor in distinct.values():
        tensor.data = _copied(tensor.data)


def _copied(tensor: Tensor) -> Tensor:
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    made = torch.empty_like(tensor, dtype=torch.float32 if half else tensor.dtype)
    start = 0
    if tensor.dim() == 0:
        return made.copy_(tensor)
    for block in blocks(tensor):
        made[start : start + len(block)] = block
        start += len(block)
    return made
