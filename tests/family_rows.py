"""One row of the family matrix: a family, a cut, four ways of generating, against `generate`.

    cached     prefill, then one position a step
    stateless  everything again at every step
    chunked    the prompt in chunks of five
    miss       every state lost in the middle, one refill

The shards drive themselves to a refusal where a cut is impossible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.families import LAYERS
from tests.shard_chain import Answer, Chain, load_chain

from meshnet.core.vocabulary import ModelError, WeightFormat

TOKENS = 24
WAYS: Mapping[str, dict[str, Any]] = {
    "cached": {},
    "stateless": {"cached": False},
    "chunked": {"chunk": 5},
    "miss": {"miss_at": TOKENS // 2},
}
DISTINCT_MIN = 8
"""A reference with fewer distinct tokens proves nothing by its ids."""
TOLERANCE = 5e-4
"""Of fp32 logits between two orders of the same sums; a lost context costs 0.1 or more."""


def prompt() -> list[int]:
    generator = torch.Generator().manual_seed(5)
    ids: list[int] = torch.randint(3, 250, (13,), generator=generator).tolist()
    return ids


@dataclass(frozen=True, slots=True)
class Cell:
    """How one way of generating compares with the unsplit model."""

    same_ids: bool
    difference: float

    def right(self, distinct: int) -> bool:
        return self.difference <= TOLERANCE and (self.same_ids or distinct < DISTINCT_MIN)


@dataclass(frozen=True, slots=True)
class Row:
    cells: Mapping[str, Cell]
    singly: bool
    """A shard found out that it must take positions one at a time."""
    refusal: str | None
    """Why a shard refused to load, in its own words."""


def run_row(
    path: Path, cuts: Sequence[int], reference: Answer, ways: Sequence[str] = tuple(WAYS)
) -> Row:
    """Cut the model in `path` and generate in each of `ways`."""
    try:
        chain = Chain(load_chain(path, cuts, LAYERS))
    except ModelError as error:
        return Row({}, False, str(error))
    cells = {}
    for way in ways:
        answer = chain.generate(prompt(), TOKENS, **WAYS[way])
        cells[way] = Cell(answer.ids == reference.ids, answer.difference(reference))
    singly = any(not shard.description.capabilities.multi_token for shard in chain.shards)
    return Row(cells, singly, None)


@dataclass(frozen=True, slots=True)
class Int8Row:
    """A cut in int8 against the same engine in one piece, in the way that differs most."""

    exact: bool
    """Every shard says that no cut changes a bit."""
    difference: float

    @property
    def right(self) -> bool:
        return not self.exact or self.difference == 0.0


def run_int8_row(path: Path, cuts: Sequence[int]) -> Int8Row:
    """Cut the model in `path` with int8 weights, and generate in every way."""
    whole = Chain(load_chain(path, (), LAYERS, WeightFormat.INT8)).generate(prompt(), TOKENS)
    chain = Chain(load_chain(path, cuts, LAYERS, WeightFormat.INT8))
    answers = [chain.generate(prompt(), TOKENS, **way) for way in WAYS.values()]
    return Int8Row(
        all(shard.description.capabilities.exact for shard in chain.shards),
        max(answer.difference(whole) for answer in answers),
    )
