"""What is built is what people need, and a mesh runs from it in an environment without us."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.documented import ROOT
from tests.processes import unset
from tests.reference import prompt_ids, unsplit_greedy

pytestmark = pytest.mark.wheel
PINS = ("-c", str(ROOT / "constraints.txt"))
BYTES_MAX = 2 * 10**6
PROMPT, TOKENS = "Hello there", 12


class Environment:
    """A virtual environment of its own, which knows nothing of this checkout."""

    def __init__(self, path: Path) -> None:
        self.bin = path / "bin"
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)

    def install(self, *words: str) -> None:
        self.run("python", "-m", "pip", "install", "--quiet", *PINS, *words, cwd=self.bin)

    def run(self, program: str, *arguments: str, cwd: Path, **environment: str) -> str:
        told = subprocess.run(
            [str(self.bin / program), *arguments],
            env={**unset(), "OMP_NUM_THREADS": "1", **environment, "PYTHONPATH": ""},
            cwd=cwd, capture_output=True, text=True, timeout=1500, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    builder = Environment(tmp_path_factory.mktemp("builder") / "venv")
    builder.install("hatchling")
    return builder


@pytest.fixture(scope="module")
def built(builder: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist of this checkout."""
    target = tmp_path_factory.mktemp("dist")
    builder.run("python", "-m", "hatchling", "build", "-d", str(target), cwd=ROOT)
    return target


def wheel_of(directory: Path) -> Path:
    (wheel,) = directory.glob("meshnet-*.whl")
    return wheel


def names_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def test_the_wheel_holds_the_package_its_page_and_all_licences_and_nothing_else(built: Path):
    wheel = wheel_of(built)
    tracked = subprocess.run(
        ["git", "ls-files", "src/meshnet"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()

    names = [name for name in names_of(wheel) if ".dist-info/" not in name]
    assert names == sorted(name.removeprefix("src/") for name in tracked)
    licences = [Path(name).name for name in names_of(wheel) if ".dist-info/licenses/" in name]
    vendor = ROOT / "src/meshnet/gateway/page/vendor"
    assert sorted(licences) == sorted(["LICENSE", *(p.name for p in vendor.glob("*.LICENSE"))])
    assert wheel.stat().st_size < BYTES_MAX


def test_the_sdist_builds_the_same_wheel(built: Path, builder: Environment, tmp_path: Path):
    (sdist,) = built.glob("meshnet-*.tar.gz")
    assert sdist.stat().st_size < BYTES_MAX
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()

    builder.run("python", "-m", "hatchling", "build", "-t", "wheel", "-d", "out", cwd=source)

    assert names_of(wheel_of(source / "out")) == names_of(wheel_of(built))
    assert not (source / "tests").exists()


def test_a_mesh_runs_from_the_installed_wheel(built: Path, tiny_model_dir: Path, tmp_path: Path):
    clean = Environment(tmp_path / "venv")
    clean.install("torch")
    clean.install(f"meshnet[etcd] @ {wheel_of(built).as_uri()}")

    told = clean.run(
        "meshnet", "run", PROMPT, "--model", str(tiny_model_dir), "--weights", "fp32",
        "--nodes", "2", "--max-tokens", str(TOKENS), "--json",
        cwd=tmp_path, MESHNET_CACHE_DIR=str(tmp_path / "cache"),
    )  # fmt: skip

    assert clean.run("meshnet", "--version", cwd=tmp_path).startswith("meshnet ")
    ids = unsplit_greedy(tiny_model_dir, prompt_ids(tiny_model_dir, PROMPT), TOKENS)
    drawn = json.loads(told)["token_ids"]
    assert drawn == ids[: len(drawn)]
    assert drawn
