"""Memory for weights, in huge pages where the system has them: large ones alone, small together.

A step reads every weight once. In pages of 4 KiB the processor looks up where a page lies for every
32 rows of inputs of a panel, which on a virtual machine takes two walks, and stops reading ahead at
its end; in pages of 2 MiB it hardly ever does.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes: a processor's cache line."""
HUGE_PAGE = 1 << 21
LARGE_BYTES = 2 * HUGE_PAGE


class Region:
    """Tensors are put into it one behind the other; it lives as long as one of them."""

    def __init__(self, size: int) -> None:
        """`size`: bytes of all tensors, each but the last rounded up by `padded`."""
        # One page more than needed, so that the first one can begin where a huge page does.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, size + HUGE_PAGE, flags=flags)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        start = -whole.data_ptr() % HUGE_PAGE
        self._bytes = whole[start : start + size]
        self._at = 0
        # What does not fill a huge page would take one all the same.
        filled = size // HUGE_PAGE * HUGE_PAGE
        if hasattr(mmap, "MADV_HUGEPAGE") and filled:
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE, start, filled)

    def put(self, tensor: Tensor) -> Tensor:
        """Return a contiguous copy within the region. Raises ValueError: there is no room."""
        return self.take(tensor.shape, tensor.dtype).copy_(tensor)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return memory for a tensor. Raises ValueError: there is no room."""
        size = math.prod(shape) * dtype.itemsize
        if self._at + size > len(self._bytes):
            raise ValueError(f"{size} bytes for a region with {len(self._bytes) - self._at} left")
        place = self._bytes[self._at : self._at + size]
        self._at += padded(size)
        return place.view(dtype).view(*shape)


def region_for(tensors: Iterable[Tensor]) -> Region:
    return Region(sum(padded(tensor.nbytes) for tensor in tensors))


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return a copy of all, one behind the other, in a region of its own if that is large."""
    shape, dtype = (sum(map(len, tensors)), *tensors[0].shape[1:]), tensors[0].dtype
    return torch.cat([*tensors], out=_empty(shape, dtype))


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE_BYTES:
        return torch.empty(shape, dtype=dtype)
    return Region(size).take(shape, dtype)


def is_large(tensor: Tensor) -> bool:
    """Whether so many bytes have a region of their own."""
    return tensor.nbytes >= LARGE_BYTES


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
