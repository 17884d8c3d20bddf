"""What a model asks of the nodes that run it, from its configuration alone: no weight is read.

The model is built where tensors have shapes and no memory (meta_model.py):

    weights     of shards of the first, a middle and the last layer, trimmed and made int8 as
                loading does it; what such a shard holds beside its layer is what its end takes
    K/V         what each layer's cache holds after a few positions ran through it
    products    one multiply-add for each element of a matrix, of experts those that are chosen

Invariant: bytes are those that a loaded shard reports (`ShardDescription`), or a little more where
only a run tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from meshnet.core.planning import LayerShape, ModelShape
from meshnet.core.protocol.marks import MARKS_MAX
from meshnet.core.vocabulary import KVBytes, LayerRange, ModelError, ModelId, WeightFormat
from meshnet.engine.cache import allocated_bytes, copy_bytes, kv_bytes, sums_up
from meshnet.engine.checkpoint import quiet, read_config
from meshnet.engine.formats import dtype_of
from meshnet.engine.forward import LayerRunner
from meshnet.engine.identity import context_length, inseparable_layers
from meshnet.engine.kv import BufferedLayer
from meshnet.engine.linear_experts import (
    Int8DenseExperts,
    Int8Experts,
    is_dense_experts,
    is_experts,
)
from meshnet.engine.meta_model import (
    META,
    held_layers,
    leave_experts_out,
    make_int8,
    meta_model,
    parameters_of,
)
from meshnet.engine.quantising import weight_bytes
from meshnet.engine.runner import Passing, Segment

PREFILLS = (4, 8, 10)
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")
"""What configurations call the number of experts that a position goes through."""


def model_shape(path: Path, weights: WeightFormat, *, model: ModelId | None = None) -> ModelShape:
    """Tell what the model of a directory takes in a weight format.

    `model` is the id it is served under; the directory's name if left out. Raises ModelError.
    """
    return config_shape(read_config(path), weights, model or ModelId(path.name))


def config_shape(config: Any, weights: WeightFormat, model: ModelId) -> ModelShape:
    """Tell what a model of this configuration takes. Raises ModelError."""
    try:
        with quiet():
            return shape_of(config, weights, model)
    # What a model's own code makes of tensors without values is anybody's guess.
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        why = str(error).partition("\n")[0]
        raise ModelError(f"{model}: cannot tell its size without its weights: {why}") from error


@torch.inference_mode()
def shape_of(config: Any, weights: WeightFormat, model: ModelId) -> ModelShape:
    """Tell what a model of this configuration takes. Raises whatever the model's code does."""
    total = int(config.get_text_config(decoder=True).num_hidden_layers)
    whole = meta_model(config, LayerRange(0, total), weights)
    multiplies = [_multiplies(layer, config) for layer in held_layers(whole)]
    head = whole.get_output_embeddings().weight.numel()
    states = _States(whole, weights)
    runner = states.runner
    ends = _Ends.of(config, total, weights)
    width = math.prod(runner.leading_axes) * runner.hidden_size + runner.per_layer_width * total
    return ModelShape(
        model=model,
        weights=weights,
        layers=tuple(
            _layer(layer, states.of(at), multiplies[at], config)
            for at, layer in enumerate(held_layers(ends.whole))
        ),
        embedding_bytes=ends.first,
        head_bytes=ends.last,
        shared_bytes=ends.shared,
        common_bytes=ends.common,
        head_multiplies=head,
        activation_bytes=width * runner.dtype.itemsize,
        hidden_size=runner.hidden_size,
        context_length=context_length(config),
        inseparable=inseparable_layers(config),
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    """Bytes beside the layers: of the first layer's shard, of the last one's, of every one."""

    whole: Any
    first: int
    last: int
    common: int
    shared: int

    @classmethod
    def of(cls, config: Any, total: int, weights: WeightFormat) -> _Ends:
        whole = _converted(config, LayerRange(0, total), weights)
        layers = [weight_bytes(layer) for layer in held_layers(whole)]

        def beside(held: LayerRange) -> int:
            part = _converted(config, held, weights)
            return weight_bytes(part) - sum(layers[held.start : held.stop])

        everything = weight_bytes(whole) - sum(layers)
        if total == 1:  # one node has it all
            return cls(whole, everything, 0, 0, 0)
        common = beside(LayerRange(1, 2)) if total > 2 else 0
        first = beside(LayerRange(0, 1)) - common
        last = beside(LayerRange(total - 1, total)) - common
        return cls(whole, first, last, common, first + last + common - everything)


def _converted(config: Any, held: LayerRange, weights: WeightFormat) -> Any:
    model = meta_model(config, held, weights)
    make_int8(model, weights)
    return model


@dataclass(frozen=True, slots=True)
class _State:
    """What a layer keeps of a session, and what of it a position reads."""

    kv_bytes: KVBytes
    position_bytes: int
    window: int | None
    state_bytes: int


class _States:
    """Runs a few positions through each layer of a model without weights."""

    def __init__(self, model: Any, weights: WeightFormat) -> None:
        leave_experts_out(model)
        self.runner = LayerRunner(model, dtype_of(weights))
        self._context = context_length(model.config)
        self._runs = inseparable_layers(model.config)
        self._kinds = [_kind(layer) for layer in held_layers(model)]
        self._known: dict[Any, _State] = {}

    def of(self, layer: int) -> _State:
        """Layers of one kind keep the same, unless they use each other's."""
        cache = self.runner.new_cache(LayerRange(layer, layer + 1))
        held = _of_layer(cache, layer)
        key = (*(type(each) for each in held.layers), _window(held), self._kinds[layer])
        if self._run_of(layer):
            return self._state(layer)
        if key not in self._known:
            self._known[key] = self._state(layer)
        return self._known[key]

    def _run_of(self, layer: int) -> LayerRange | None:
        return next((run for run in self._runs if run.start <= layer < run.stop), None)

    def _state(self, layer: int) -> _State:
        prefilled = [(length, self._prefilled(layer, length)) for length in PREFILLS]
        cache = prefilled[-1][1]
        taken = kv_bytes(prefilled, self._context)
        copies = MARKS_MAX * copy_bytes(cache) if sums_up(cache) else 0
        buffers = [each.buffer for each in cache.layers if isinstance(each, BufferedLayer)]
        held_bytes = sum(buffer.nbytes for buffer in buffers)
        return _State(
            kv_bytes=replace(taken, fixed=taken.fixed + copies),
            position_bytes=sum(each.nbytes // each.capacity for each in buffers if each.capacity),
            window=_window(cache),
            state_bytes=allocated_bytes(cache) - held_bytes,
        )

    def _prefilled(self, layer: int, length: int) -> Any:
        """Return what the layer keeps of a prefill, and nothing of others."""
        layers = self._run_of(layer) or LayerRange(layer, layer + 1)
        cache = self.runner.new_cache(layers)
        entering = self._entering(layers.start, length)
        self.runner.passing(entering, layers, [Segment(0, length, cache)])
        return _of_layer(cache, layer)

    def _entering(self, layer: int, length: int) -> Tensor | Passing:
        runner = self.runner
        if layer == 0:
            return torch.zeros((1, length), dtype=torch.long, device=META)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=runner.dtype, device=META)

        width = runner.per_layer_width
        return Passing(
            zeros(*runner.leading_axes, 1, length, runner.hidden_size),
            zeros(1, length, runner.total - layer, width) if width else None,
        )


def _kind(layer: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(weight.shape)) for name, weight in layer.named_parameters())


