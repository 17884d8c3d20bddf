"""Turning the linear layers of a loaded model into int8, in place.

    linear, GPT-2's Conv1D   Int8Linear
    experts                  Int8Linear each, added in the order of their ids
    router                   as it is, on a fixed number of rows
    small, or its weights    TiledLinear: floating point on a fixed number of rows
      read by other code
    activation function      the steady form (pointwise.py), also within other code
    anything else            as it is

Invariants
    * what stays in floating point though it holds a matrix is named;
    * a module that is used in two places is replaced by one module.
"""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from meshnet.engine.heap import give_back, raise_if_out_of_memory
from meshnet.engine.linear import Int8Linear
from meshnet.engine.linear_choice import LinearChoice, trial_rows
from meshnet.engine.linear_experts import (
    Int8DenseExperts,
    Int8Experts,
    is_dense_experts,
    is_experts,
    tile_router,
)
from meshnet.engine.pointwise import is_activation, steadily, steady_activation
from meshnet.engine.trimming import MATRIX_MIN

EXTENT_MIN = 16
"""A layer with fewer inputs or outputs stays in floating point: int8 gains nothing there."""
ROUTER_NAMES = ("gate", "router")
_CALLS_ACTIVATIONS = re.compile(r"\b(F|functional|torch)\.(sigmoid|silu|gelu)\(|\.sigmoid\(\)")


class Quantiser:
    """Replaces linear layers by those of `choice`; remembers what it left as it was."""

    def __init__(self, choice: LinearChoice) -> None:
        self.left: list[str] = []
        """Kinds and names of what holds a matrix and stayed in floating point."""
        self._choice = choice
        self._done: dict[int, tuple[nn.Module, nn.Module]] = {}
        self._sources: dict[type, str] = {}

    def convert(self, root: nn.Module) -> None:
        """Replace what can be replaced anywhere below `root`."""
        for name, child in list(root._modules.items()):
            if child is None or isinstance(child, nn.Embedding):
                continue
            made = self._made(root, name, child)
            if made is not child:
                setattr(root, name, made)

    def _made(self, owner: nn.Module, name: str, child: nn.Module) -> nn.Module:
        """Return what takes the place of `child`: perhaps itself, converted inside."""
        if id(child) in self._done:
            return self._done[id(child)][1]
        made = self._replaced(owner, name, child)
        # The original is kept from being freed, so that its id is not given to another.
        self._done[id(child)] = (_emptied(child) if made is not child else child, made)
        if isinstance(made, Int8Linear) and made.weight_bytes >= MATRIX_MIN:
            give_back()  # what it was made through, before the next one is
        return made

    def _replaced(self, owner: nn.Module, name: str, child: nn.Module) -> nn.Module:
        if isinstance(child, nn.Linear | Conv1D) and not _is_router(name, child):
            return self._linear(owner, name, child)
        if _is_router(name, child):
            _widen(child)
            if _is_plain(child):
                return self._choice.tiled(child)  # type: ignore[arg-type]
            for weight in child.parameters():
                if weight.dim() == 2:
                    self._choice.try_tile(weight.data)
            tile_router(child)
            return child
        if is_experts(child) or is_dense_experts(child):
            self.convert(child)
            kind = Int8Experts if is_experts(child) else Int8DenseExperts
            return kind(child, self._choice)
        steady = steady_activation(child)
        if steady is not None:
            return steady
        if is_activation(child):
            self._choice.try_activation(type(child).__name__, child)
        self._note_matrices(name, child)
        self.convert(child)
        if _CALLS_ACTIVATIONS.search(self._source(type(child))):
            child.forward = steadily(child.forward)
        return child

    def _linear(self, owner: nn.Module, name: str, child: nn.Linear | Conv1D) -> nn.Module:
        transposed = not isinstance(child, nn.Linear)
        if not (transposed or _is_plain(child)):
            _widen(child)
            self._leave(type(child).__name__)
            return child
        weight = child.weight.data.t() if transposed else child.weight.data
        small = min(weight.shape) < EXTENT_MIN
        if not small and not self._reads_weight(owner, name):
            return self._choice.linear(weight, child.bias)
        if not small:
            self._leave(name)
        _widen(child)
        return self._choice.tiled(child) if isinstance(child, nn.Linear) else child

    def _reads_weight(self, owner: nn.Module, name: str) -> bool:
        """Whether the code of `owner` computes with `self.<name>.weight` itself."""
        # Mamba hands `outproj_weight` to a fused kernel, in training only.
        used = rf"(?<!outproj_weight=)self\.{re.escape(name)}\.weight\b(?!\.(dtype|device|shape)\b)"
        return re.search(used, self._source(type(owner))) is not None

    def _source(self, kind: type) -> str:
        if kind not in self._sources:
            self._sources[kind] = _source_of(kind)
        return self._sources[kind]

    def _note_matrices(self, name: str, child: nn.Module) -> None:
        for own, weight in child.named_parameters(recurse=False):
            # A recurrence's decays have an axis of its 16 states: no matrix to multiply by.
            if weight.dim() > 1 and min(weight.shape[-2:]) > EXTENT_MIN:
                self._leave(f"{type(child).__name__}.{own}" if own != "weight" else name)

    def _leave(self, what: str) -> None:
        if what not in self.left:
            self.left.append(what)


