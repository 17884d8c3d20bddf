"""Building the peers, with a compiler that only pretends: what is done, once, and in order."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path

import pytest

from meshnet.cli.bench import peers_build
from tools import peers

CMAKE = """#!/bin/sh
echo "$1" >> "{calls}"
[ "$1" = --build ] || exit 0
[ -e "{broken}" ] && exit 1
mkdir -p "$2/bin"
for name in llama-server ggml-rpc-server; do echo "$name" > "$2/bin/$name"; done
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which the pretended cmake writes each call; it fails while `broken` exists."""
    programs = tmp_path / "bin"
    programs.mkdir()
    told = tmp_path / "calls"
    for name, text in {
        "cmake": CMAKE.format(calls=told, broken=tmp_path / "broken"),
        "c++": "",
        "ninja": "",
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return told


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory in which an archive was fetched already."""
    work = tmp_path / "cache" / "peers" / f".llama.cpp-{peers_build.VERSION}.work"
    work.mkdir(parents=True)
    source = tmp_path / "CMakeLists.txt"
    source.write_text("project(pretended)")
    archive = work / peers_build.SDIST
    with tarfile.open(archive, "w:gz") as file:
        file.add(source, f"{peers_build.SOURCE}/CMakeLists.txt")
        file.add(source, f"{peers_build.PACKAGE}-{peers_build.VERSION}/setup.py")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(peers_build, "SDIST_SHA256", digest)
    return tmp_path / "cache"


def test_programs_are_built_once(cache: Path, calls: Path) -> None:
    first = peers.built(cache, jobs=1)
    assert calls.read_text().split() == ["-S", "--build"]

    second = peers.built(cache, jobs=1)

    assert calls.read_text().split() == ["-S", "--build"]
    assert first == second
    found = peers_build.programs(cache)
    assert found.server.read_text() == "llama-server\n"
    assert found.rpc_server.read_text() == "ggml-rpc-server\n"
    assert sorted(path.name for path in first.parent.iterdir() if path.is_dir()) == [first.name]


def test_a_build_that_failed_leaves_no_programs_and_is_taken_up_again(
    cache: Path, calls: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(peers_build.PeerError, match="compiler"):
        peers.built(cache, jobs=1)
    assert not peers_build.peers_dir(cache).exists()

    (tmp_path / "broken").unlink()
    assert peers_build.is_built(peers.built(cache, jobs=1))


@pytest.mark.parametrize(
    ("missing", "advice"), [("cmake", "apt install cmake"), ("c++", "g\\+\\+")]
)
def test_a_missing_program_is_named_with_its_package(
    cache: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, missing: str, advice: str
) -> None:
    programs = calls.with_name("bin")
    (programs / missing).unlink()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("CXX", raising=False)

    with pytest.raises(peers_build.PeerError, match=advice):
        peers.built(cache, jobs=1)

    assert not calls.exists()
