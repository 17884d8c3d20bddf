"""The file of API keys: names, digests and limits, and no key.

    {"keys": [{"name": …, "sha256": 64 hex, "requests_per_minute": …, "tokens_per_minute": …,
               "concurrent": …}, …]}

Invariant: a file that changed counts at the next request; one that cannot be read leaves what was.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshnet.cli.private_file import write_private
from meshnet.core.protocol.fields import Fields, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import BadField, MeshnetError
from meshnet.gateway.allowance import ApiKey, digest_of

KEYS_MAX = 500
FILE_BYTES_MAX = 2**20
LOOK_S = 1.0
LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent")
LIMIT_MAX = 10**9


class KeyFileError(MeshnetError):
    """The file is missing or wrong, or a name is taken; the message says which."""


class KeyFile:
    """The keys of a gateway, read again when the file changes."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises KeyFileError."""
        self._path, self._clock = path, clock
        self._looked_at, self._stamp = clock(), _stamped(path)
        self._keys = read_keys(path)

    def known(self) -> Sequence[ApiKey]:
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            with suppress(KeyFileError):
                if (stamp := _stamped(self._path)) != self._stamp:
                    self._keys, self._stamp = read_keys(self._path), stamp
        return self._keys


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Raises KeyFileError."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise KeyFileError(f"{path}: expected at most {FILE_BYTES_MAX} bytes")
        fields = read_object(content, "keys", Limits())
        return tuple(map(_read, fields.objects("keys", count_max=KEYS_MAX)))
    except OSError as error:
        raise KeyFileError(
            f"{path}: {error.strerror}: expected a file that `meshnet keys add` made"
        ) from None
    except BadField as error:
        raise KeyFileError(f"{path}: {error}") from None


def add_key(path: Path, name: str, limits: dict[str, int | None]) -> str:
    """Make a key, store its digest, and return it: it is told this once. Raises KeyFileError."""
    if re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", name, re.ASCII) is None:
        raise KeyFileError(f"NAME: expected letters, digits and ._@-, at most 64, got {name!r}")
    keys = read_keys(path) if path.exists() else ()
    if any(each.name == name for each in keys):
        raise KeyFileError(f"NAME: {path} has a key of {name!r}: expected another, or revoke it")
    if len(keys) >= KEYS_MAX:
        raise KeyFileError(f"{path}: expected at most {KEYS_MAX} keys: revoke some")
    key = f"mn-{secrets.token_urlsafe(32)}"
    _write(path, (*keys, ApiKey(name, digest_of(key), **limits)))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Raises KeyFileError."""
    keys = read_keys(path)
    kept = tuple(each for each in keys if each.name != name)
    if len(kept) == len(keys):
        raise KeyFileError(f"NAME: {path} has no key of {name!r}")
    _write(path, kept)


def values_of(key: ApiKey) -> dict[str, Any]:
    """Return what may be shown of a key."""
    return {name: value for name, value in asdict(key).items() if name != "digest"}


def _write(path: Path, keys: Iterable[ApiKey]) -> None:
    told = [
        {name: value for name, value in values_of(key).items() if value is not None}
        | {"sha256": key.digest.hex()}
        for key in keys
    ]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps({"keys": told}, indent=1).encode())
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be written: {error.strerror}") from None


def _read(fields: Fields) -> ApiKey:
    digest = fields.text("sha256", chars_max=64)
    if re.fullmatch(r"[0-9a-f]{64}", digest, re.ASCII) is None:
        raise fields.refuse("sha256", "64 hex digits")
    limits = {
        name: fields.integer(name, low=1, high=LIMIT_MAX) if fields.has(name) else None
        for name in LIMITS
    }
    return ApiKey(fields.text("name", chars_max=64), bytes.fromhex(digest), **limits)


def _stamped(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise KeyFileError(
            f"{path}: {error.strerror}: expected a file that `meshnet keys add` made"
        ) from None
    return found.st_ino, found.st_mtime_ns, found.st_size
