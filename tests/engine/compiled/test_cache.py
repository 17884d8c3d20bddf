"""What was compiled is kept, and not used when any source of it has changed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import meshnet
from meshnet.engine.compiled import cache

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
    directory: Path, factor: int, environment: Mapping[str, str] | None = None, before: str = ""
) -> tuple[int, int]:
    """What a fresh process computes, and how much of it came from the disk."""
    for name, source in SOURCES.items():
        (directory / name).write_text(source.format(factor=factor))
    source = Path(meshnet.__file__).parents[1]
    output = subprocess.run(
        [sys.executable, "-c", before + SHOW],
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


def test_what_is_kept_and_damaged_is_compiled_anew(tmp_path: Path):
    """A machine that lost power may leave files empty or cut short."""
    shown(tmp_path, 3)
    for kind, left in product(("nbi", "nbc"), (0, 100)):
        for path in tmp_path.rglob(f"*.{kind}"):
            os.truncate(path, left)

        assert shown(tmp_path, 3) == (21, 0), (kind, left)
    assert shown(tmp_path, 3) == (21, 1)


def test_code_that_no_disk_has_room_for_is_compiled_all_the_same(tmp_path: Path):
    """A limit on the size of files fails as a full disk does."""
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))\n"

    assert shown(tmp_path, 3, before=limited) == (21, 0)
    assert shown(tmp_path, 3, before=limited) == (21, 0)


def test_where_numba_compiles_nothing_the_import_says_so(tmp_path: Path):
    script = "try:\n    import meshnet.engine.compiled.product\nexcept ImportError:\n    print(1)"

    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    ).stdout  # fmt: skip

    assert output == "1\n"


def test_all_modules_that_compiled_code_takes_numbers_from_are_in_the_digest():
    """What takes lanes is compiled; the rest of the package is Python."""
    numbers, taken = {f"meshnet.engine.{Path(name).stem}" for name in cache.NUMBERS_OF}, set()
    for path in Path(cache.__file__).parent.glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        names = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        if "meshnet.engine.compiled.lanes" in names:
            taken |= {name for name in names if name.startswith("meshnet.")}

    assert {name for name in taken if "compiled" not in name} == numbers
