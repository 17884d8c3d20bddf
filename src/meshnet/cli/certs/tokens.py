"""Join tokens: signed words of the authority that somebody may have one certificate, for a while.

    {"aud": the mesh: SHA-256 of ca.pem's certificate, "sub": name, "hosts": […], "exp": …}  (ES256)

Whoever has the token can get that certificate until it ends, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from meshnet.cli.certs.authority import HOSTS_MAX, CertificateError, checked_name

ALGORITHM = "ES256"
CHARS_MAX = 8192
CLAIMS = ["aud", "sub", "exp", "hosts"]


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a token says."""

    name: str
    hosts: tuple[str, ...]


def mesh_id(authority: bytes) -> str:
    """Return which mesh an authority's certificate (PEM) is of. Raises CertificateError."""
    try:
        return x509.load_pem_x509_certificate(authority).fingerprint(hashes.SHA256()).hex()
    except ValueError as error:
        raise CertificateError(f"ca.pem cannot be read: {error}") from None


def new_token(
    key: ec.EllipticCurvePrivateKey,
    mesh: str,
    invitation: Invitation,
    now: datetime,
    ttl: timedelta,
) -> str:
    values = {
        "aud": mesh,
        "sub": checked_name(invitation.name),
        "hosts": list(invitation.hosts),
        "exp": now + ttl,
    }
    return jwt.encode(values, key, algorithm=ALGORITHM)


def read_token(text: str, key: ec.EllipticCurvePublicKey, mesh: str) -> Invitation:
    """Raises CertificateError for what this authority did not sign, or for a time gone by."""
    try:
        if len(text) > CHARS_MAX:
            raise jwt.InvalidTokenError(f"it has more than {CHARS_MAX} characters")
        values = jwt.decode(
            text, key, algorithms=[ALGORITHM], audience=mesh, options={"require": CLAIMS}
        )
    except jwt.InvalidTokenError as error:
        raise CertificateError(f"the join token is refused: {error}") from None
    hosts = values["hosts"]
    if not isinstance(hosts, list) or len(hosts) > HOSTS_MAX:
        raise CertificateError("the join token is refused: hosts are wrong")
    return Invitation(checked_name(str(values["sub"])), tuple(map(str, hosts)))


def mesh_of(text: str) -> str:
    """Return which mesh a token claims to be for; only that mesh can tell if it is."""
    try:
        values = jwt.decode(text, options={"verify_signature": False})
        return str(values["aud"])
    except (jwt.InvalidTokenError, KeyError) as error:
        raise CertificateError(
            f"TOKEN: expected what `meshnet token create` told: {error}"
        ) from None
