"""JSON as its standard says, and no more: no key twice, no NaN, no Infinity.

Two readers of one body must not see two meanings in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class NotStrict(ValueError):
    """Python would parse it; the standard does not know it or leaves it open."""


def strict_decoder(parse_int: Callable[[str], int] = int) -> json.JSONDecoder:
    """Return a decoder that raises NotStrict, besides what json's own raises."""
    return json.JSONDecoder(
        object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=parse_int
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise NotStrict("a key is there twice")
    return values


def _no_constant(name: str) -> Any:
    raise NotStrict(f"{name} is not a JSON number")