def _of_layer(cache: Any, layer: int) -> Any:
    """Return a cache of one layer alone; some models keep states in a list of their own."""
    at = slice(layer, layer + 1)
    states = list(getattr(cache, "linear_cache", ()))
    return SimpleNamespace(layers=cache.layers[at], linear_cache=states[at])


def _window(cache: Any) -> int | None:
    windows = [each.buffer.window for each in cache.layers if isinstance(each, BufferedLayer)]
    return windows[0] if windows else None


def _multiplies(layer: nn.Module, config: Any) -> int:
    """Multiply-adds of one position with the matrices of a layer, not yet made int8."""
    total = 0.0
    for owner, weight in parameters_of(layer):
        if weight.dim() > 1:
            routed = is_experts(owner) or is_dense_experts(owner)
            total += weight.numel() * (_share(config, len(weight)) if routed else 1.0)
    return round(total)


def _share(config: Any, experts: int) -> float:
    """Of so many experts, those that a position goes through; all if nothing says."""
    text = config.get_text_config(decoder=True)
    chosen = next((n for name in CHOSEN if (n := getattr(text, name, None))), experts)
    return min(1.0, chosen / experts)


def _layer(layer: nn.Module, state: _State, multiplies: int, config: Any) -> LayerShape:
    routed = [module for module in layer.modules() if _is_routed(module)]
    experts = next((_count(module) for module in routed), 1)
    return LayerShape(
        weight_bytes=weight_bytes(layer),
        multiplies=multiplies,
        kv_bytes=state.kv_bytes,
        position_bytes=state.position_bytes,
        window=state.window,
        state_bytes=state.state_bytes,
        routed_bytes=sum(map(weight_bytes, routed)),
        routed_share=_share(config, experts) if routed else 1.0,
    )


def _is_routed(module: nn.Module) -> bool:
    return isinstance(module, Int8Experts | Int8DenseExperts) or is_experts(module)


def _count(experts: Any) -> int:
    int8 = isinstance(experts, Int8Experts | Int8DenseExperts)
    return len(experts.down if int8 else experts.down_proj)
