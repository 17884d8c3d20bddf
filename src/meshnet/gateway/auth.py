"""Who may use the API: bearers of a configured key, and everybody here if none is configured.

Without a key the server listens on loopback only, but a web page can reach that too, by a
name of its own that it lets point to 127.0.0.1. So a request must then name this machine.

Invariants
    * once a key is configured, every path but the probes and the page's own files is closed without
      one;
    * a key is compared in constant time, against all keys, by digest;
    * what leaves this process of a key is a digest under a secret of the process: it says that two
      requests have one owner, and nothing about the key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from meshnet.gateway.dialects import dialect_of
from meshnet.gateway.errors import ApiError
from meshnet.gateway.loopback import host_of, is_loopback

OWNER = "meshnet.owner"
"""Where the owner's tag is left in the ASGI scope; without keys it is not there."""
PROBES = frozenset({"/health", "/ready"})


class KeyRing:
    def __init__(self, keys: Sequence[str], secret: bytes) -> None:
        self._digests = [_digest(key) for key in keys]
        self._secret = secret

    def __bool__(self) -> bool:
        return bool(self._digests)

    def opens(self, authorization: str) -> bool:
        """Tell whether the header's value is `Bearer` and one of the keys."""
        scheme, _, key = authorization.strip().partition(" ")
        presented = _digest(key.strip())
        matches = [hmac.compare_digest(presented, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)

    def owner(self, authorization: str) -> str:
        """Return a tag that all requests with this key share."""
        digest = _digest(authorization.strip().partition(" ")[2].strip())
        return hashlib.blake2b(digest, key=self._secret, digest_size=12).hexdigest()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Authenticated:
    """Let a request through only with a key, where keys are configured."""

    def __init__(self, app: ASGIApp, keys: KeyRing, public: frozenset[str]) -> None:
        """`public` are paths that need no key, but a name of this machine where there is none."""
        self._app = app
        self._keys = keys
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PROBES:
            headers = Headers(scope=scope)
            refusal = self._refusal(headers, scope["path"])
            if refusal is not None:
                await dialect_of(scope["path"]).refusal(refusal)(scope, receive, send)
                return
            if self._keys:
                scope[OWNER] = self._keys.owner(_authorization(headers))
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> ApiError | None:
        if not self._keys:
            return _foreign() if _names_another(headers.get("host", "")) else None
        authorization = _authorization(headers)
        is_open = path in self._public or self._keys.opens(authorization)
        return None if is_open else _locked(authorization)


def _authorization(headers: Headers) -> str:
    """What is presented: Anthropic's clients send a key of its own header."""
    key = headers.get("x-api-key", "")
    return headers.get("authorization", f"Bearer {key}" if key else "")


def _names_another(host: str) -> bool:
    return bool(host) and not is_loopback(host_of(host))


def _foreign() -> ApiError:
    return ApiError(
        403,
        "Without an API key this server answers only under a loopback name such as 127.0.0.1. "
        "Configure a key to use it under other names.",
        code="host_not_allowed",
    )


def _locked(authorization: str) -> ApiError:
    what = "Incorrect API key provided." if authorization else "No API key provided."
    return ApiError(
        401,
        f"{what} Send it as `Authorization: Bearer KEY`.",
        type="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
