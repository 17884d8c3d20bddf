"""Which names mean this machine."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The host of a Host header, without port and brackets."""
    host = header.strip()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
