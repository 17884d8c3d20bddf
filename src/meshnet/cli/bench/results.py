"""What every measurement records beside its numbers, and where it is written."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from meshnet import __version__
from meshnet.cli.machine import cores
from meshnet.cli.options import print_json


def provenance(model: str, dtype: str) -> dict[str, Any]:
    """Return what must be known to repeat a measurement."""
    return {
        "command": " ".join(["meshnet", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "model": model,
        "dtype": dtype,
        "cores": cores(),
        "machine": platform.machine(),
        "processor": processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "versions": {
            "meshnet": __version__,
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
    }


def commit() -> str | None:
    """Return the commit of this checkout, with `+` if files differ from it; None outside of one."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def processor() -> str:
    """Return the processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def result_path(out: Path, model: str, scenario: str) -> Path:
    """Return the path of a result without its suffix, in a directory that exists."""
    out.mkdir(parents=True, exist_ok=True)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return out / f"{day}_{model.replace('/', '-')}_{cores()}-core-cpu_{scenario}"


def write_result(path: Path, result: dict[str, Any]) -> Path:
    target = path.with_name(path.name + ".json")
    target.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return target


def publish(result: dict[str, Any], page: str, path: Path, *, as_json: bool) -> None:
    """Write a result and its Markdown page, and show one of them."""
    told = path.with_name(path.name + ".md")
    told.write_text(page, encoding="utf-8")
    written = write_result(path, result)
    if as_json:
        print_json(result)
    else:
        print(page)
        print(f"written: {written}, {told}")
