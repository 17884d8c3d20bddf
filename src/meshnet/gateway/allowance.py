"""API keys as they are stored, and what each of them may still ask for.

    requests, tokens   a bucket each: as much as a minute's limit at once, refilled evenly
    concurrent         answers under way

Tokens are paid when they are there, prompt and answer: a bucket may be overdrawn by what runs, and
refuses until it is refilled. Nothing here waits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshnet.gateway.errors import ApiError

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key by its digest; a limit that is None is none."""

    name: str
    digest: bytes
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None


def digest_of(key: str) -> bytes:
    """Return what is kept of a key. Keys are 256 random bits: no salt makes them safer."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Bucket:
    """What is left of a minute's limit."""

    def __init__(self, now: float) -> None:
        self._spent, self._at = 0.0, now

    def wait_s(self, limit: int, wanted: float, now: float) -> float:
        """Return in how many seconds `wanted` may be spent; 0: now."""
        self._refill(limit, now)
        return max(0.0, (self._spent + wanted - limit) * MINUTE_S / limit)

    def spend(self, count: float) -> None:
        self._spent += count

    def _refill(self, limit: int, now: float) -> None:
        self._spent = max(0.0, self._spent - (now - self._at) * limit / MINUTE_S)
        self._at = now


class Allowance:
    """What one key has spent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._requests, self._tokens = Bucket(clock()), Bucket(clock())
        self._under_way = 0

    def begin(self, key: ApiKey) -> None:
        """Count a request in, which `end` counts out. Raises ApiError if it may not be asked."""
        now, limit = self._clock(), key.concurrent
        if limit is not None and self._under_way >= limit:
            raise _refused("concurrent requests", "requests", limit, 1.0)
        if (limit := key.requests_per_minute) is not None:
            wait_s = self._requests.wait_s(limit, 1, now)
            if wait_s > 0:
                raise _refused("requests per min (RPM)", "requests", limit, wait_s)
        if (limit := key.tokens_per_minute) is not None:
            wait_s = self._tokens.wait_s(limit, 1, now)
            if wait_s > 0:
                raise _refused("tokens per min (TPM)", "tokens", limit, wait_s)
        self._requests.spend(1)
        self._under_way += 1

    def end(self) -> None:
        self._under_way -= 1

    def spend_tokens(self, count: int) -> None:
        self._tokens.spend(count)


class Allowances:
    """Those of all keys that are known; who is none any more is forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: dict[bytes, Allowance] = {}

    def of(self, key: ApiKey, known: Sequence[ApiKey]) -> Allowance:
        if key.digest not in self._of:
            digests = {each.digest for each in known}
            self._of = {digest: kept for digest, kept in self._of.items() if digest in digests}
            self._of[key.digest] = Allowance(self._clock)
        return self._of[key.digest]


def _refused(what: str, kind: str, limit: int, wait_s: float) -> ApiError:
    """OpenAI's wording, by which clients know what to wait for."""
    return ApiError(
        429,
        f"Rate limit reached for this key on {what}: Limit {limit}. "
        f"Please try again in {wait_s:.3g}s.",
        type=kind,
        code="rate_limit_exceeded",
        headers={"retry-after": str(max(1, math.ceil(wait_s)))},
    )
