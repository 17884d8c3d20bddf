"""Memory for all weights of a shard in one piece, in huge pages where the system has them.

A step reads every weight once. In pages of 4 KiB the processor looks up where a page lies for every
32 rows of inputs of a panel, which on a virtual machine takes two walks, and stops reading ahead at
its end; in pages of 2 MiB it hardly ever does.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes: a processor's cache line."""
HUGE_PAGE = 1 << 21


class Region:
    """Tensors are put into it one behind the other; it lives as long as one of them."""

    def __init__(self, size: int) -> None:
        """`size`: bytes of all tensors, each rounded up by `padded`."""
        whole = -(-size // HUGE_PAGE) * HUGE_PAGE
        # One page more than needed, so that the first one can begin where a huge page does.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, whole + HUGE_PAGE, flags=flags)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        start = -self._bytes.data_ptr() % HUGE_PAGE
        self._bytes = self._bytes[start : start + whole]
        self._at = 0
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._memory.madvise(mmap.MADV_HUGEPAGE)

    def put(self, tensor: Tensor) -> Tensor:
        """Return a copy within the region. Raises ValueError: there is no room for it."""
        size = tensor.numel() * tensor.element_size()
        if self._at + size > len(self._bytes):
            raise ValueError(f"{size} bytes for a region with {len(self._bytes) - self._at} left")
        place = self._bytes[self._at : self._at + size]
        self._at += padded(size)
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def region_for(tensors: Iterable[Tensor]) -> Region:
    return Region(sum(padded(tensor.numel() * tensor.element_size()) for tensor in tensors))


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
