"""Which llama.cpp the benchmarks run beside meshnet, how it is built, and where its programs lie.

    <cache>/peers/llama.cpp-0.3.36/   llama-server, ggml-rpc-server, peers.json

`make peers` puts them there. The source is the sdist of llama_cpp_python on PyPI, which carries a
copy of llama.cpp, so a machine that can install Python packages can build the peer too. Release
build for the CPU it runs on, with what upstream chooses where it is not said here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from meshnet.core.vocabulary import MeshnetError

PACKAGE = "llama_cpp_python"
VERSION = "0.3.36"
SDIST = f"{PACKAGE}-{VERSION}.tar.gz"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SOURCE = f"{PACKAGE}-{VERSION}/vendor/llama.cpp"
PROGRAMS = ("llama-server", "ggml-rpc-server")
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DGGML_RPC=ON",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)
MARKER = "peers.json"


class PeerError(MeshnetError):
    """A peer is not there, does not start or does not answer; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The built programs of llama.cpp."""

    server: Path
    rpc_server: Path


def peers_dir(cache_dir: Path) -> Path:
    return cache_dir / "peers" / f"llama.cpp-{VERSION}"


def provenance() -> dict[str, object]:
    """Return what the programs were made from: a marker beside them, and part of results."""
    return {"package": PACKAGE, "version": VERSION, "sha256": SDIST_SHA256, "flags": list(FLAGS)}


def is_built(folder: Path) -> bool:
    """Return whether `folder` holds the programs of this version, made with these flags."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return marker == provenance() and all((folder / name).is_file() for name in PROGRAMS)


def programs(cache_dir: Path) -> Programs:
    """Find the programs. Raises PeerError where they are not built."""
    folder = peers_dir(cache_dir)
    if not is_built(folder):
        raise PeerError(f"{folder}: llama.cpp {VERSION} is not built there. Run `make peers`.")
    return Programs(*(folder / name for name in PROGRAMS))
