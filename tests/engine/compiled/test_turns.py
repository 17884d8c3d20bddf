"""Turns of positions are the same whoever asks, and only those of sessions are kept."""

from __future__ import annotations

import ctypes

import pytest
import torch
from tests.families import family_config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from meshnet.engine.compiled.turns import BLOCK, Turns
from meshnet.engine.lean import Rotary

SIZE = 16
LIKE_1D = torch.zeros(1, 64)


@pytest.fixture
def rotary() -> LlamaRotaryEmbedding:
    return LlamaRotaryEmbedding(family_config("llama", max_position_embeddings=10**6))


def expected(rotary: LlamaRotaryEmbedding, start: int, stop: int) -> list[list[float]]:
    turn = Rotary.of(*rotary(LIKE_1D[None], torch.arange(start, stop)[None]))
    return [turn.cosine.flatten().tolist(), turn.sine.flatten().tolist()]


def read(addresses: tuple[int, int], start: int, stop: int) -> list[list[float]]:
    values = ctypes.c_float * ((stop - start) * SIZE)
    return [list(values.from_address(at + start * SIZE * 4)) for at in addresses]


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 1), (0, BLOCK), (BLOCK - 1, BLOCK + 1), (999_000, 999_900), (4 * BLOCK, 4 * BLOCK + 1)],
)
def test_turns_are_those_of_the_model(rotary: LlamaRotaryEmbedding, start: int, stop: int):
    turns = Turns(rotary, LIKE_1D)
    turns.reaching(0, 3)

    addresses = turns.reaching(start, stop)

    assert read(addresses, start, stop) == expected(rotary, start, stop)


def test_far_positions_that_no_session_has_come_to_are_not_kept(rotary: LlamaRotaryEmbedding):
    turns = Turns(rotary, LIKE_1D)
    turns.reaching(999_000, 999_010)

    near = turns.reaching(0, BLOCK + 1)

    kept = sum(held.nbytes for held in vars(turns).values() if isinstance(held, torch.Tensor))
    assert kept < 10 * BLOCK * SIZE * 4
    assert turns._far is None
    assert read(near, 0, BLOCK + 1) == expected(rotary, 0, BLOCK + 1)
