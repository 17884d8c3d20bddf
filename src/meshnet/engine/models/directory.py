"""Directories that are there whole or not at all, however many processes make them at once.

    lock(name) -> leftovers removed -> built in .name.XXXX -> renamed to name

The operating system releases the lock of a process that dies, so an interrupted build costs the
next one a fresh start and nothing else.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from meshnet.core.vocabulary import ModelError

LAYOUT = 1
"""Rises when converted directories of older versions must be made again."""
MARKER = "meshnet.json"
_LOCK_TIMEOUT_S = 1800.0


def built_once(target: Path, source: str, needed_bytes: int, build: Callable[[Path], None]) -> Path:
    """Return `target`, having it built by `build(empty directory)` unless it is there already.

    `source` is recorded and compared: a directory made from something else is made again.

    Raises:
        ModelError: no room, no right to write, or another process has held the lock for half
            an hour; and what `build` raises.
    """
    if _is_current(target, source):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f".{target.name}.lock", timeout=_LOCK_TIMEOUT_S):
            if not _is_current(target, source):
                _build(target, source, needed_bytes, build)
    except Timeout as error:
        raise ModelError(
            f"{target}: another process has been preparing this model for "
            f"{_LOCK_TIMEOUT_S / 60:.0f} minutes. Stop it, or remove {error.lock_file}."
        ) from error
    except OSError as error:
        raise ModelError(
            f"{target}: cannot write the model cache: {error}. Free some space or choose "
            "another cache directory."
        ) from error
    return target


def _is_current(target: Path, source: str) -> bool:
    try:
        marker = json.loads((target / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(marker == {"layout": LAYOUT, "source": source})


def _build(target: Path, source: str, needed_bytes: int, build: Callable[[Path], None]) -> None:
    for leftover in target.parent.glob(f".{target.name}.*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)
    check_room(target.parent, needed_bytes)
    partial = Path(
        tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    )
    try:
        build(partial)
        marker = json.dumps({"layout": LAYOUT, "source": source})
        (partial / MARKER).write_text(marker, encoding="utf-8")
        partial.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_room(folder: Path, needed_bytes: int) -> None:
    """Raise ModelError unless the file system of `folder` has room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise ModelError(
            f"{folder}: {needed_bytes / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free. "
            "Free some space or choose another cache directory."
        )
