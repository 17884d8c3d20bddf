"""Giving memory that was freed back to the system: the C library keeps what it may need again.

After loading that is a hundred megabytes of converted tensors, after a prefill tens of them.
"""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return freed memory to the system; takes milliseconds, and nothing where there is no way."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
