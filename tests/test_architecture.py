"""The rules of the source that no linter of ours checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src" / "meshnet").rglob("*.py"))
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 40

EFFECTS = {
    "asyncio", "socket", "ssl", "threading", "multiprocessing", "subprocess", "logging", "random",
    "secrets", "uuid", "torch", "transformers", "tokenizers", "numpy", "aiohttp", "httpx2",
    "uvicorn", "fastapi", "starlette", "structlog", "pydantic", "prometheus_client", "typer",
}  # fmt: skip
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}
MAY_KNOW_THE_DATE = {
    "telemetry/spans.py",  # when a span was: collectors lay those of all machines side by side
    "gateway/ambient.py",  # `created` of an answer
    "cli/bench/results.py",  # the date in a report
    "cli/certs/commands.py",  # from when and until when a certificate is good
    "cli/composition.py",  # the age in a session id, compared with no clock
}
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "meshnet").as_posix()


def nodes(kind: type | tuple[type, ...]) -> Iterator[tuple[str, ast.AST]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield name_of(path), node


def dotted(node: ast.AST) -> str:
    """`a.b` of the last two names of an attribute."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value).rpartition('.')[2]}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


FILES = [path for part in ("src", "tests", "tools") for path in sorted((ROOT / part).rglob("*.py"))]


def test_no_file_is_long():
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in FILES
    }

    assert len(lengths) > 200
    assert {name: count for name, count in lengths.items() if count > FILE_LINES_MAX} == {}


def test_no_function_is_long():
    """Docstrings are not counted: arguments and errors are worth their lines."""
    long = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            count = lines_of(node)
            if ast.get_docstring(node) is not None:
                count -= lines_of(node.body[0])
            if count > FUNCTION_LINES_MAX:
                long[f"{path.relative_to(ROOT)}:{node.name}"] = count

    assert long == {}


def lines_of(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_nothing_executes_what_it_reads():
    """Pit A96: no pickle in any spelling, no `torch.load`, no code of a model's directory."""
    found = []
    for name, node in nodes((ast.Import, ast.ImportFrom, ast.Call, ast.keyword)):
        match node:
            case ast.Import(names=names):
                found += [f"{name}: {each.name}" for each in names if each.name in UNSAFE]
            case ast.ImportFrom(module=module) if module in UNSAFE:
                found.append(f"{name}: {module}")
            case ast.Call(func=func) if dotted(func) in ("torch.load", "torch.jit.load"):
                found.append(f"{name}: {dotted(func)}")
            case ast.Call(func=ast.Name(id="eval" | "exec" | "__import__")):
                found.append(f"{name}: {ast.unparse(node)[:40]}")
            case ast.keyword(arg="trust_remote_code", value=value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    found.append(f"{name}: trust_remote_code")
            case _:
                pass

    assert found == []


def test_the_date_decides_nothing():
    """Pits A83 and C8: lifetimes and deadlines are counted on the monotonic clock alone."""
    found = {name for name, node in nodes(ast.Attribute) if dotted(node) in WALL_CLOCK}

    assert found <= MAY_KNOW_THE_DATE


def test_the_environment_is_read_by_the_command_line_alone():
    found = {
        name
        for name, node in nodes(ast.Attribute)
        if dotted(node) in ("os.environ", "os.getenv", "os.environb")
    }

    assert {name for name in found if not name.startswith("cli/")} == set()


def test_the_core_loads_no_effect():
    """In a fresh interpreter, for a module that is already loaded would not be seen."""
    modules = [
        "meshnet." + name_of(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for path in SOURCES
        if name_of(path).startswith("core/")
    ]
    code = f"import sys; import {', '.join(modules)}; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()

    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    assert set(modules) <= set(loaded)
    tops = {name.partition(".")[0] for name in loaded} - {name.partition(".")[0] for name in bare}
    assert tops & EFFECTS == set()


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_no_path_of_a_developers_machine_is_in_the_repository():
    path = re.compile(r"(?<![\w.])/(?:home|root|Users|work|workspace)/\w")
    found = []
    for each in tracked():
        if each.suffix in {".svg", ".png", ".woff2", ".gguf", ".safetensors"} or not each.is_file():
            continue
        for number, line in enumerate(each.read_text(encoding="utf-8").splitlines(), start=1):
            if path.search(line):
                found.append(f"{each.relative_to(ROOT)}:{number}: {line.strip()[:80]}")

    assert found == []


def test_no_weights_are_in_the_repository():
    assert [each for each in tracked() if each.suffix in {".safetensors", ".gguf", ".bin"}] == []
    assert max(each.stat().st_size for each in tracked() if each.is_file()) < 2 * 2**20
