"""Caches as a step finds them: full of what was read since the last one."""

from __future__ import annotations

BYTES = 64 * 2**20
"""More than the caches of most processors hold."""


class ColdCaches:
    """Called, it reads so much memory that what was in the caches before is in them no longer."""

    def __init__(self) -> None:
        # Written, for pages of untouched zeros are all the same one.
        self._others = bytearray(b"\1") * BYTES

    def __call__(self) -> None:
        assert self._others.find(0) < 0
