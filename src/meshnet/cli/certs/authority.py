"""The mesh's own certificate authority: what it signs, and what it no longer stands for.

Keys are ECDSA P-256. An authority signs certificates of processes and nothing else; each of them
both serves and dials, so it is good for both. Nothing here touches a file or a clock.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from meshnet.core.vocabulary import MeshnetError

HERE = ("localhost", "127.0.0.1", "::1")
"""In every certificate: a process may always be asked by its own machine."""
SKEW = timedelta(minutes=5)
"""By how much clocks of the mesh may differ."""
AUTHORITY_DAYS = 3650
HOSTS_MAX = 64


class CertificateError(MeshnetError):
    """A name, a host or a stored file is not what it should be."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate that signs others."""

    def __init__(self, credentials: Credentials) -> None:
        """Raises CertificateError."""
        try:
            self._certificate = x509.load_pem_x509_certificate(credentials.certificate)
            key = load_pem_private_key(credentials.key, password=None)
        except (ValueError, TypeError) as error:
            raise CertificateError(f"the authority's files cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CertificateError("ca.key: expected a key on an elliptic curve")
        self._key = key

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        return self._key

    @classmethod
    def new(cls, now: datetime) -> Credentials:
        """Return what a new authority is made of."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("meshnet")
        signed = (
            _begun(name, name, key.public_key(), now, now + timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return _pem(signed, key)

    def issued(self, name: str, hosts: Sequence[str], now: datetime, days: float) -> Credentials:
        """Return a key and a certificate of `name`, good for `hosts`. Raises CertificateError."""
        key = ec.generate_private_key(ec.SECP256R1())
        return _pem(self.signed(name, hosts, key.public_key(), now, days), key)

    def signed(
        self,
        name: str,
        hosts: Sequence[str],
        key: ec.EllipticCurvePublicKey,
        now: datetime,
        days: float,
    ) -> x509.Certificate:
        """Raises CertificateError."""
        ends = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return (
            _begun(_named(checked_name(name)), self._certificate.subject, key, now, ends)
            .add_extension(own, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName(_alternatives(hosts)), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def revoking(self, serials: Iterable[int], number: int, now: datetime) -> bytes:
        """Return the list of what is not believed any more, in PEM; `number` rises.

        It is good as long as the authority: what is not replaced must not end the mesh.
        """
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        told = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - SKEW)
            .next_update(self._certificate.not_valid_after_utc)
            .add_extension(own, critical=False)
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for serial in serials:
            gone = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            told = told.add_revoked_certificate(gone.build())
        return told.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def checked_name(name: str) -> str:
    """Raises CertificateError."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name, re.ASCII) is None:
        raise CertificateError(
            f"NAME: expected letters, digits, dots and dashes, at most 63, got {name[:80]!r}"
        )
    return name


def name_of(certificate: x509.Certificate) -> str:
    """Return whose certificate it is."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the hosts it is good for, beside this machine's own names."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(text for name in names if (text := str(name.value)) not in HERE)


def _alternatives(hosts: Sequence[str]) -> list[x509.GeneralName]:
    if len(hosts) > HOSTS_MAX:
        raise CertificateError(f"--host: expected at most {HOSTS_MAX} hosts, got {len(hosts)}")
    return [_alternative(host) for host in dict.fromkeys((*hosts, *HERE))]


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if re.fullmatch(r"(?!-)[A-Za-z0-9.-]{1,253}", host, re.ASCII) is None:
        raise CertificateError(
            f"--host: expected an address or a host's name without port, got {host[:80]!r}"
        )
    return x509.DNSName(host)


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Credentials:
    return Credentials(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
