"""Activation functions whose bits for a value do not depend on the values beside it.

Torch computes most of a tensor with vector instructions and what is left over with scalar ones,
and for `silu`, `sigmoid` and `gelu` the two round differently: where a row starts, how many rows
there are and how many threads share them then decides low bits. `exp`, `tanh` and arithmetic come
out the same either way, so the functions here are made of those.

Source: torch, `aten/src/ATen/native/cpu/Loops.h`, `vectorized_loop` ends in `basic_loop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.activations import ACT2CLS, ACT2FN


class SteadySiLU(nn.Module):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.div(x, x.neg().exp_().add_(1))


class SteadySigmoid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.neg().exp_().add_(1).reciprocal_()


class SteadyQuickGELU(nn.Module):
    """x * sigmoid(1.702 x)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.div(x, x.mul(-1.702).exp_().add_(1))


class SteadyGELU(nn.Module):
    """x/2 * (1 + erf(x / sqrt 2))."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul(math.sqrt(0.5)).erf_().add_(1).mul_(x).mul_(0.5)


class SteadyTanhGELU(nn.Module):
    """x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    def forward(self, x: Tensor) -> Tensor:
        inner = (x * x).mul_(0.044715).add_(1).mul_(x).mul_(math.sqrt(2 / math.pi))
        return inner.tanh_().add_(1).mul_(x).mul_(0.5)


_STEADY: dict[str, type[nn.Module]] = {
    "silu": SteadySiLU,
    "swish": SteadySiLU,
    "sigmoid": SteadySigmoid,
    "quick_gelu": SteadyQuickGELU,
    "gelu": SteadyGELU,
    "gelu_pytorch_tanh": SteadyTanhGELU,
    "gelu_new": SteadyTanhGELU,
    "gelu_fast": SteadyTanhGELU,
}


def steady_activation(module: nn.Module) -> nn.Module | None:
    """Return the steady form of an activation function, or None if `module` is not one known."""
    for name, steady in _STEADY.items():
        if type(module) is type(ACT2FN[name]):
            return steady()
    return None


def is_activation(module: nn.Module) -> bool:
    """Whether `module` is one of transformers' activation functions."""
    kinds = [made[0] if isinstance(made, tuple) else made for made in ACT2CLS.values()]
    return type(module) in kinds


_DEFAULTS = (False, "none")
"""Of `inplace` and `approximate`."""


class _SteadyFunctions(TorchFunctionMode):
    """Replaces torch's functions by the steady ones, in code that is not ours."""

    _steady: ClassVar[dict[Any, nn.Module]] = {
        torch.sigmoid: SteadySigmoid(),
        Tensor.sigmoid: SteadySigmoid(),
        functional.sigmoid: SteadySigmoid(),
        functional.silu: SteadySiLU(),
        functional.gelu: SteadyGELU(),
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        steady = self._steady.get(func)
        if steady is None:
            return func(*args, **(kwargs or {}))
        asked = {key: value for key, value in (kwargs or {}).items() if value not in _DEFAULTS}
        if asked == {"approximate": "tanh"}:
            return SteadyTanhGELU()(*args)
        return func(*args, **asked) if asked else steady(*args)


_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def steadily(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Return `function` with torch's activation functions in it replaced by the steady ones.

    Every operator called inside costs a microsecond more.
    """

    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        with _SteadyFunctions():
            return function(*args, **kwargs)

    return called
