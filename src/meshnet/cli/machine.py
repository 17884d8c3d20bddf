"""Which machine this is and what it has to offer: cores and free memory."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import platform
import uuid
from pathlib import Path

import psutil

from meshnet.cli.settings import SettingsError


def cores() -> int:
    """Return the cores this process may use, which a container or taskset can make fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory_bytes() -> int:
    """Return the bytes that new allocations can have without swapping."""
    return int(psutil.virtual_memory().available)


def free_device_bytes(device: str) -> int:
    """Return the bytes that are free where weights and caches will live. Raises SettingsError."""
    if not device.startswith("cuda"):
        return free_memory_bytes()
    import torch

    if not torch.cuda.is_available():
        raise SettingsError(f"device {device}: torch finds no CUDA device here")
    return int(torch.cuda.mem_get_info(device)[0])


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_here(host: str, port: int) -> str:
    """Return the URL under which this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def machine_id() -> str:
    """Return what all processes of this running machine share, containers included, and no other.

    A digest, so that what it is made from is not told. Not /etc/machine-id first: containers have
    it from their image.
    """
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        try:
            told = Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if told:
            return _digest(told)
    return _digest(f"{platform.node()} {uuid.getnode()}")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"meshnet machine").hexdigest()
