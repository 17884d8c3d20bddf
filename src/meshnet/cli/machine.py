"""What this machine has to offer: cores and free memory."""

from __future__ import annotations

import os

import psutil


def cores() -> int:
    """Return the cores this process may use, which a container or taskset can make fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory_bytes() -> int:
    """Return the bytes that new allocations can have without swapping."""
    return int(psutil.virtual_memory().available)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    return host == "localhost" or host == "::1" or host.startswith("127.")
