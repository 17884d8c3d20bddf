"""What a GGUF file says: metadata, and where each tensor lies. Nothing of it is trusted.

    magic | version | tensor count | metadata count | key, type, value ... | tensor table | data

Every length is checked against the file before it is used, so a cut or hostile file is a
ModelError and neither a crash nor an allocation. Tensor data is mapped, never read here.

`gguf.GGUFReader` makes Python objects of each token and takes 25 s for a vocabulary of 49,000;
this takes 0.2 s. Format: ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from meshnet.core.vocabulary import ModelError

MAGIC = b"GGUF"
_ALIGNMENT = "general.alignment"
_STRING, _ARRAY, _BOOL = 8, 9, 7
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_DIMENSIONS_MAX = 8
_NESTING_MAX = 4

MetaValue = str | int | float | bool | list["MetaValue"]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its shape slowest dimension first (as torch), its place in the file in bytes."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    version: int
    metadata: dict[str, MetaValue]
    spans: dict[str, tuple[int, int]]
    """Where each metadata entry, key included, lies in the file."""
    tensors: tuple[TensorEntry, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def entry_bytes(self, key: str) -> bytes:
        start, stop = self.spans[key]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def stored(self, tensor: TensorEntry) -> np.ndarray:
        """The tensor's bytes as stored, mapped: rows of blocks, shape [..., bytes of a row]."""
        mapped = np.memmap(
            self.path, mode="r", dtype=np.uint8, offset=tensor.offset, shape=(tensor.nbytes,)
        )
        return mapped.reshape(*tensor.shape[:-1], -1)


def read_gguf(path: Path) -> GgufFile:
    """Read a file's metadata and tensor table. Raises ModelError."""
    try:
        return _Reader(path).file()
    except (struct.error, UnicodeDecodeError, ValueError, OSError, OverflowError) as error:
        raise ModelError(f"{path}: not a readable GGUF file: {error}") from error


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        if self._size < 24:
            raise ValueError(f"expected a header of 24 bytes, the file has {self._size}")
        self._bytes = np.memmap(path, mode="r", dtype=np.uint8).data
        self._at = 0

    def file(self) -> GgufFile:
        if bytes(self._taken(4)) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, tensors, entries = self._unpacked("IQQ")
        if version not in (2, 3):
            raise ValueError(f"expected version 2 or 3, got {version}")
        metadata: dict[str, MetaValue] = {}
        spans = {}
        for _ in range(self._count(entries, least=13)):
            start = self._at
            key = self._string()
            (kind,) = self._unpacked("I")
            metadata[key] = self._value(kind, depth=0)
            spans[key] = (start, self._at)
        table = [self._tensor() for _ in range(self._count(tensors, least=24))]
        alignment = metadata.get(_ALIGNMENT, 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise ValueError(f"{_ALIGNMENT}: got {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return GgufFile(
            path=self._path,
            version=version,
            metadata=metadata,
            spans=spans,
            tensors=tuple(self._placed(tensor, start) for tensor in table),
        )

    def _placed(self, tensor: TensorEntry, start: int) -> TensorEntry:
        offset = start + tensor.offset
        if offset + tensor.nbytes > self._size:
            raise ValueError(
                f"tensor {tensor.name} ends at byte {offset + tensor.nbytes}, "
                f"the file at {self._size}: it is cut off"
            )
        return TensorEntry(tensor.name, tensor.shape, tensor.kind, offset, tensor.nbytes)

    def _tensor(self) -> TensorEntry:
        name = self._string()
        (dimensions,) = self._unpacked("I")
        if not 0 < dimensions <= _DIMENSIONS_MAX:
            raise ValueError(f"tensor {name}: got {dimensions} dimensions")
        shape = tuple(reversed(self._unpacked(f"{dimensions}Q")))
        number, offset = self._unpacked("IQ")
        kind = GGMLQuantizationType(number)
        elements_per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
        elements = math.prod(shape)
        if elements == 0 or shape[-1] % elements_per_block:
            raise ValueError(f"tensor {name}: shape {shape} does not fit {kind.name}")
        return TensorEntry(
            name, shape, kind, offset, elements // elements_per_block * bytes_per_block
        )

    def _value(self, kind: int, depth: int) -> MetaValue:
        if kind in _FORMATS:
            return self._unpacked(_FORMATS[kind])[0]  # type: ignore[no-any-return]
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth > _NESTING_MAX:
            raise ValueError(f"metadata of unknown type {kind}")
        inner, count = self._unpacked("IQ")
        if inner in _FORMATS:
            width = struct.calcsize("<" + _FORMATS[inner])
            return list(self._unpacked(f"{self._count(count, least=width)}{_FORMATS[inner]}"))
        return [self._value(inner, depth + 1) for _ in range(self._count(count, least=8))]

    def _string(self) -> str:
        (length,) = self._unpacked("Q")
        return str(self._taken(length), "utf-8")

    def _count(self, count: int, least: int) -> int:
        """A number of items that take at least `least` bytes each must fit in what is left."""
        if count * least > self._size - self._at:
            raise ValueError(f"{count} items announced at byte {self._at}, the file is too short")
        return count

    def _unpacked(self, form: str) -> tuple:  # type: ignore[type-arg]
        return struct.unpack("<" + form, self._taken(struct.calcsize("<" + form)))

    def _taken(self, length: int) -> memoryview:
        if length > self._size - self._at:
            raise ValueError(f"{length} bytes expected at byte {self._at}, the file is too short")
        self._at += length
        return self._bytes[self._at - length : self._at]
