"""Standard streams that a command can rely on: open, and able to carry any text.

Invariant: descriptors 0 to 2 are never free, so no pipe or socket of ours becomes one of them.
"""

from __future__ import annotations

import io
import os
import sys


def mend_standard_streams() -> None:
    """Open what the caller closed, and let no character end a command."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def carries_unicode() -> bool:
    """Tell whether standard output takes every character as it is."""
    return (sys.stdout.encoding or "").lower().replace("_", "-").startswith("utf-")
