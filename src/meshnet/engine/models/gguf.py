"""Turn a GGUF file into a directory in Hugging Face layout, one safetensors file per layer.

Tensors are converted one by one, layer by layer: the whole model is never in memory.

Numbers are those of `gguf.dequantize`, which transformers uses too. Each tensor is stored in the
narrowest of bfloat16, float16 and float32 that holds it exactly; block formats need float32
(a Q4_1 value is a product and a sum of half floats). Only where the model would then exceed
`EXACT_BYTES_MAX` are inexact matrices rounded to bfloat16.

Configuration, names and row orders are transformers' own (`modeling_gguf_pytorch_utils`). What it
cannot express is refused rather than converted wrongly: a tensor without a place in the
model, a place without a tensor, and scaled rotary frequencies.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)

from meshnet.core.vocabulary import ModelError
from meshnet.engine.config_sizes import check_sizes
from meshnet.engine.models.gguf_file import MAGIC, GgufFile, TensorEntry, read_gguf
from meshnet.engine.models.layered_files import write_layered
from meshnet.engine.models.progress import Progress

EXACT_BYTES_MAX = 1 << 30
_CHUNK_ELEMENTS = 1 << 23
_LONG_ARRAYS = re.compile(r"tokenizer\.ggml\.(tokens|scores|token_type|merges|precompiled\w*)")
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_HEAD = re.compile(r"embed|\bwte\b|\bwpe\b")
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.")


def convert_gguf(source: Path, target: Path, label: str, progress: Progress) -> None:
    """Write the model in `source` into the existing, empty directory `target`.

    Raises:
        ModelError: not a GGUF file, a damaged one, or one that cannot be converted exactly.
    """
    file = read_gguf(source)
    try:
        config, skeleton = _configured(file)
    except (ValueError, KeyError, NotImplementedError, TypeError) as error:
        raise ModelError(
            f"{source}: transformers cannot read GGUF models of architecture "
            f"{file.architecture!r}: {error}. Use the model's safetensors instead."
        ) from error
    _check_rotary(file)
    _write_tokenizer(file, target)
    tensors = _Tensors(file, config, skeleton)
    progress.start(f"Converting {label}", sum(tensor.nbytes for tensor in file.tensors))
    try:
        widest = _write_weights(tensors, target, progress)
    finally:
        progress.done()
    config.dtype = widest
    config.save_pretrained(target)
    GenerationConfig.from_model_config(config).save_pretrained(target)


def converted_bytes(file: GgufFile) -> int:
    """The most bytes that the converted weights can take."""
    elements = sum(_elements(tensor) for tensor in file.tensors)
    return 4 * elements if 4 * elements <= EXACT_BYTES_MAX else 2 * elements + elements // 8


def _elements(tensor: TensorEntry) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64))


def _configured(file: GgufFile) -> tuple[Any, torch.nn.Module]:
    """The configuration transformers derives from the metadata, and its model on no device."""
    with tempfile.TemporaryDirectory(prefix="meshnet-") as folder:
        stub = Path(folder) / "stub.gguf"
        _write_stub(file, stub)
        values = load_gguf_checkpoint(str(stub), return_tensors=False)["config"]
    if vocab_size := _unnamed_vocab_size(file):
        values["vocab_size"] = vocab_size
    values.pop("_model_name_or_path", None)
    check_sizes(file.path, values)
    config = AutoConfig.for_model(**values)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return config, skeleton


def _unnamed_vocab_size(file: GgufFile) -> int | None:
    """How many tokens the file lists, if its configuration does not say how many there are."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if f"{file.architecture}.vocab_size" in file.metadata or not isinstance(tokens, list):
        return None
    return len(tokens)


def _write_stub(file: GgufFile, stub: Path) -> None:
    """Write a GGUF file with the same metadata and tensor names, but no vocabulary and no data.

    transformers reads the configuration through `gguf.GGUFReader`, which needs 25 s for
    SmolLM2's vocabulary and nothing for the rest.
    """
    keys = [key for key in file.spans if not _LONG_ARRAYS.fullmatch(key)]
    entries = [file.entry_bytes(key) for key in keys]
    if vocab_size := _unnamed_vocab_size(file):
        name = f"{file.architecture}.vocab_size".encode()
        entries.append(struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, vocab_size))
    header = MAGIC + struct.pack("<IQQ", file.version, len(file.tensors), len(entries))
    parts = [header, *entries]
    for tensor in file.tensors:
        name = tensor.name.encode()
        parts.append(struct.pack("<Q", len(name)) + name)
        parts.append(struct.pack("<IQIQ", 1, 1, GGMLQuantizationType.F32, 0))
    body = b"".join(parts)
    alignment = file.metadata.get("general.alignment", 32)
    assert isinstance(alignment, int)
    stub.write_bytes(body + bytes(-len(body) % alignment + alignment + 4))


def _check_rotary(file: GgufFile) -> None:
    scaling = file.metadata.get(f"{file.architecture}.rope.scaling.type", "none")
    scaled = any(tensor.name.startswith("rope_freqs") for tensor in file.tensors)
    if scaled or (scaling != "none" and file.architecture != "gpt-oss"):
        raise ModelError(
            f"{file.path}: this model scales its rotary frequencies, which transformers does not "
            "read from GGUF; it would answer wrongly. Use the model's safetensors instead."
        )


