"""The one error behind an exception group, so that a caller sees what happened and not where.

A TaskGroup wraps whatever its block or a task raises. Where tasks are an implementation detail,
the wrapping is too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meshnet.core.vocabulary import MeshnetError


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise a group's first MeshnetError, else its only error, else the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _told(group) from None


def _told(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaves = _leaves(group)
    meant = [leaf for leaf in leaves if isinstance(leaf, MeshnetError)]
    if meant:
        return meant[0]
    return leaves[0] if len(leaves) == 1 else group


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
