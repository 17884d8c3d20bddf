"""Experts and routers in int8 shards: a row's result is its own, and near fp32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.families import family_config, redraw
from transformers import AutoModelForCausalLM

from meshnet.engine.linear import Int8Linear, TiledLinear
from meshnet.engine.linear_choice import LinearChoice
from meshnet.engine.linear_experts import Int8DenseExperts, Int8Experts
from meshnet.engine.quantising import Quantiser, weight_bytes

FAMILIES = ("qwen3_moe", "gpt_oss", "deepseek_v3", "nemotron_h", "llama4", "qwen2_moe")
HIDDEN = 64


def whole(name: str, **overrides: Any) -> Any:
    torch.manual_seed(0)
    config = family_config(name, **overrides)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    redraw(model)
    return model.eval().requires_grad_(False)


def converted(model: Any) -> Any:
    made = copy.deepcopy(model)
    Quantiser(LinearChoice(2)).convert(made)
    return made


def blocks(model: Any) -> list[torch.nn.Module]:
    """The mixture-of-experts blocks, routers included."""
    owners = [module for module in model.modules() if hasattr(module, "experts")]
    assert owners
    return owners


def rows(count: int) -> torch.Tensor:
    return torch.randn((1, count, HIDDEN), generator=torch.Generator().manual_seed(1))


def result(block: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    out = block(hidden)
    out = out[0] if isinstance(out, tuple) else out
    return out.reshape(-1, HIDDEN)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rows_experts_do_not_depend_on_who_else_asks(name: str):
    """130 rows: more than two tiles of a router, each expert with many rows."""
    for block in blocks(converted(whole(name))):
        hidden = rows(130)
        together = result(block, hidden)

        order = torch.randperm(130, generator=torch.Generator().manual_seed(2))
        assert torch.equal(result(block, hidden[:, order]), together[order])
        for at in (0, 63, 64, 129):
            assert torch.equal(result(block, hidden[:, at : at + 1])[0], together[at])
        assert torch.equal(result(block, hidden[:, 5:12]), together[5:12])


@pytest.mark.parametrize("name", FAMILIES)
def test_experts_are_near_those_in_fp32(name: str):
    model = whole(name)
    pairs = zip(blocks(model), blocks(converted(model)), strict=True)

    for plain, block in pairs:
        want, got = result(plain, rows(40)), result(block, rows(40))
        error = (got - want).norm(dim=-1) / want.norm(dim=-1)
        # A row near a tie may go to another expert.
        assert float(error.median()) < 0.03


@pytest.mark.parametrize("name", FAMILIES)
def test_every_expert_is_int8_and_no_router_is(name: str):
    model = whole(name)
    before = weight_bytes(model)
    made = converted(model)

    kinds = {type(module) for module in made.modules()}
    assert kinds & {Int8Experts, Int8DenseExperts}
    assert weight_bytes(made) < before / 2
    for path, module in made.named_modules():
        if path.endswith((".gate", ".router", ".shared_expert_gate")):
            assert not any(isinstance(part, Int8Linear) for part in module.modules())
    assert not [
        name for name, weight in made.named_parameters() if weight.dim() == 3 and "conv" not in name
    ]


def test_an_id_beyond_the_experts_adds_nothing():
    """transformers marks places that are masked so."""
    experts = next(m for m in converted(whole("qwen3_moe")).modules() if isinstance(m, Int8Experts))
    hidden = rows(2)[0]
    beyond = torch.tensor([[len(experts.up), 1], [0, 1]])
    weights = torch.full((2, 2), 0.5)

    alone = experts(hidden[:1], torch.tensor([[1]]), weights[:1, :1])

    assert torch.equal(experts(hidden, beyond, weights)[:1], alone)


def test_small_gates_stay_in_floating_point_on_tiles():
    made = converted(whole("qwen2_moe"))

    gates = [m for path, m in made.named_modules() if path.endswith("shared_expert_gate")]

    assert gates
    assert all(isinstance(gate, TiledLinear) for gate in gates)


@pytest.mark.parametrize("hidden_size", [HIDDEN, 130])
def test_a_router_that_its_tile_does_not_steady_is_told(hidden_size: int):
    """Some kernels take pairs of rows where a row is no whole number of vectors."""
    choice = LinearChoice(2)
    model = whole("gpt_oss", hidden_size=hidden_size)
    Quantiser(choice).convert(model)
    router = next(m for m in model.modules() if type(m).__name__ == "GptOssTopKRouter")
    hidden = torch.randn(64, hidden_size, generator=torch.Generator().manual_seed(1))

    together = router(hidden)[0]
    alone = torch.cat([router(row)[0] for row in hidden.split(1)])

    assert choice.steady == torch.equal(alone, together)
    assert choice.steady == (not choice.notes)
