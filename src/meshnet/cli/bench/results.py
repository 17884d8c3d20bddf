"""What every measurement records beside its numbers, and where it is written."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from meshnet import __version__
from meshnet.cli.machine import cores


def provenance(model: str, dtype: str) -> dict[str, Any]:
    """Return what must be known to repeat a measurement."""
    return {
        "command": " ".join(["meshnet", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": model,
        "dtype": dtype,
        "cores": cores(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {
            "meshnet": __version__,
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
    }


def result_path(out: Path, model: str, scenario: str) -> Path:
    """Return the path of a result without its suffix, in a directory that exists."""
    out.mkdir(parents=True, exist_ok=True)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return out / f"{day}_{model.replace('/', '-')}_{cores()}-core-cpu_{scenario}"


def write_result(path: Path, result: dict[str, Any]) -> Path:
    target = path.with_name(path.name + ".json")
    target.write_text(json.dumps(result, indent=2) + "\n")
    return target
