"""What was compiled is kept, and not used when any source of it has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import meshnet

SOURCES = {
    "inner.py": """
import numba

@numba.njit
def weight(i):
    return i * {factor}
""",
    "outer.py": """
from meshnet.engine.compiled.cache import compiled
from inner import weight

@compiled("count")
def total(count):
    return weight(count)
""",
}
SHOW = """
import outer
print(outer.total(7), sum(outer.total.stats.cache_hits.values()))
"""


def shown(
    directory: Path, factor: int, environment: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """What a fresh process computes, and how much of it came from the disk."""
    for name, source in SOURCES.items():
        (directory / name).write_text(source.format(factor=factor))
    source = Path(meshnet.__file__).parents[1]
    output = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=directory, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(source), **(environment or {})},
    ).stdout  # fmt: skip
    result, hits = output.split()
    return int(result), int(hits)


def test_compiled_code_is_kept_and_a_change_of_what_it_calls_in_another_file_is_seen(
    tmp_path: Path,
):
    assert shown(tmp_path, 3) == (21, 0)
    assert shown(tmp_path, 3) == (21, 1)
    assert shown(tmp_path, 5) == (35, 0)


def test_without_a_place_to_keep_it_code_is_compiled_all_the_same(tmp_path: Path):
    (tmp_path / "__pycache__").write_text("a file where a directory should be")
    home = tmp_path / "home"
    home.write_text("nor is there a home")
    nowhere = {"HOME": str(home), "XDG_CACHE_HOME": str(home)}

    assert shown(tmp_path, 3, nowhere) == (21, 0)
    assert shown(tmp_path, 3, nowhere) == (21, 0)