def _write_tokenizer(file: GgufFile, target: Path) -> None:
    try:
        architecture, values, settings = get_gguf_tokenizer(str(file.path))
        backend, more = convert_gguf_tokenizer(architecture, values)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelError(f"{file.path}: cannot build its tokenizer: {error}") from error
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **settings, **more
    )
    tokenizer.save_pretrained(target)


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors of one file: the head, one layer, or the tail."""

    order: tuple[int, int]

    @classmethod
    def of(cls, name: str) -> _Group:
        if match := _LAYER.search(name):
            return cls((1, int(match[1])))
        return cls((0, 0) if _HEAD.search(name) else (2, 0))


class _Tensors:
    """The model's tensors by group, dequantised when asked for."""

    def __init__(self, file: GgufFile, config: Any, skeleton: torch.nn.Module) -> None:
        self._file = file
        self._values = config.to_dict()
        kind = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
        self._processor = kind(config=self._values)
        self._names: dict[str, str] = get_gguf_hf_weights_map(skeleton, self._processor)
        self.exact = 4 * sum(_elements(tensor) for tensor in file.tensors) <= EXACT_BYTES_MAX
        self._expected = {name: tuple(t.shape) for name, t in skeleton.state_dict().items()}
        if config.tie_word_embeddings:
            for name in getattr(skeleton, "_tied_weights_keys", None) or {}:
                self._expected.pop(name, None)

    def groups(self, progress: Progress) -> Iterator[tuple[_Group, dict[str, torch.Tensor]]]:
        """Each group with its tensors under their final names, checked to be complete."""
        sources: dict[_Group, list[TensorEntry]] = defaultdict(list)
        for tensor in self._file.tensors:
            sources[self._group(tensor)].append(tensor)
        missing = dict(self._expected)
        for group in sorted(sources, key=lambda group: group.order):
            done: dict[str, torch.Tensor] = {}
            for tensor in sources[group]:
                self._convert(tensor, done)
                progress.advance(tensor.nbytes)
            self._check(done)
            for name in done:
                missing.pop(name, None)
            yield group, done
        if missing:
            raise ModelError(f"{self._file.path}: lacks tensors for {_some(missing)}")

    def _group(self, tensor: TensorEntry) -> _Group:
        if match := _GGUF_LAYER.match(tensor.name):
            return _Group((1, int(match[1])))
        return _Group.of(self._names.get(tensor.name, tensor.name))

    def _convert(self, tensor: TensorEntry, done: dict[str, torch.Tensor]) -> None:
        """Dequantise and reorder one tensor. Merged experts arrive in `done` by the processor."""
        result = self._processor.process(
            weights=_dequantised(self._file, tensor),
            name=tensor.name,
            tensor_key_mapping=self._names,
            parsed_parameters={"config": self._values, "tensors": done},
        )
        if result.name is None:
            return
        if result.name not in self._names:
            raise ModelError(
                f"{self._file.path}: transformers has no place for tensor {tensor.name!r} in "
                f"{self._values['model_type']}. Use the model's safetensors instead."
            )
        done[self._names[result.name]] = torch.from_numpy(np.ascontiguousarray(result.weights))

    def _check(self, done: dict[str, torch.Tensor]) -> None:
        for name, tensor in done.items():
            expected = self._expected.get(name)
            if expected != tuple(tensor.shape):
                raise ModelError(
                    f"{self._file.path}: {name} has shape {tuple(tensor.shape)}, "
                    f"its configuration says {expected}"
                )


def _dequantised(file: GgufFile, tensor: TensorEntry) -> np.ndarray:
    """The tensor as float32, a few rows at a time: temporaries stay small beside the result."""
    stored = file.stored(tensor).reshape(
        -1, tensor.nbytes // (_elements(tensor) // tensor.shape[-1])
    )
    values = np.empty((len(stored), tensor.shape[-1]), dtype=np.float32)
    rows = max(1, _CHUNK_ELEMENTS // tensor.shape[-1])
    try:
        for start in range(0, len(stored), rows):
            values[start : start + rows] = dequantize(stored[start : start + rows], tensor.kind)
    except NotImplementedError as error:
        raise ModelError(
            f"{file.path}: tensor {tensor.name} is stored as {tensor.kind.name}, which cannot be "
            "read. Use a file of another quantisation, or the model's safetensors."
        ) from error
    return values.reshape(tensor.shape)


def _write_weights(tensors: _Tensors, target: Path, progress: Progress) -> torch.dtype:
    """Write one file per group and the index; return the widest type among the matrices."""
    widest = torch.bfloat16

    def stored() -> Iterator[dict[str, torch.Tensor]]:
        nonlocal widest
        for _, group in tensors.groups(progress):
            narrowed = {name: _narrowed(tensor, tensors.exact) for name, tensor in group.items()}
            for tensor in narrowed.values():
                if tensor.dim() > 1:
                    widest = torch.promote_types(widest, tensor.dtype)
            yield narrowed

    write_layered(stored(), target)
    return widest


def _narrowed(tensor: torch.Tensor, exact: bool) -> torch.Tensor:
    """The same numbers in the narrowest type that holds them."""
    for dtype in (torch.bfloat16, torch.float16):
        # A few numbers tell nearly always, and cost nothing.
        if _holds(dtype, tensor.view(-1)[:1024]) and _holds(dtype, tensor):
            return tensor.to(dtype)
    if exact or tensor.dim() < 2:
        return tensor.to(torch.float32)
    return tensor.to(torch.bfloat16)


def _holds(dtype: torch.dtype, tensor: torch.Tensor) -> bool:
    return torch.equal(tensor.to(dtype).to(torch.float32), tensor)


def _some(names: dict[str, tuple[int, ...]]) -> str:
    shown = ", ".join(list(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
