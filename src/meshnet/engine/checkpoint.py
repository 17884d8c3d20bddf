"""Reading from a checkpoint the tensors of some layers, and nothing else.

A local directory in Hugging Face layout: `config.json`, and `model.safetensors` or several files
with `model.safetensors.index.json`. The loader is handed every tensor's name with a lazy value;
it reads a value only if the trimmed model has a parameter for it, after its own renaming and
merging of experts. So which tensors are needed is decided by the model, not by a list of ours,
and a file none of whose tensors is needed is not opened.

Invariants
    * only safetensors: nothing in a checkpoint is ever unpickled, no code of it is ever run;
    * a missing, truncated or wrongly shaped tensor is a ModelError that names it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig
from transformers import __version__ as transformers_version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from meshnet.core.vocabulary import LayerRange, ModelError
from meshnet.engine.config_sizes import check_sizes, plain_config
from meshnet.engine.heap import blocks
from meshnet.engine.trimming import Part, shard_class

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Tensors(Protocol):
    """Where the tensors of a model come from: a checkpoint, or nowhere (random_tensors.py)."""

    @property
    def names(self) -> list[str]: ...
    @property
    def files_opened(self) -> frozenset[str]: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """Element types of what was read since it was last closed."""
        ...

    def lazily(self) -> Mapping[str, Any]:
        """Values by name; `[...]` makes or reads one."""
        ...

    def close(self) -> None:
        """Let go of what it holds; it may be read from again."""
        ...


class Checkpoint:
    """The tensors of a directory by name; counts what is really read. Safe to use from threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._open: dict[str, Any] = {}
        self._opened: set[str] = set()
        self._file_of = _tensor_files(path)
        self._bytes_read = 0
        self._dtypes: set[torch.dtype] = set()

    @property
    def names(self) -> list[str]:
        return sorted(self._file_of)

    @property
    def files_opened(self) -> frozenset[str]:
        return frozenset(self._opened)

    @property
    def bytes_read(self) -> int:
        return self._bytes_read

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        return frozenset(self._dtypes)

    def lazily(self) -> dict[str, LazyTensor]:
        return {name: LazyTensor(self, name) for name in self._file_of}

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor. Raises ModelError if its file is missing or damaged."""
        file = self._file_of[name]
        with self._lock:
            if file not in self._open:
                self._open[file] = _opened(self._path / file)
                self._opened.add(file)
            try:
                tensor: torch.Tensor = self._open[file].get_tensor(name)
            except SafetensorError as error:
                raise ModelError(f"{file}: cannot read tensor {name!r}: {error}") from error
            self._bytes_read += tensor.numel() * tensor.element_size()
            self._dtypes.add(tensor.dtype)
        return tensor

    def close(self) -> None:
        """Let go of the open files; tensors read from them stay valid, and keep them mapped."""
        with self._lock:
            self._open.clear()
            self._dtypes.clear()


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """What transformers' loader needs of a tensor: `[...]` reads it."""

    checkpoint: Checkpoint
    name: str

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.checkpoint.read(self.name)[index]


@dataclass(frozen=True, slots=True)
class LoadedLayers:
    """A trimmed model and what loading it took."""

    model: Any
    bytes_read: int
    files_opened: frozenset[str]
    checkpoint_names: list[str]


def read_config(path: Path) -> Any:
    """The model configuration of a directory. Raises ModelError."""
    file = path / "config.json"
    if not file.is_file():
        raise ModelError(f"{path}: no config.json, so not a model in Hugging Face layout")
    kind = plain_config(file).get("model_type")
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    # A configuration that contradicts itself fails by whatever validates its class.
    except Exception as error:
        raise ModelError(f"{file}: {_reason(kind, error)}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{path}: {config.model_type!r} is no causal language model known here")
    text = config.get_text_config(decoder=True)  # families call their layers by other names
    check_sizes(file, {"num_hidden_layers": getattr(text, "num_hidden_layers", None)})
    return config


def _reason(kind: object, error: Exception) -> str:
    """Two lines as one; where the library would have us upgrade it, the type alone."""
    if isinstance(kind, str) and kind not in CONFIG_MAPPING:
        return f"model type {kind!r} is not known to transformers {transformers_version}"
    return " ".join(line.strip() for line in str(error).splitlines()[:2])


def load_layers(
    path: Path,
    tensors: Tensors,
    config: Any,
    held: LayerRange,
    dtype: torch.dtype,
    device: torch.device,
) -> LoadedLayers:
    """Build the model with `held` layers only and read their tensors. Raises ModelError."""
    model = read_model(path, tensors, config, held, dtype)
    loaded = LoadedLayers(
        model=model.to(device),
        bytes_read=tensors.bytes_read,
        files_opened=tensors.files_opened,
        checkpoint_names=tensors.names,
    )
    tensors.close()
    return loaded


def read_model(
    path: Path,
    tensors: Tensors,
    config: Any,
    held: LayerRange,
    dtype: torch.dtype,
    part: Part = Part.WHOLE,
    matrices: torch.dtype | None = None,
) -> Any:
    """Build `part` of the model of `held` layers and read its tensors. Raises ModelError.

    `matrices`: the element type of large linear layers, if it is not `dtype`.
    """
    model_class = shard_class(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], held, part, matrices)
    try:
        with quiet():
            # Left to itself transformers takes sdpa where a model has it, else eager.
            model, info = model_class.from_pretrained(
                None,
                config=config,
                state_dict=tensors.lazily(),
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (RuntimeError, ValueError, KeyError, ImportError, MemoryError) as error:
        raise ModelError(f"{path}: cannot load layers {held}: {error}") from error
    _check_complete(path, info)
    return model.eval().requires_grad_(False)


def _check_complete(path: Path, info: dict[str, Any]) -> None:
    for name, found, expected in sorted(info["mismatched_keys"]):
        raise ModelError(
            f"{path}: tensor {name!r} has shape {tuple(found)},"
            f" the configuration says {tuple(expected)}"
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(f"{path}: {len(missing)} tensors are missing, for example {missing[0]!r}")


def check_numbers(path: Path, model: nn.Module) -> None:
    """Raise ModelError for weights that hold NaN or infinity, and say which."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not all(map(_finite, blocks(tensor))):
            raise ModelError(f"{path}: tensor {name!r} holds NaN or infinity")


def _finite(values: torch.Tensor) -> bool:
    # Finite numbers may still have an infinite sum: then they are looked at.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def _tensor_files(path: Path) -> dict[str, str]:
    """Which file of the directory holds each tensor."""
    if (path / INDEX).is_file():
        try:
            files = json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"]
            # A name with a separator could point outside the directory.
            safe = {str(name): Path(str(file)).name for name, file in files.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(f"{path / INDEX}: not an index of tensors: {error!r}") from error
        return safe
    if (path / SINGLE).is_file():
        return dict.fromkeys(_opened(path / SINGLE).keys(), SINGLE)
    others = sorted(file.name for file in path.glob("*.bin"))
    if others:
        raise ModelError(
            f"{path}: found {others[0]} but no safetensors; pickled weights are never read,"
            " convert them to safetensors first"
        )
    raise ModelError(f"{path}: neither {SINGLE} nor {INDEX}")


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, "pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: damaged or missing safetensors file: {error}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence reports on tensors that are meant to be left out, and the progress bar."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
