"""A model class that holds the layers [start, stop) and nothing else, whatever its architecture.

The model's own class is built on the meta device and trimmed before any weight is read; its own
`forward` is called afterwards. Layers that are not here, or not wanted in a step, are replaced at
their absolute index, so masks, rotary tables and layer types stay the model's own business:

    index      0 .. c-2   c-1     c .. d-1       d      d+1 .. n-1
    stand-in   Skip       Entry   real layers    Exit   Skip

    Entry   drops what the model computed so far and continues with the received hidden states
    Exit    remembers the hidden states that leave

Invariants
    * a trimmed model has parameters of its own layers, and of embedding, norm and output head
      only where layer 0 or the last layer is its own (a tied tail keeps the embedding matrix);
    * the names of what remains are those of the whole model, so checkpoints need no mapping.

Source: transformers 5.24, `core_model_loading.convert_and_load_state_dict_in_model` reads a tensor
only if the model's `state_dict()` names it, and `from_pretrained` rebuilds non-persistent buffers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, overload

import torch
from torch import Tensor, nn

from meshnet.core.vocabulary import LayerRange, ModelError

FINAL_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm", "norm_f")
LAYER_VIEWS_MAX = 16
MATRIX_MIN = 1 << 20
"""Values of a matrix whose element type matters for the memory that loading takes."""


@dataclass(slots=True)
class Relay:
    """What enters and leaves the model in the middle of its forward; one step at a time."""

    entering: Tensor | None = None
    leaving: Tensor | None = None
    per_layer_inputs: Tensor | None = None
    """Gemma 3n/4: recorded where layer 0 runs, replayed elsewhere."""

    def clear(self) -> None:
        self.entering = self.leaving = self.per_layer_inputs = None


class Skip(nn.Module):
    """Stands at the index of a layer that does not run; has its plain attributes, no weights."""

    def __init__(self, layer: nn.Module, relay: Relay, outputs: int) -> None:
        super().__init__()
        # Decoder loops read `layer_type`, `attention_type`, `block_type` and the like.
        for name, value in vars(layer).items():
            plain = not name.startswith("_") and not isinstance(value, nn.Module | Tensor)
            if plain and name != "training":
                self.__dict__.setdefault(name, value)
        self.__dict__["relay"] = relay
        self.__dict__["rest"] = None if outputs == 0 else (None,) * (outputs - 1)

    def __call__(self, hidden_states: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the input as this decoder's loop unpacks a layer's output."""
        rest = self.__dict__["rest"]
        return hidden_states if rest is None else (hidden_states, *rest)


