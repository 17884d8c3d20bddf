"""What this process shows to others of its mesh, as its settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshnet.cli.machine import is_loopback, url_here
from meshnet.cli.settings import Settings, SettingsError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from meshnet.cli.api_client import ApiClient
    from meshnet.wire.tls import MeshTls


def token_of(settings: Settings) -> str | None:
    """Return the mesh token."""
    return None if settings.mesh_token is None else settings.mesh_token.get_secret_value()


def tls_of(settings: Settings) -> MeshTls | None:
    """Return the certificates of this process; None: it has none. Raises TlsError."""
    if settings.tls_dir is None:
        return None
    from meshnet.wire.tls import MeshTls

    return MeshTls(settings.tls_dir)


def is_closed(settings: Settings) -> bool:
    """Whether only members of the mesh reach what is for members alone."""
    protected = settings.mesh_token is not None or settings.tls_dir is not None
    return protected or is_loopback(settings.host)


def refuse_open_mesh(settings: Settings, what: str) -> None:
    """Raise SettingsError if strangers could reach what is for members alone."""
    if not is_closed(settings):
        raise SettingsError(
            f"--host {settings.host}: {what} beyond loopback needs MESHNET_MESH_TOKEN, the same "
            "secret for all nodes and gateways, or MESHNET_TLS_DIR, certificates of the mesh"
        )


def enrolling(api: ASGIApp, settings: Settings) -> ASGIApp:
    """Return the API with the authority beside it, where there is one. Raises MeshnetError."""
    if settings.authority_dir is None:
        return api
    if settings.tls_dir is None:
        raise SettingsError("authority_dir: expected tls_dir too: tokens are taken by HTTPS only")
    from meshnet.cli.certs.commands import folder_of, now
    from meshnet.cli.certs.enrolling import EnrolMount

    folder = folder_of(settings.authority_dir)
    folder.authority_certificate()
    return EnrolMount(api, folder, now)


def gateway_here(settings: Settings) -> str:
    """Return the URL of a gateway of this machine with these settings."""
    return url_here(settings.host, settings.port, tls=settings.tls_dir is not None)


def api_client(settings: Settings, url: str) -> ApiClient:
    """Return a client of the API at `url`, with the first API key. Raises ApiError, TlsError."""
    from meshnet.cli.api_client import ApiClient

    key = settings.api_keys[0].get_secret_value() if settings.api_keys else None
    return ApiClient(url, key, tls=tls_of(settings))
