"""Split generation equals transformers' own `generate`, for every kind of decoder layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.families import CUTS, DEFAULT_RUN, FAMILIES, LAYERS, SHARING, SHARING_CUTS, save_family
from tests.family_rows import DISTINCT_MIN, TOKENS, TOLERANCE, WAYS, prompt, run_int8_row, run_row
from tests.shard_chain import Answer, Chain, load_chain, unsplit

SUMMED_UP = {"qwen3_next", "qwen3_5", "qwen3_5_moe", "lfm2", "granitemoehybrid", "jamba", "bamba"}
SUMMED_UP |= {"falcon_h1", "nemotron_h", "minimax", "kimi_linear", "mamba2"}
INEXACT = SUMMED_UP | {"bloom", "falcon", "llama4"}
"""States summed up over chunks, and attention that is not ours."""
Family = Callable[[str], tuple[Path, Answer]]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """A family's model on disk and what the unsplit model says; made when first asked for."""
    made: dict[str, tuple[Path, Answer]] = {}

    def make(name: str) -> tuple[Path, Answer]:
        if name not in made:
            path = save_family(tmp_path_factory.mktemp(name), name)
            made[name] = (path, unsplit(path, prompt(), TOKENS))
        return made[name]

    return make


def _families() -> list[object]:
    return [
        pytest.param(name, marks=() if name in DEFAULT_RUN else pytest.mark.slow)
        for name in FAMILIES
        if name not in SHARING
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("name", _families())
def test_a_split_model_generates_what_the_whole_one_does(
    family: Family, name: str, cuts: tuple[int, ...], way: str
):
    """Pits A67, A72 and A73."""
    path, reference = family(name)

    row = run_row(path, cuts, reference, [way])

    assert row.refusal is None
    assert row.cells[way].right(len(set(reference.ids))), row.cells[way]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cuts", SHARING_CUTS, ids=str)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in SHARING])
def test_layers_that_share_their_kv_on_one_shard_generate_what_the_whole_model_does(
    family: Family, name: str, cuts: tuple[int, ...], way: str
):
    path, reference = family(name)

    row = run_row(path, cuts, reference, [way])

    assert row.refusal is None
    assert row.cells[way].right(len(set(reference.ids))), row.cells[way]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("name", SHARING)
def test_a_cut_between_layers_that_share_their_kv_is_refused_by_the_shard(
    family: Family, name: str, cuts: tuple[int, ...]
):
    """Pit A74.

    The K/V would have to travel at every step; the shard says where it may be cut instead.
    """
    path, reference = family(name)

    row = run_row(path, cuts, reference)

    assert row.refusal is not None
    assert "share their K/V" in row.refusal
    assert "cut at layer 2 or before" in row.refusal


@pytest.mark.parametrize("name", DEFAULT_RUN)
def test_a_cached_split_is_bitwise_equal_to_the_whole_model(family: Family, name: str):
    """Same operations on the same shapes: not close, equal."""
    path, reference = family(name)
    whole = Chain(load_chain(path, (), LAYERS)).generate(prompt(), TOKENS)

    split = Chain(load_chain(path, (2, 3), LAYERS)).generate(prompt(), TOKENS)

    assert torch.equal(split.logits, whole.logits)
    assert whole.difference(reference) < TOLERANCE


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("name", _families())
def test_what_calls_itself_exact_in_int8_is_bitwise_equal_in_every_way(
    family: Family, name: str, cuts: tuple[int, ...]
):
    """Cached, stateless, chunked and refilled, against one piece with the same weights."""
    path, _ = family(name)

    row = run_int8_row(path, cuts)

    assert row.right, row
    assert row.exact == (name not in INEXACT)


def test_the_default_references_say_enough_to_be_compared_by_ids(family: Family):
    distinct = {name: len(set(family(name)[1].ids)) for name in DEFAULT_RUN}

    telling = [name for name, count in distinct.items() if count >= DISTINCT_MIN]

    assert len(telling) >= len(DEFAULT_RUN) // 2, distinct