class Entry(Skip):
    def __call__(self, hidden_states: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(self.__dict__["relay"].entering)


class Exit(Skip):
    def __call__(self, hidden_states: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["relay"].leaving = hidden_states
        return super().__call__(hidden_states)


class LayerList(nn.ModuleList):
    """A layer list whose whole slice is itself: decoders take `layers[:n]` on every forward."""

    @overload  # type: ignore[override]
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice) -> nn.ModuleList: ...
    def __getitem__(self, index: int | slice) -> nn.Module | nn.ModuleList:
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self
        return super().__getitem__(index)


@dataclass(slots=True)
class TrimmedLayers:
    """Where a trimmed model keeps its layers, and how to show it only some of them."""

    held: LayerRange
    total: int
    decoder: nn.Module
    name: str
    """Attribute of `decoder` that is the layer list."""
    outputs: int
    """0: a layer returns a tensor; k: a tuple of k."""
    whole_shapes: dict[str, tuple[int, ...]]
    """Names and shapes of the whole model's tensors, taken before trimming."""
    relay: Relay = field(default_factory=Relay)
    _layers: list[nn.Module] = field(default_factory=list)
    _views: dict[LayerRange, LayerList] = field(default_factory=dict)
    _shown: LayerRange | None = None

    def show(self, layers: LayerRange) -> None:
        """Let the next forward run `layers`, which are held, and nothing else."""
        if layers == self._shown:
            return
        view = self._views.get(layers)
        if view is None:
            if len(self._views) >= LAYER_VIEWS_MAX:
                self._views.pop(next(iter(self._views)))
            view = self._views[layers] = self._view(layers)
        self.decoder._modules[self.name] = view
        self._shown = layers

    def _view(self, layers: LayerRange) -> LayerList:
        modules: list[nn.Module] = []
        for index, layer in enumerate(self._layers):
            if layers.start <= index < layers.stop:
                modules.append(layer)
            elif index == layers.start - 1:
                modules.append(Entry(layer, self.relay, self.outputs))
            elif index == layers.stop:
                modules.append(Exit(layer, self.relay, self.outputs))
            else:
                modules.append(Skip(layer, self.relay, self.outputs))
        return LayerList(modules)

    def drop_foreign(self, real: Sequence[int]) -> None:
        """Free every layer but those of these indices."""
        layers = getattr(self.decoder, self.name)
        self._layers = [
            layer if index in real else Skip(layer, self.relay, self.outputs)
            for index, layer in enumerate(layers)
        ]
        self.show(self.held)

    def place(self, index: int, layer: nn.Module) -> None:
        """Put a layer that was built elsewhere where this model was built without it."""
        self._layers[index] = layer
        self._views.clear()
        self._shown = None
        self.show(self.held)

    def layer(self, index: int) -> nn.Module:
        return self._layers[index]


class Part(Enum):
    """What of the held layers' model is built."""

    WHOLE = "whole"
    ENDS = "ends"
    """All but the layers: they are put into their places afterwards."""
    LAYERS = "layers"
    """Nothing but the layers; such a model cannot run."""


def shard_class(
    model_class: type[Any],
    held: LayerRange,
    part: Part = Part.WHOLE,
    matrices: torch.dtype | None = None,
) -> type[Any]:
    """Derive from a causal language model class one that builds only `held`, or `part` of it.

    Its instances carry a `TrimmedLayers` as `meshnet_layers`. `matrices`: the element type of
    large linear layers' weights, if it is to be another one than the rest's.
    """
    real = () if part is Part.ENDS else range(held.start, held.stop)

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, config, *args, **kwargs)
        self.meshnet_layers = _trim(self, held, real)
        if part is Part.LAYERS:
            _drop_all_but_layers(self, self.meshnet_layers)
        if matrices is not None:
            _set_matrices(self, matrices)

    def initialize_weights(self: Any) -> None:
        # Some `_init_weights` walk `decoder.layers[*].mamba`: show them real layers only.
        layers: TrimmedLayers = self.meshnet_layers
        shown = getattr(layers.decoder, layers.name)
        local = nn.ModuleList(shown[index] for index in real)
        layers.decoder._modules[layers.name] = local
        try:
            model_class.initialize_weights(self)
        finally:
            layers.decoder._modules[layers.name] = shown

    return type(
        model_class.__name__,
        (model_class,),
        {
            "__init__": __init__,
            "initialize_weights": initialize_weights,
            "__module__": model_class.__module__,
        },
    )


def _set_matrices(model: nn.Module, dtype: torch.dtype) -> None:
    """Let a loader, which keeps to the element types it finds, read large matrices as `dtype`."""
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.numel() >= MATRIX_MIN:
            weight = module.weight.to(dtype)
            module.weight = nn.Parameter(weight, requires_grad=False)


def find_layers(model: Any) -> tuple[nn.Module, str]:
    """The module that owns the decoder's layer list, and the attribute's name.

    `get_decoder()` is wrong for some classes (Llama 4), so the list is told by its length.
    """
    total = model.config.get_text_config(decoder=True).num_hidden_layers
    decoder = model.get_decoder()
    owners = [decoder] if decoder is not model else []
    for owner in [*owners, *(module for module in model.modules() if module is not model)]:
        for name, module in owner.named_children():
            if isinstance(module, nn.ModuleList) and len(module) == total:
                return owner, name
    raise ModelError(f"{type(model).__name__}: found no list of {total} decoder layers")


