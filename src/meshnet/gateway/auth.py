"""Who may use the API: bearers of a configured key, and everybody here if none is configured.

Without a key the server listens on loopback only, but a web page can reach that too, by a
name of its own that it lets point to 127.0.0.1. So a request must then name this machine.

Invariants
    * once a key is configured, every path but the probes and the page's own files is closed without
      one;
    * a key is compared in constant time, against all keys, by digest; what is stored is the digest;
    * what posts (all that computes does) counts against the limits of its key until it has ended;
    * what leaves this process of a key is a digest under a secret of the process: it says that two
      requests have one owner, and nothing about the key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from meshnet.gateway.allowance import Allowance, Allowances, ApiKey, digest_of
from meshnet.gateway.dialects import dialect_of
from meshnet.gateway.errors import ApiError
from meshnet.gateway.loopback import host_of, is_loopback

OWNER = "meshnet.owner"
"""Where the owner's tag is left in the ASGI scope; without keys it is not there."""
ALLOWANCE = "meshnet.allowance"
"""Where the scope tells what its key may spend; without keys it is not there."""
PROBES = frozenset({"/health", "/ready"})


class Refused(Exception):
    """Of this layer: no error of an endpoint is taken for one."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class KeyRing:
    def __init__(
        self,
        keys: Sequence[str],
        secret: bytes,
        *,
        stored: Callable[[], Sequence[ApiKey]] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`keys` have no limits; `stored` tells the others, as they are now."""
        self._unlimited = [ApiKey("", digest_of(key)) for key in keys]
        self._stored, self._secret = stored, secret
        self._allowances = Allowances(clock)

    def __bool__(self) -> bool:
        """Whether the API is locked: also if no key is stored that would open it."""
        return bool(self._unlimited) or self._stored is not None

    def find(self, authorization: str) -> ApiKey | None:
        """Return the key that the header's value is, if it is `Bearer` and one of them."""
        scheme, _, key = authorization.strip().partition(" ")
        presented = digest_of(key.strip())
        known = self._known()
        matches = [each for each in known if hmac.compare_digest(presented, each.digest)]
        return matches[0] if matches and scheme.lower() == "bearer" else None

    def allowance(self, key: ApiKey) -> Allowance:
        return self._allowances.of(key, self._known())

    def _known(self) -> list[ApiKey]:
        return [*self._unlimited, *(() if self._stored is None else self._stored())]

    def owner(self, authorization: str) -> str:
        """Return a tag that all requests with this key share."""
        digest = digest_of(authorization.strip().partition(" ")[2].strip())
        return hashlib.blake2b(digest, key=self._secret, digest_size=12).hexdigest()


class Authenticated:
    """Let a request through only with a key, where keys are configured."""

    def __init__(self, app: ASGIApp, keys: KeyRing, public: frozenset[str]) -> None:
        """`public` are paths that need no key, but a name of this machine where there is none."""
        self._app = app
        self._keys = keys
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            key = self._admitted(headers, scope["path"])
            with self._counted(key, scope):
                await self._app(scope, receive, send)
        except Refused as refused:
            await dialect_of(scope["path"]).refusal(refused.error)(scope, receive, send)

    def _admitted(self, headers: Headers, path: str) -> ApiKey | None:
        """Return whose request it is; None: anybody's. Raises Refused."""
        if not self._keys:
            if _names_another(headers.get("host", "")):
                raise Refused(_foreign())
            return None
        authorization = _authorization(headers)
        key = self._keys.find(authorization)
        if key is None and path not in self._public:
            raise Refused(_locked(authorization))
        return key

    @contextmanager
    def _counted(self, key: ApiKey | None, scope: Scope) -> Iterator[None]:
        """Raises Refused."""
        if key is None:
            yield
            return
        scope[OWNER] = self._keys.owner(_authorization(Headers(scope=scope)))
        if scope["method"] != "POST":
            yield
            return
        scope[ALLOWANCE] = allowance = self._keys.allowance(key)
        try:
            allowance.begin(key)
        except ApiError as error:
            raise Refused(error) from None
        try:
            yield
        finally:
            allowance.end()


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
