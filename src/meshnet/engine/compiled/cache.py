"""Compiling at once, and keeping what was compiled beside the sources or in the user's cache.

numba asks of a kept function whether its own file has changed, not whether the functions it calls
have, which here lie in other files: what is kept lies under a digest of the whole package, of the
modules that it takes numbers from, and of the processor compiled for.

Invariants
    * what is kept and cannot be read, or cannot be kept, is compiled anew;
    * where numba compiles nothing, importing what it should compile raises ImportError.

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
from numba.core import caching, config
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

FLOATS = frozenset(("eps", "scaling"))
"""Names of arguments that are fp32."""
_PACKAGE = Path(__file__).parent
NUMBERS_OF = ("kv.py", "linear.py")
"""Modules beside the package whose numbers become part of compiled code."""
OPTIONS = {"nogil": True, "error_model": "numpy"}


def compiled(names: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile for the arguments named at once, or take from the disk what an earlier process left.

    What it calls are plain `numba.njit` functions of this package. Raises ImportError.
    """
    arguments = tuple(numba.float32 if name in FLOATS else numba.int64 for name in names.split())

    def decorate(function: Callable[..., Any]) -> Any:
        if config.DISABLE_JIT:
            raise ImportError("numba was told to compile nothing")
        dispatcher = numba.njit(**OPTIONS)(function)
        with suppress(RuntimeError):  # there may be nowhere to write to
            dispatcher._cache = _PackageCache(function)
        try:
            dispatcher.compile(arguments)
        except (NumbaError, RuntimeError) as error:
            raise ImportError(f"{function.__name__} is not compiled here: {error}") from error
        dispatcher.disable_compile()
        return dispatcher

    return decorate


@cache
def sources_digest(*places: Path) -> str:
    """Digest of modules, and of those that lie in directories."""
    digest = hashlib.sha256()
    for place in places:
        for path in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _of_package(locator: Any) -> Any:
    class Locator(locator):  # type: ignore[misc]
        def get_cache_path(self) -> str:
            return str(Path(super().get_cache_path()) / f"compiled-{self.get_source_stamp()}")

        def get_source_stamp(self) -> str:
            numbers = (_PACKAGE.parent / name for name in NUMBERS_OF)
            sources = sources_digest(_PACKAGE, *numbers, Path(self._py_file).parent)
            # Two processors that write at once would take each other's code for their own.
            processor = repr(cpu_target.target_context.codegen().magic_tuple()).encode()
            return f"{sources}-{hashlib.sha256(processor).hexdigest()[:8]}"

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

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        # A damaged pickle may raise anything.
        except Exception:  # noqa: BLE001
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk
            super().save_overload(sig, data)
