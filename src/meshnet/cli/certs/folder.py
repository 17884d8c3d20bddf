"""An authority's directory, and what of it goes to each machine.

    DIR/ca.pem  DIR/ca.key  DIR/revoked.pem    the authority; its key stays here
    DIR/issued.pem                             every certificate that has not ended
    DIR/NAME/ca.pem node.pem node.key revoked.pem     for that process: its `tls_dir`

Invariants
    * a file is written beside its place and then moved there: nobody reads a half of it;
    * keys can be read by their owner only, from the first moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from filelock import FileLock

from meshnet.cli.certs.authority import (
    Authority,
    CertificateError,
    Credentials,
    checked_name,
    hosts_of,
    name_of,
)
from meshnet.cli.certs.tokens import Invitation, mesh_id, new_token, read_token
from meshnet.cli.private_file import write_private
from meshnet.wire.tls import AUTHORITY, CERTIFICATE, KEY, REVOKED

AUTHORITY_KEY = "ca.key"
ISSUED = "issued.pem"
LOCK_S = 10.0
RENEW_PART = 1 / 3
"""A certificate is renewed once no more of its time than this is left."""


@dataclass(frozen=True, slots=True)
class Issued:
    """One certificate as it stands."""

    certificate: x509.Certificate
    revoked: bool

    @property
    def name(self) -> str:
        return name_of(self.certificate)

    @property
    def hosts(self) -> tuple[str, ...]:
        return hosts_of(self.certificate)

    @property
    def ends(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def is_due(self, now: datetime) -> bool:
        """Whether it should be renewed now."""
        lasts = self.ends - self.certificate.not_valid_before_utc
        return self.ends - now <= lasts * RENEW_PART

    def state(self, now: datetime) -> str:
        if self.revoked:
            return "revoked"
        if self.ends <= now:
            return "ended"
        return "due" if self.is_due(now) else "good"


class AuthorityFolder:
    """Raises CertificateError wherever a file is missing, in the way, or unreadable."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, now: datetime) -> None:
        """Make a new authority here; there must be none."""
        if (self._directory / AUTHORITY_KEY).exists():
            raise CertificateError(
                f"{self._directory}: there is an authority here already: expected another --dir"
            )
        with _told():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Authority.new(now)
        self._write(AUTHORITY_KEY, made.key)
        self._write(AUTHORITY, made.certificate)
        self._write(REVOKED, Authority(made).revoking((), 1, now))

    def issue(self, name: str, hosts: Sequence[str], now: datetime, days: float) -> Path:
        """Write what `name` needs, and return where."""
        if checked_name(name) in (AUTHORITY, AUTHORITY_KEY, REVOKED, ISSUED):
            raise CertificateError(f"NAME: {name} is the name of a file here: expected another")
        made = self._authority().issued(name, hosts, now, days)
        own = self._directory / name
        with _told():
            own.mkdir(mode=0o700, exist_ok=True)
        self._note(x509.load_pem_x509_certificate(made.certificate), now)
        self._write(f"{name}/{AUTHORITY}", self._read(AUTHORITY))
        self._write(f"{name}/{REVOKED}", self._read(REVOKED))
        self._write(f"{name}/{KEY}", made.key)
        self._write(f"{name}/{CERTIFICATE}", made.certificate)
        return own

    def invite(self, invitation: Invitation, now: datetime, ttl: timedelta) -> str:
        """Return a join token."""
        mesh = mesh_id(self._read(AUTHORITY))
        return new_token(self._authority().key, mesh, invitation, now, ttl)

    def enrol(self, token: str, request: bytes, now: datetime, days: float) -> dict[str, str]:
        """Return the files, but for the key, of who has a join token and asks (PEM) for a key."""
        mesh, authority = mesh_id(self._read(AUTHORITY)), self._authority()
        invitation = read_token(token, authority.key.public_key(), mesh)
        try:
            asked = x509.load_pem_x509_csr(request)
            key = asked.public_key()
            well = asked.is_signature_valid and isinstance(key, ec.EllipticCurvePublicKey)
        except ValueError:
            well = False
        if not well or not isinstance(key, ec.EllipticCurvePublicKey):
            raise CertificateError("request: expected one in PEM, signed by a key on P-256")
        made = authority.signed(invitation.name, invitation.hosts, key, now, days)
        self._note(made, now)
        return {
            AUTHORITY: self._read(AUTHORITY).decode(),
            CERTIFICATE: made.public_bytes(Encoding.PEM).decode(),
            REVOKED: self._read(REVOKED).decode(),
        }

    def authority_certificate(self) -> bytes:
        return self._read(AUTHORITY)

    def _note(self, made: x509.Certificate, now: datetime) -> None:
        with _told(), FileLock(self._directory / ".lock", timeout=LOCK_S, mode=0o600):
            kept = [each.certificate for each in self.issued() if each.ends > now]
            told = [*kept, made]
            self._write(ISSUED, b"".join(each.public_bytes(Encoding.PEM) for each in told))

    def renew(self, now: datetime, days: float, *, everything: bool = False) -> list[str]:
        """Issue again what ends soon, and return the names; a revoked name gets nothing."""
        latest = {each.name: each for each in self.issued()}
        due = [
            each
            for each in latest.values()
            if not each.revoked
            and (everything or each.is_due(now))
            and (self._directory / each.name).is_dir()  # who enrolled has its own key
        ]
        for each in due:
            self.issue(each.name, each.hosts, now, days)
        return [each.name for each in due]

    def revoke(self, name: str, now: datetime) -> None:
        """Stop to stand for every certificate of `name`; it may be issued anew later."""
        found = [each for each in self.issued() if each.name == name]
        if not found:
            raise CertificateError(f"NAME: nothing that is still good was issued to {name!r}")
        before = x509.load_pem_x509_crl(self._read(REVOKED))
        number = before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        gone = {each.certificate.serial_number for each in self.issued() if each.revoked}
        gone |= {each.certificate.serial_number for each in found}
        told = self._authority().revoking(sorted(gone), number + 1, now)
        self._write(REVOKED, told)
        for other in {each.name for each in self.issued()}:
            if (self._directory / other).is_dir():
                self._write(f"{other}/{REVOKED}", told)

    def issued(self) -> list[Issued]:
        """Return what was issued and had not ended when the last was, the latest last."""
        if not (self._directory / ISSUED).exists():
            return []
        try:
            revoked = x509.load_pem_x509_crl(self._read(REVOKED))
            found = x509.load_pem_x509_certificates(self._read(ISSUED))
        except ValueError as error:
            raise CertificateError(f"{self._directory}: {error}") from None
        return [
            Issued(
                each,
                revoked.get_revoked_certificate_by_serial_number(each.serial_number) is not None,
            )
            for each in found
        ]

    def _authority(self) -> Authority:
        return Authority(Credentials(self._read(AUTHORITY), self._read(AUTHORITY_KEY)))

    def _read(self, name: str) -> bytes:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            raise CertificateError(
                f"{self._directory / name}: there is none: expected --dir of an authority, as "
                "`meshnet certs init` makes it"
            ) from None
        except OSError as error:
            raise CertificateError(f"{self._directory / name}: {error.strerror}") from None

    def _write(self, name: str, content: bytes) -> None:
        with _told():
            write_private(self._directory / name, content)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CertificateError(f"{error.filename}: {error.strerror}") from None
