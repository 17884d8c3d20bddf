"""Activation functions that yield the same bits wherever a value stands."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from meshnet.engine.linear_choice import LinearChoice
from meshnet.engine.pointwise import steadily, steady_activation
from meshnet.engine.quantising import Quantiser

NAMES = ("silu", "swish", "sigmoid", "quick_gelu", "gelu", "gelu_pytorch_tanh", "gelu_new")


def _values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4001, generator=generator)
    return values * torch.tensor([0.01, 1.0, 10.0])[torch.arange(4001) % 3]


def _steady(name: str) -> nn.Module:
    steady = steady_activation(ACT2FN[name])
    assert steady is not None
    return steady


@pytest.mark.parametrize("name", NAMES)
def test_a_values_bits_do_not_depend_on_where_it_stands(name: str):
    function, values = _steady(name), _values()
    whole = function(values)

    for width in (1, 7, 33):
        pieces = [function(piece) for piece in values.split(width)]
        assert torch.equal(torch.cat(pieces), whole)
    strided = values.view(-1, 1).expand(-1, 2)[:, 0]
    assert torch.equal(function(strided), whole)


def test_torchs_own_would_depend_on_it():
    """Why the steady forms exist; if this fails they may go."""
    values = _values()

    pieces = torch.cat([torch.nn.functional.silu(piece) for piece in values.split(1)])

    assert not torch.equal(pieces, torch.nn.functional.silu(values))


@pytest.mark.parametrize("name", NAMES)
def test_the_function_is_the_same(name: str):
    values = torch.cat([_values(), torch.tensor([0.0, 1e30, -1e30, 90.0, -90.0, 200.0, -200.0])])
    before = values.clone()

    result = _steady(name)(values)

    assert torch.allclose(result, ACT2FN[name](values), rtol=1e-5, atol=2e-6)
    assert torch.equal(values, before)


def test_what_is_not_known_stays():
    assert steady_activation(nn.ReLU()) is None
    assert steady_activation(nn.Linear(2, 2)) is None


def test_code_that_is_not_ours_is_made_steady():
    def code(values: torch.Tensor) -> torch.Tensor:
        gelu = torch.nn.functional.gelu
        waves = torch.nn.functional.silu(values) * values.sigmoid() + torch.sigmoid(values)
        return waves + gelu(values) + gelu(values, approximate="tanh")

    values = _values()
    steady = steadily(code)

    pieces = torch.cat([steady(piece) for piece in values.split(1)])

    assert torch.equal(pieces, steady(values))
    assert torch.allclose(steady(values), code(values), rtol=1e-5, atol=1e-6)
    assert not torch.equal(torch.cat([code(piece) for piece in values.split(1)]), code(values))


@pytest.mark.parametrize("name", ["mish", "sqrtsoftplus", "relu2", "laplace", "tanh"])
def test_an_activation_that_has_no_steady_form_is_tried_and_told(name: str):
    function = ACT2FN[name]
    choice = LinearChoice(2)

    Quantiser(choice).convert(nn.ModuleDict({"act_fn": function}))

    values = _values()
    alone = torch.cat([function(part) for part in values.split(1)])
    assert choice.steady == torch.equal(alone, function(values))
    assert choice.steady == (not choice.notes)