def _trim(model: Any, held: LayerRange, real: Sequence[int]) -> TrimmedLayers:
    decoder, name = find_layers(model)
    total = len(getattr(decoder, name))
    if held.stop > total:
        raise ModelError(f"layers {held}: the model has {total} layers")
    layers = TrimmedLayers(
        held=held,
        total=total,
        decoder=decoder,
        name=name,
        outputs=layer_outputs(decoder),
        whole_shapes={key: tuple(value.shape) for key, value in model.state_dict().items()},
    )
    layers.drop_foreign(real)
    _drop_ends(model, layers)
    _forget_dropped_ties(model)
    _relay_per_layer_inputs(layers)
    return layers


def layer_outputs(decoder: nn.Module) -> int:
    """How this decoder's loop unpacks what a layer returns: 0 a tensor, k a tuple of k.

    Read from its source: Falcon, Bloom and FalconH1 index a tuple, Bamba unpacks a pair.
    """
    source = inspect.getsource(inspect.unwrap(type(decoder).forward))
    call = r"\n\s+([\w, ]+) = (?:decoder_layer|layer|block|mixer_block)\("
    found = re.search(call, source)
    if found is None:
        return 0
    names = [name.strip() for name in found[1].split(",")]
    if len(names) > 1:
        return len(names)
    indexed = re.search(rf"= {re.escape(names[0])}\[0\]", source) is not None
    return 1 if indexed else 0


def _drop_ends(model: Any, layers: TrimmedLayers) -> None:
    """Remove embedding, final norm and output head where they belong to another shard."""
    decoder = layers.decoder
    is_head = layers.held.start == 0
    is_tail = layers.held.stop == layers.total
    tied = any("embed" in name or "wte" in name for name in model.all_tied_weights_keys.values())
    if not is_tail:
        model.set_output_embeddings(nn.Identity())
        for name in FINAL_NORMS:
            if hasattr(decoder, name):
                setattr(decoder, name, nn.Identity())
    if not is_head and not (is_tail and tied):
        model.set_input_embeddings(nn.Identity())
    if not is_head and hasattr(decoder, "embed_tokens_per_layer"):
        for name in (
            "embed_tokens_per_layer",
            "per_layer_model_projection",
            "per_layer_projection_norm",
        ):
            setattr(decoder, name, nn.Identity())


def _drop_all_but_layers(model: Any, layers: TrimmedLayers) -> None:
    """Remove whatever else would be read: another model has it."""
    _empty_beside(model, getattr(layers.decoder, layers.name))
    _forget_dropped_ties(model)


def _empty_beside(owner: nn.Module, kept: nn.Module) -> None:
    """Take the tensors of a checkpoint out of `owner`, but for what is below `kept`."""
    for name in list(owner._parameters):
        owner._parameters[name] = None
    for name in set(owner._buffers) - owner._non_persistent_buffers_set:
        owner._buffers[name] = None
    for name, child in list(owner.named_children()):
        if child is kept:
            continue
        if any(module is kept for module in child.modules()):
            _empty_beside(child, kept)
        else:
            setattr(owner, name, nn.Identity())


def _forget_dropped_ties(model: Any) -> None:
    """Keep only ties between parameters that still exist; `post_init` saw the whole model."""
    for module in model.modules():
        ties = getattr(module, "all_tied_weights_keys", None)
        if not ties:
            continue
        names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        module.all_tied_weights_keys = {
            key: value for key, value in ties.items() if key in names and value in names
        }


def _relay_per_layer_inputs(layers: TrimmedLayers) -> None:
    """Gemma 3n/4: record per-layer inputs where they are computed, replay them elsewhere."""
    decoder: Any = layers.decoder
    if not hasattr(decoder, "project_per_layer_inputs"):
        return
    relay = layers.relay
    look_up, project = decoder.get_per_layer_inputs, decoder.project_per_layer_inputs

    def get_per_layer_inputs(*args: Any, **kwargs: Any) -> Any:
        return None if relay.entering is not None else look_up(*args, **kwargs)

    def project_per_layer_inputs(*args: Any, **kwargs: Any) -> Any:
        if relay.entering is None:
            relay.per_layer_inputs = project(*args, **kwargs)
        return relay.per_layer_inputs

    decoder.get_per_layer_inputs = get_per_layer_inputs
    decoder.project_per_layer_inputs = project_per_layer_inputs
