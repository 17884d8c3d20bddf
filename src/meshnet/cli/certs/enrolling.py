"""How a machine gets its certificate by a join token, without a key leaving it.

    machine ──GET /mesh/authority──▶ gateway    believed once its digest is the token's mesh
            ──POST {token, request}▶            by TLS with that authority, host checked
            ◀── ca.pem, node.pem, revoked.pem

Invariants
    * the token is sent to nobody who has not shown a certificate of its mesh;
    * a gateway enrols only where `authority_dir` is set, by HTTPS only; bodies are bounded.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from meshnet.cli.certs.authority import CertificateError
from meshnet.cli.certs.folder import AuthorityFolder
from meshnet.cli.certs.tokens import mesh_id, mesh_of
from meshnet.cli.private_file import write_private
from meshnet.core.protocol.fields import read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import BadField
from meshnet.gateway.bodies import body_too_slow, read_body
from meshnet.gateway.errors import ApiError, error_response
from meshnet.wire.tls import AUTHORITY, CERTIFICATE, KEY, REVOKED

PATH = "/mesh/authority"
BODY_MAX = ANSWER_MAX = 64 * 1024
BODY_S = ASK_S = 10.0
DAYS = 30.0


class EnrolMount:
    """The API of a gateway, with its authority beside it."""

    def __init__(self, api: ASGIApp, folder: AuthorityFolder, now: Callable[[], datetime]) -> None:
        self._api, self._folder, self._now = api, folder, now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._api(scope, receive, send)
            return
        try:
            response = await self._answer(Request(scope, receive))
        except ApiError as error:
            response = error_response(error)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Raises ApiError."""
        if request.url.scheme != "https":
            raise ApiError(403, "A join token is taken by HTTPS only.", code="https_only")
        if request.method == "GET":
            return Response(self._folder.authority_certificate(), media_type="text/plain")
        if request.method != "POST":
            raise ApiError(405, f"{PATH} takes GET and POST.", headers={"allow": "GET, POST"})
        try:
            async with asyncio.timeout(BODY_S):
                fields = read_object(await read_body(request, BODY_MAX), "enrol", Limits())
            token = fields.text("token", chars_max=BODY_MAX)
            asked = fields.text("request", chars_max=BODY_MAX).encode()
            told = await asyncio.to_thread(self._folder.enrol, token, asked, self._now(), DAYS)
        except TimeoutError:
            raise body_too_slow(BODY_S) from None
        except BadField as error:
            raise ApiError(400, str(error)) from None
        except CertificateError as error:
            raise ApiError(401, str(error), code="join_refused") from None
        return JSONResponse(told)


def enrol(url: str, token: str, directory: Path) -> None:
    """Fill `directory` with what makes a `tls_dir`. Raises CertificateError."""
    mesh = mesh_of(token)
    unproven = ssl.create_default_context()
    unproven.check_hostname, unproven.verify_mode = False, ssl.CERT_NONE
    authority = _asked(url, unproven, "GET", b"")
    if mesh_id(authority) != mesh:
        raise CertificateError(
            f"{url}: expected the mesh of the token, got another one's authority"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request = asked.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    proven = ssl.create_default_context(cadata=authority.decode("ascii"))
    body = json.dumps({"token": token, "request": request}).encode()
    try:
        told = read_object(_asked(url, proven, "POST", body), "answer", Limits())
        files = {name: told.text(name, chars_max=ANSWER_MAX) for name in (CERTIFICATE, REVOKED)}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(directory / KEY, pem)
        write_private(directory / AUTHORITY, authority)
        for name, text in files.items():
            write_private(directory / name, text.encode())
    except (BadField, OSError) as error:
        raise CertificateError(f"{url}: {error}") from None


def _asked(url: str, context: ssl.SSLContext, method: str, body: bytes) -> bytes:
    """Raises CertificateError."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise CertificateError(f"URL: expected https://HOST:PORT of a gateway, got {url[:200]!r}")
    connection: Any = http.client.HTTPSConnection(
        parts.hostname, parts.port or 443, context=context, timeout=ASK_S
    )
    try:
        connection.request(method, PATH, body=body, headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: bytes = response.read(ANSWER_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise CertificateError(f"{url}: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise CertificateError(f"{url} answered {response.status}: {answer[:300]!r}")
    return answer
