"""Files that only their owner reads, and that nobody finds half written."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Replace a file, or leave it as it was. Raises OSError."""
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise
