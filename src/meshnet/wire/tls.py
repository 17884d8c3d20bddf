"""Mutual TLS between the processes of a mesh, from a directory whose files may change.

    ca.pem        whom to believe: the mesh's own authority, nobody else
    node.pem      this process's certificate     node.key   its key
    revoked.pem   which certificates are not believed any more

Invariants
    * TLS 1.3; both ends show a certificate of the mesh's authority, and who dials checks that the
      other's is for the host that was dialled;
    * no TLS session is resumed: each connection is judged anew;
    * plain HTTP is spoken to loopback only;
    * files that changed count from the next connection on; files that cannot be read, for nothing;
    * once others are revoked, connections that are open to a server begin anew.
"""

from __future__ import annotations

import ipaddress
import ssl
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from meshnet.core.vocabulary import MeshnetError

AUTHORITY, CERTIFICATE, KEY, REVOKED = FILES = ("ca.pem", "node.pem", "node.key", "revoked.pem")
CERTIFIED = "meshnet.certified"
"""Where it stands in an ASGI scope whether the peer showed a certificate of the mesh."""
LOOK_S = 1.0
"""How often the files are looked at, at most."""


class TlsError(MeshnetError):
    """The directory holds no credentials that can be used; the message says what to do."""


class PlainRefused(ValueError):
    """A peer is known by an address without TLS, and the way to it leaves this machine."""


@dataclass(frozen=True, slots=True)
class _Read:
    client: ssl.SSLContext
    server: ssl.SSLContext


class MeshTls:
    """The credentials in one directory, as they are now."""

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises TlsError, also for a certificate that no other process would believe now."""
        self._directory, self._clock = directory, clock
        self._looked_at, self._stamp = clock(), self._stamped()
        self._read = self._read_files()
        self._revocations = 0
        self._meet_itself()

    @property
    def revocations(self) -> int:
        """How often it was changed which certificates are revoked."""
        self._now()
        return self._revocations

    def towards(self, url: str | URL) -> ssl.SSLContext:
        """Return what a connection to `url` is made with. Raises PlainRefused.

        Where it is plain HTTP, to loopback, nothing asks for it.
        """
        url = URL(url)
        if url.scheme not in ("https", "wss") and not _is_loopback(url.host or ""):
            raise PlainRefused(
                f"{url}: expected https://: with tls_dir set, plain HTTP goes to this machine only"
            )
        return self._now().client

    def server(self, *, everybody: bool = False) -> ssl.SSLContext:
        """Return what to listen with. `everybody` may connect without a certificate."""

        def newest(connection: Any, name: object, first: ssl.SSLContext) -> None:
            connection.context = self._now().server

        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL if everybody else ssl.CERT_REQUIRED
        context.sni_callback = newest
        return context

    def _now(self) -> _Read:
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            # Copied file by file, they fit together only once the last is there: look again then.
            with suppress(TlsError):
                if (stamp := self._stamped()) != self._stamp:
                    self._read, before, self._stamp = self._read_files(), self._stamp, stamp
                    at = FILES.index(REVOKED)
                    self._revocations += before[at] != stamp[at]
        return self._read

    def _read_files(self) -> _Read:
        server = self._context(ssl.PROTOCOL_TLS_SERVER)
        return _Read(self._context(ssl.PROTOCOL_TLS_CLIENT), server)

    def _meet_itself(self) -> None:
        """Raises TlsError."""
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._context(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        ends = (
            client.wrap_bio(back, there),
            self._read.server.wrap_bio(there, back, server_side=True),
        )
        try:
            for end in (*ends, *ends):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or str(error)
            raise TlsError(
                f"{self._directory / CERTIFICATE}: expected a certificate that the mesh of "
                f"{AUTHORITY} believes, got one of which TLS says: {reason}. Issue or renew it by "
                "`meshnet certs`"
            ) from None

    def _context(self, protocol: int) -> ssl.SSLContext:
        """Raises TlsError."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_X509_STRICT
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        try:
            context.load_cert_chain(self._directory / CERTIFICATE, self._directory / KEY)
            context.load_verify_locations(self._directory / AUTHORITY)
            context.load_verify_locations(self._directory / REVOKED)
        except (OSError, ValueError) as error:
            raise self._unusable(error) from None
        return context

    def _stamped(self) -> list[tuple[int, int, int]]:
        """Return what is different once a file was written or replaced. Raises TlsError."""
        try:
            found = [(self._directory / name).stat() for name in FILES]
        except OSError as error:
            raise self._unusable(error) from None
        if stat.S_IMODE(found[FILES.index(KEY)].st_mode) & stat.S_IRWXO:
            raise TlsError(
                f"{self._directory / KEY}: expected a key that others cannot read, "
                "got one that they can: chmod 600 it"
            )
        return [(each.st_ino, each.st_mtime_ns, each.st_size) for each in found]

    def _unusable(self, error: Exception) -> TlsError:
        return TlsError(
            f"tls_dir {self._directory}: expected {', '.join(FILES)} as `meshnet certs issue` "
            f"writes them, got: {error}"
        )


def dialled_with(tls: MeshTls | None, url: str | URL) -> ssl.SSLContext | bool:
    """Return aiohttp's `ssl` for a request to `url`. Raises PlainRefused."""
    return True if tls is None else tls.towards(url)


def told(error: Exception, tls: MeshTls | None) -> str:
    """Say what ended a request. By TLS 1.3 who is not believed hears no reason."""
    hung_up = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    doubt = " (or this process's certificate is refused there: see `meshnet certs show`)"
    return f"{type(error).__name__}: {error}{doubt if tls is not None and hung_up else ''}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
