"""What the doctor finds, one value each, and what is found of credentials and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from meshnet.cli.machine import is_loopback
from meshnet.cli.settings import Settings


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do, and is empty only where nothing is to be done."""

    check: str
    level: Level
    text: str
    advice: str = ""

    def __post_init__(self) -> None:
        assert (self.level is Level.OK) == (not self.advice), "what is wrong comes with advice"

    def values(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, advice: str) -> Finding:
    return Finding(check, Level.WARN, text, advice)


def bad(check: str, text: str, advice: str) -> Finding:
    return Finding(check, Level.BAD, text, advice)


def credentials(settings: Settings, urls: Sequence[str]) -> list[Finding]:
    """Judge what this machine's settings would let in, and what others are sent."""
    found = []
    if not is_loopback(settings.host):
        for setting, name, whom in (
            (settings.mesh_token or settings.tls_dir, "MESHNET_MESH_TOKEN", "a node"),
            (settings.api_keys or settings.api_keys_file, "MESHNET_API_KEYS", "a gateway"),
        ):
            if not setting:
                text = f"host {settings.host} is reached from other machines, and {name} is not set"
                found.append(bad("credentials", text, f"set {name}: without it {whom} won't start"))
    if (
        settings.mesh_token is not None
        and len(settings.mesh_token.get_secret_value()) < TOKEN_LEAST
    ):
        text = f"MESHNET_MESH_TOKEN has fewer than {TOKEN_LEAST} characters"
        found.append(warn("credentials", text, "take a random one: openssl rand -hex 24"))
    far = [url for url in urls if url.startswith("http:") and not is_loopback(_host(url))]
    if far and settings.mesh_token is not None:
        text = f"the mesh token goes to {far[0]} unencrypted"
        advice = "give each process a certificate (meshnet certs), or let only a VPN carry it"
        found.append(warn("credentials", text, advice))
    return found or [ok("credentials", "what is set suits the address listened on")]


TOKEN_LEAST = 16


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""
