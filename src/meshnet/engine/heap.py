"""Giving memory back to the system.

freed        the C library keeps it for later: after loading a hundred megabytes of converted
             tensors, after a prefill tens of them
of a file    pages of a mapped checkpoint that were read once stay resident until it is closed

And telling that there was none.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

BLOCK_BYTES = 4 << 20
_MAPPINGS = Path("/proc/self/maps")


def give_back() -> None:
    """Return freed memory to the system; takes milliseconds, and nothing where there is no way."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was lacking, which says nothing of what was tried."""
    # The CPU allocator raises a plain RuntimeError.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def raise_if_out_of_memory(error: Exception) -> None:
    """Raise the error of a trial that says nothing of what was tried."""
    if is_out_of_memory(error):
        raise error


def blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield runs of rows, and let go of each one's pages of a mapped file after its turn.

    They are read again if they are needed again. Whoever iterates only reads.
    """
    if tensor.dim() == 0 or tensor.numel() * tensor.element_size() <= BLOCK_BYTES:
        yield tensor
        return
    step = max(1, BLOCK_BYTES // max(1, tensor[0].numel() * tensor.element_size()))
    mapped = tensor.is_contiguous() and tensor.is_cpu and _is_of_file(tensor)
    for start in range(0, tensor.shape[0], step):
        block = tensor[start : start + step]
        yield block
        if mapped:
            _let_go(block)


def _is_of_file(tensor: Tensor) -> bool:
    """Whether all of it lies in one mapping of a file: what is no file's would be lost."""
    start, stop = _span(tensor)
    try:
        lines = _MAPPINGS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    for line in lines:
        span, _, _, _, inode, *_ = line.split()
        first, last = (int(at, 16) for at in span.split("-"))
        if first <= start < last:
            return stop <= last and inode != "0"
    return False


def _let_go(block: Tensor) -> None:
    """Drop the whole pages of a block of a mapped file from memory."""
    start, stop = _span(block)
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None and first < last:
        advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _span(tensor: Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()
