"""Experts as int8 layers, one by one, and routers on a fixed number of rows.

transformers keeps all experts of a layer in two or three tensors and multiplies them batched or
grouped, so a token's sum depends on who else chose its experts. Here each expert runs on the rows
that chose it, and what they yield is added in the order of expert ids: a row's result is its own.

Legend: E experts, T positions, D hidden, A experts a token chooses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import _default_apply_gate

from meshnet.engine.linear_choice import LinearChoice
from meshnet.engine.linear_products import tiled
from meshnet.engine.pointwise import steadily


class Int8Experts(nn.Module):
    """Stands for a module of transformers' experts interface: rows, chosen ids, their weights."""

    def __init__(self, experts: Any, choice: LinearChoice) -> None:
        super().__init__()
        first = "gate_up_proj" if experts.has_gate else "up_proj"
        self.up = _one_by_one(experts, first, choice)
        self.down = _one_by_one(experts, "down_proj", choice)
        # What is left of it has the activation and, in some models, a norm.
        self.rest = experts
        own_gate = type(experts)._apply_gate is not _default_apply_gate
        self._between: Callable[[Tensor], Tensor] = (
            experts.act_fn
            if not experts.has_gate
            else steadily(experts._apply_gate)
            if own_gate
            else experts._apply_gate
        )

    def forward(self, hidden_TD: Tensor, chosen_TA: Tensor, weights_TA: Tensor) -> Tensor:
        summed_TD = torch.zeros_like(hidden_TD)
        for expert in torch.unique(chosen_TA).tolist():
            if expert >= len(self.up):
                continue
            rows, places = torch.where(chosen_TA == expert)
            out = self.down[expert](self._between(self.up[expert](hidden_TD[rows])))
            if self.rest.has_post_expert_norm:
                out = self.rest.post_expert_norm(out)
            summed_TD.index_add_(0, rows, out.mul_(weights_TA[rows, places, None]))
        return summed_TD


class Int8DenseExperts(nn.Module):
    """Stands for experts that are all given every row, one copy each, zero where not chosen."""

    def __init__(self, experts: Any, choice: LinearChoice) -> None:
        super().__init__()
        experts.is_transposed, experts.has_bias = True, False
        self.up = _one_by_one(experts, "gate_up_proj", choice)
        self.down = _one_by_one(experts, "down_proj", choice)
        self.rest = experts

    def forward(self, hidden_ETD: Tensor) -> Tensor:
        copies_ETD = hidden_ETD.view(len(self.up), -1, hidden_ETD.shape[-1])
        out_ETD = torch.zeros_like(copies_ETD)
        for expert, copy_TD in enumerate(copies_ETD):
            rows = copy_TD.any(-1).nonzero()[:, 0]
            if len(rows):
                gate, up = self.up[expert](copy_TD[rows]).chunk(2, dim=-1)
                out_ETD[expert, rows] = self.down[expert](self.rest.act_fn(gate).mul_(up))
        return out_ETD.view_as(hidden_ETD)


def is_experts(module: nn.Module) -> bool:
    """Whether `module` follows transformers' experts interface."""
    return all(hasattr(module, name) for name in ("has_gate", "is_transposed", "down_proj"))


def is_dense_experts(module: nn.Module) -> bool:
    """Whether `module` is given every row for every expert (Llama 4)."""
    first, second = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not isinstance(first, nn.Parameter) or not isinstance(second, nn.Parameter):
        return False
    takes = list(inspect.signature(module.forward).parameters)
    transposed = first.dim() == 3 and first.shape[1] == second.shape[2]
    return transposed and not is_experts(module) and takes == ["hidden_states"]


def tile_router(router: Any) -> None:
    """Let a router's own forward see a fixed number of rows, whoever calls."""
    whole = router.forward

    def forward(hidden_states: Tensor, *rest: Any, **named: Any) -> Any:
        rows_TD = hidden_states.reshape(-1, hidden_states.shape[-1])
        return tiled(lambda rows: whole(rows, *rest, **named), rows_TD)

    router.forward = forward


def _one_by_one(experts: Any, name: str, choice: LinearChoice) -> nn.ModuleList:
    """Take a tensor of all experts out of the module and make a layer of each expert's part."""
    weights = getattr(experts, name)
    biases = getattr(experts, f"{name}_bias") if experts.has_bias else [None] * len(weights)
    layers = [
        choice.linear(weight.t() if experts.is_transposed else weight, bias)
        for weight, bias in zip(weights, biases, strict=True)
    ]
    delattr(experts, name)
    if experts.has_bias:
        delattr(experts, f"{name}_bias")
    return nn.ModuleList(layers)
