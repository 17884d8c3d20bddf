"""The registry that a user names: another gateway's, or one that etcd keeps.

    http://HOST:PORT                          a gateway; opened by the mesh token, a certificate
    etcd://HOST:PORT[,HOST:PORT…][/PREFIX]    an etcd; `etcds://` by TLS

Invariant: beyond loopback an etcd is used by TLS alone, and by somebody that it can know: what is
in it decides what nodes load.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from meshnet.cli.credentials import tls_of, token_of
from meshnet.cli.machine import is_loopback
from meshnet.cli.settings import Settings, SettingsError, base_url
from meshnet.mesh.registry.ports import Registry

MEMBERS_MAX = 16
PREFIX = "meshnet"
SCHEMES = {"etcd": "http", "etcds": "https"}


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """Where an etcd's members listen for clients, and below what its keys of this mesh are."""

    endpoints: tuple[str, ...]
    prefix: str


def registry_place(url: str, flag: str) -> str | EtcdPlace:
    """Read what a user named; a gateway stays a URL. Raises SettingsError."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        return base_url(url, flag)
    members, _, prefix = rest.rstrip("/").partition("/")
    endpoints = tuple(f"{SCHEMES[scheme]}://{member}" for member in members.split(","))
    named = all(_is_address(endpoint) for endpoint in endpoints) and len(endpoints) <= MEMBERS_MAX
    if not named or re.fullmatch(r"[A-Za-z0-9._/-]{0,64}", prefix) is None:
        raise SettingsError(
            f"{flag}: expected {scheme}://HOST:PORT[,HOST:PORT…][/PREFIX] with at most "
            f"{MEMBERS_MAX} members and no user in it, got {url!r}"
        )
    return EtcdPlace(endpoints, prefix or PREFIX)


def _is_address(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return bool(parts.hostname) and bool(parts.port) and "@" not in parts.netloc
    except ValueError:
        return False


def reachable(place: str | EtcdPlace) -> str:
    """Return a URL on the way to the registry."""
    return place if isinstance(place, str) else place.endpoints[0]


@asynccontextmanager
async def opened_registry(settings: Settings, place: str | EtcdPlace) -> AsyncIterator[Registry]:
    """Be its client until the block is left. Raises SettingsError."""
    if isinstance(place, str):
        from meshnet.mesh.registry.http_client import HttpExchange, HttpRegistry
        from meshnet.wire.tls import dialled_with, told

        tls = tls_of(settings)
        async with HttpExchange(
            place,
            token=token_of(settings),
            dialled_with=partial(dialled_with, tls),
            told=partial(told, tls=tls),
        ) as exchange:
            yield HttpRegistry(exchange)
        return
    from meshnet.mesh.registry.etcd import EtcdRegistry
    from meshnet.mesh.registry.etcd_gateway import EtcdAccess, EtcdGateway

    password = settings.etcd_password
    access = EtcdAccess(
        tls=_tls(settings, place),
        user=settings.etcd_user,
        password="" if password is None else password.get_secret_value(),
    )
    async with EtcdGateway(place.endpoints, access) as gateway:
        yield EtcdRegistry(gateway, place.prefix)


def check_registry(settings: Settings, place: str | EtcdPlace) -> None:
    """Raise SettingsError for an etcd that others could use too, or that cannot be asked."""
    if isinstance(place, str):
        return
    if settings.etcd_user is not None and settings.etcd_password is None:
        raise SettingsError("etcd_user: expected its password in MESHNET_ETCD_PASSWORD")
    _tls(settings, place)
    hosts = [urlsplit(endpoint).hostname or "" for endpoint in place.endpoints]
    beyond = [host for host in hosts if not is_loopback(host)]
    known = settings.etcd_user is not None or settings.etcd_cert_file is not None
    if beyond and not (place.endpoints[0].startswith("https:") and known):
        raise SettingsError(
            f"an etcd beyond loopback ({beyond[0]}): expected etcds:// and either etcd_user with "
            "MESHNET_ETCD_PASSWORD, or etcd_cert_file and etcd_key_file"
        )


def _tls(settings: Settings, place: EtcdPlace) -> ssl.SSLContext | None:
    """Raises SettingsError."""
    if not place.endpoints[0].startswith("https:"):
        return None
    files = (settings.etcd_ca_file, settings.etcd_cert_file, settings.etcd_key_file)
    try:
        context = ssl.create_default_context(cafile=_path(settings.etcd_ca_file))
        if settings.etcd_cert_file is not None:
            key = _path(settings.etcd_key_file)
            context.load_cert_chain(settings.etcd_cert_file, key)
    except (OSError, ValueError) as error:
        named = ", ".join(str(file) for file in files if file is not None)
        raise SettingsError(
            f"etcd_ca_file, etcd_cert_file, etcd_key_file: {error}: {named}"
        ) from None
    return context


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
