"""Compiling at once, and keeping what was compiled beside the sources or in the user's cache.

numba asks of a kept function whether its own file has changed, not whether the functions it calls
have, which here lie in other files: what is kept lies under a digest of the whole package.

Legend: arguments of compiled functions are int64 addresses and counts, and fp32 where named so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

FLOATS = frozenset(("eps", "scaling"))
"""Names of arguments that are fp32."""
_PACKAGE = Path(__file__).parent
OPTIONS = {"nogil": True, "error_model": "numpy"}


def compiled(names: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile for the arguments named at once, or take from the disk what an earlier process left.

    What it calls are plain `numba.njit` functions of this package.
    """
    arguments = tuple(numba.float32 if name in FLOATS else numba.int64 for name in names.split())

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**OPTIONS)(function)
        with suppress(RuntimeError):  # there may be nowhere to write to
            dispatcher._cache = _PackageCache(function)
        dispatcher.compile(arguments)
        dispatcher.disable_compile()
        return dispatcher

    return decorate


@cache
def sources_digest(*directories: Path) -> str:
    """Digest of the modules that lie in some directories."""
    digest = hashlib.sha256()
    for directory in directories:
        for path in sorted(directory.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _of_package(locator: Any) -> Any:
    class Locator(locator):  # type: ignore[misc]
        def get_cache_path(self) -> str:
            return str(Path(super().get_cache_path()) / f"compiled-{self.get_source_stamp()}")

        def get_source_stamp(self) -> str:
            return sources_digest(_PACKAGE, Path(self._py_file).parent)

    return Locator


class _PackageCacheImpl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = tuple(
        _of_package(locator)
        for locator in (
            caching.UserProvidedCacheLocator,
            caching.InTreeCacheLocator,
            caching.UserWideCacheLocator,
        )
    )


class _PackageCache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _PackageCacheImpl
