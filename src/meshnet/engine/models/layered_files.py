"""One safetensors file per group of tensors, and the index that transformers reads.

    head: embedding      model-00001-of-N.safetensors
    each decoder layer   model-00002 ... N-1
    tail: norm, lm_head  model-N

A node then opens only the files of its layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_layered(groups: Iterable[Mapping[str, torch.Tensor]], target: Path) -> None:
    """Write each group to a file of its own as it comes, then the index."""
    files: list[tuple[Path, list[str]]] = []
    total = 0
    for number, group in enumerate(groups):
        total += sum(tensor.nbytes for tensor in group.values())
        path = target / f"part-{number}.safetensors"
        save_file(dict(group), path, metadata={"format": "pt"})
        files.append((path, list(group)))
    _write_index(files, total, target)


def _write_index(files: list[tuple[Path, list[str]]], total: int, target: Path) -> None:
    weights: dict[str, str] = {}
    for number, (path, names) in enumerate(files, start=1):
        final = target / f"model-{number:05d}-of-{len(files):05d}.safetensors"
        path.rename(final)
        weights |= dict.fromkeys(names, final.name)
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    text = json.dumps(index, indent=2, sort_keys=True)
    (target / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")
