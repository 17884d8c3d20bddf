"""Build llama.cpp's llama-server and ggml-rpc-server, which `meshnet bench` runs beside meshnet.

    python -m tools.peers [--jobs N]        (or: make peers)

The source distribution is fetched with pip and checked against a fixed hash, unpacked, compiled for
this CPU, and its two programs moved into meshnet's cache directory. What was done already is not
done again: an interrupted build goes on where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from meshnet.cli.bench import peers_build as build
from meshnet.cli.settings import load_settings
from meshnet.core.vocabulary import MeshnetError

BUILD_BYTES = 2_000_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    try:
        folder = built(load_settings({}).cache_dir, arguments.jobs)
    except MeshnetError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    _say(f"llama.cpp {build.VERSION} is at {folder}")
    return 0


def built(cache_dir: Path, jobs: int) -> Path:
    """Build the peers unless they are there. Raises PeerError."""
    target = build.peers_dir(cache_dir)
    work = target.parent / f".{target.name}.work"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{target.name}.lock"):
        if not build.is_built(target):
            _check_programs()
            _check_room(target.parent)
            work.mkdir(exist_ok=True)
            _compile(_source(_sdist(work), work), work / "build", jobs)
            _install(work / "build" / "bin", target)
            shutil.rmtree(work)
    return target


def _check_programs() -> None:
    if shutil.which("cmake") is None:
        raise build.PeerError("cmake is missing: `apt install cmake`, or `pip install cmake`")
    if shutil.which("c++") is None and "CXX" not in os.environ:
        raise build.PeerError("a C++ compiler is missing: `apt install g++`")
    if shutil.which("ninja") is None and shutil.which("make") is None:
        raise build.PeerError("ninja is missing: `apt install ninja-build`, or `pip install ninja`")


def _check_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < BUILD_BYTES:
        raise build.PeerError(
            f"{folder}: {BUILD_BYTES / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free"
        )


def _sdist(work: Path) -> Path:
    path = work / build.SDIST
    if not path.is_file() or _sha256(path) != build.SDIST_SHA256:
        path.unlink(missing_ok=True)
        wanted = f"{build.PACKAGE}=={build.VERSION}"
        _say(f"fetching {wanted} (77 MB)")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"]
        command += ["--disable-pip-version-check", "--no-binary", ":all:", "--dest", str(work)]
        _run([*command, wanted], "pip could not fetch it; check the network and pip's index")
    found = _sha256(path) if path.is_file() else "no such file"
    if found != build.SDIST_SHA256:
        raise build.PeerError(f"{path}: expected SHA-256 {build.SDIST_SHA256}, got {found}")
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _source(sdist: Path, work: Path) -> Path:
    """Unpack llama.cpp out of the checked archive."""
    target = work / "source"
    if not target.exists():
        _say("unpacking")
        partial = work / "unpacking"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(sdist) as archive:
            members = [m for m in archive if m.name.startswith(f"{build.SOURCE}/")]
            archive.extractall(partial, members, filter="data")
        next(partial.iterdir()).rename(target)
        partial.rmdir()
    return target / "vendor" / "llama.cpp"


def _compile(source: Path, folder: Path, jobs: int) -> None:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    _say("configuring")
    _run(
        ["cmake", "-S", str(source), "-B", str(folder), *generator, *build.FLAGS],
        "cmake could not configure it",
        quiet=True,
    )
    _say(f"compiling with {jobs} jobs; this takes minutes")
    command = ["cmake", "--build", str(folder), "--parallel", str(jobs), "--target"]
    _run([*command, *build.PROGRAMS], "the compiler failed; its messages are above")


def _install(programs: Path, target: Path) -> None:
    """Put programs and marker in place at once; the old ones, if any, go."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name in build.PROGRAMS:
        shutil.copy2(programs / name, partial / name)
    (partial / build.MARKER).write_text(json.dumps(build.provenance()), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _run(command: Sequence[str], complaint: str, *, quiet: bool = False) -> None:
    run = subprocess.run(command, check=False, capture_output=quiet, text=True)
    if run.returncode != 0:
        said = f": {(run.stderr or '').strip()[-2000:]}" if quiet else ""
        raise build.PeerError(f"{complaint}{said}")


def _say(line: str) -> None:
    print(f"peers: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
