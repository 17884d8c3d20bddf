"""Which machine this is, where others reach it, and what it has to offer."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import platform
import socket
import uuid
from pathlib import Path
from urllib.parse import urlsplit

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


def url_here(host: str, port: int, *, tls: bool = False) -> str:
    """Return the URL under which this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return (
        f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"
    )


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


def address_towards(url: str) -> str:
    """Return this machine's address on the way to `url`; nothing is sent. Raises OSError."""
    parts = urlsplit(url)
    found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
