"""What every measurement records beside its numbers, and where it is written."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from meshnet import __version__
from meshnet.cli.bench.arguments import Asked
from meshnet.cli.bench.picture import picture
from meshnet.cli.bench.report import Report, page_of
from meshnet.cli.machine import cores
from meshnet.cli.options import print_json
from meshnet.cli.settings import Settings, Weights


def provenance(model: str, dtype: str, threads: int | None = None) -> dict[str, Any]:
    """Return what must be known to repeat a measurement.

    Args:
        dtype: the format of the weights.
        threads: of each process; None where each side has its own.
    """
    return {
        "command": " ".join(["meshnet", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "model": model,
        "dtype": dtype,
        "threads": threads,
        "cores": cores(),
        "cores_used": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
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


def format_told(settings: Settings) -> str:
    """Return the format of the weights by its name: `auto` depends on the device alone."""
    if settings.weights is not Weights.AUTO:
        return str(settings.weights.value)
    return "bf16" if settings.device.startswith("cuda") else "int8"


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def result_path(out: Path, model: str, scenario: str) -> Path:
    """Return the path of a new result without its suffix, in a directory that exists.

    Nothing is there by that name yet: a second result of a day is numbered.
    """
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{today()}_{model.replace('/', '-')}_{cores()}-core-cpu_{scenario}"
    taken = {path.stem for path in out.iterdir()}
    names = (stem, *(f"{stem}-{number}" for number in range(2, len(taken) + 3)))
    return out / next(name for name in names if name not in taken)


def write_result(path: Path, result: Mapping[str, Any]) -> Path:
    """Write the JSON of a new result. Raises FileExistsError rather than to replace one."""
    target = path.with_name(path.name + ".json")
    with target.open("x", encoding="utf-8") as file:
        file.write(json.dumps(result, indent=2) + "\n")
    return target


def write_all(result: Mapping[str, Any], report: Report, path: Path) -> list[Path]:
    """Write JSON, Markdown and SVG of a new result; return the files."""
    files = [write_result(path, result), path.with_name(path.name + ".md")]
    files[1].write_text(page_of(result, report), encoding="utf-8")
    title = f"{result['scenario']}, {result['model']}, {result['dtype']}"
    drawn = picture(title, report.panels, path.with_name(path.name + ".svg"))
    return [*files, drawn] if drawn else files


def publish(result: Mapping[str, Any], report: Report, asked: Asked) -> None:
    """Write all files of a result, and show it."""
    path = result_path(asked.order.out, str(result["model"]), str(result["scenario"]))
    files = write_all(result, report, path)
    if asked.as_json:
        print_json(result)
    else:
        print(page_of(result, report))
        print(f"written: {', '.join(map(str, files))}")