def _widen(module: nn.Module) -> None:
    """What stays in floating point is fp32, also if it was read as it is stored."""
    for weight in module.parameters():
        weight.data = weight.data.float()


def _is_plain(child: nn.Module) -> bool:
    """Whether `child` is a linear layer and nothing more; a subclass is tried."""
    if not isinstance(child, nn.Linear) or type(child).forward is nn.Linear.forward:
        return isinstance(child, nn.Linear)
    if child.weight.is_meta:
        child = _filled(child)
    x_MK = trial_rows(child.in_features, child.weight.device)[-2:].to(child.weight.dtype)
    plain = nn.Linear.forward(child, x_MK)
    try:
        own = child(x_MK)
    except (RuntimeError, TypeError, ValueError) as error:
        raise_if_out_of_memory(error)
        return False
    return isinstance(own, torch.Tensor) and own.shape == plain.shape and torch.allclose(own, plain)


def _filled(child: nn.Linear) -> nn.Linear:
    """Return the like of a layer without weights, with small random ones."""
    made = copy.copy(child)
    made._parameters = {
        name: None if weight is None else nn.Parameter(torch.randn(weight.shape) / 64)
        for name, weight in child._parameters.items()
    }
    return made


def _is_router(name: str, child: nn.Module) -> bool:
    named = "Router" in type(child).__name__ or name in ROUTER_NAMES
    return named and any(True for _ in child.parameters())


def _source_of(kind: type) -> str:
    """The code of a module class and of its bases, without what only runs on other devices."""
    functions = [
        value
        for base in kind.__mro__
        if base.__module__.startswith("transformers.models")
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("cuda_")
    ]
    return "\n".join(inspect.getsource(inspect.unwrap(function)) for function in functions)


def _emptied(module: nn.Module) -> nn.Module:
    """Let go of the weights of a module that was replaced, unless its successor shares it."""
    if isinstance(module, nn.Linear | Conv1D):
        module._parameters.clear()
    return module


def weight_bytes(model: Any) -> int:
    """Bytes of the distinct weights of a model; tied ones count once."""
    packed = [module for module in model.modules() if isinstance(module, Int8Linear)]
    inside = {id(weight) for module in packed for weight in module.parameters()}
    distinct: dict[int, torch.Tensor] = {
        id(weight): weight
        for weight in model.state_dict(keep_vars=True).values()
        if id(weight) not in inside
    }
    plain = sum(weight.numel() * weight.element_size() for weight in distinct.values())
    return plain + sum(module.weight_bytes for module in packed)
