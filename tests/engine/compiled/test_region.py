"""Weights lie in one piece, whole, and cannot run over its end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshnet.engine.compiled.region import (
    ALIGNMENT,
    HUGE_PAGE,
    LARGE_BYTES,
    Region,
    joined,
    region_for,
)


def _tensors() -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    shapes = ((3, 5), (1,), (700, 1100), (0,), (64, 3, 7))
    return [torch.randint(0, 255, shape, dtype=torch.uint8, generator=draw) for shape in shapes]


def test_what_is_put_is_what_is_there_side_by_side_on_whole_lines():
    tensors = [*_tensors(), torch.randn(17, 3)]
    region = region_for(tensors)

    put = [region.put(tensor) for tensor in tensors]
    del region

    assert all(torch.equal(*pair) for pair in zip(put, tensors, strict=True))
    assert all(each.data_ptr() % ALIGNMENT == 0 for each in put if each.numel())
    assert put[0].data_ptr() % HUGE_PAGE == 0
    span = put[-1].data_ptr() - put[0].data_ptr()
    assert span < sum(each.numel() for each in tensors) + ALIGNMENT * len(tensors)


def test_more_than_fits_is_refused_and_changes_nothing():
    region = Region(1024)
    first = region.put(torch.full((900,), 7, dtype=torch.uint8))

    with pytest.raises(ValueError, match="101 bytes for a region with 64 left"):
        region.put(torch.zeros(101, dtype=torch.uint8))

    assert bool((first == 7).all())


@pytest.mark.parametrize("columns", [LARGE_BYTES // 1024 - 1, LARGE_BYTES // 1024])
def test_large_or_not_tensors_that_were_turned_are_joined_in_order(columns: int):
    turned = torch.arange(1024 * columns).to(torch.uint8).view(columns, 1024).T
    parts = [turned[:700], turned[700:]]

    made = joined(parts)

    assert torch.equal(made, turned)
    assert made.is_contiguous()
    assert (made.data_ptr() % HUGE_PAGE == 0) is (turned.numel() >= LARGE_BYTES)
