"""What must be equal for shards to work together, and what a model says about itself.

    fingerprint   configuration, names and shapes of the whole model's tensors, names in the
                  checkpoint, tokenizer: differs, and the shards are of different models
    arithmetic    weight format, operators and what they yield, library versions, attention, kind
                  of device: differs, and the low bits of a result may differ

Two fine-tunes with equal configuration and tokenizer share a fingerprint: weights are not read
for it, since no node has them all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from meshnet.core.vocabulary import LayerRange, ModelError
from meshnet.engine.context import UNLIMITED_CONTEXT, stated_context
from meshnet.engine.formats import Form
from meshnet.engine.rotary import extended_context

VOLATILE = frozenset(
    ("transformers_version", "_name_or_path", "name_or_path", "dtype", "torch_dtype", "use_cache")
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")


def fingerprint(
    path: Path,
    config: Any,
    whole_shapes: Mapping[str, tuple[int, ...]],
    checkpoint_names: Sequence[str],
) -> str:
    """Digest of the model, equal on all nodes that hold parts of it."""
    digest = hashlib.sha256()
    for part in (_steady(config.to_dict()), sorted(whole_shapes.items()), sorted(checkpoint_names)):
        digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    for name in TOKENIZER_FILES:
        if (path / name).is_file():
            digest.update(name.encode() + hashlib.sha256((path / name).read_bytes()).digest())
    return digest.hexdigest()[:16]


def arithmetic(form: Form, attention: str, device: torch.device) -> str:
    """Digest of what decides the low bits of a result."""
    weights = (form.weights.value, form.operators, form.digest)
    parts = (*weights, torch.__version__, transformers.__version__, attention, device.type)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def context_length(config: Any) -> int:
    """Positions the model was made for; `UNLIMITED_CONTEXT` where it does not say."""
    text = config.get_text_config(decoder=True)
    stated = stated_context(lambda name: getattr(text, name, None))
    return UNLIMITED_CONTEXT if stated is None else extended_context(text, stated)


def inseparable_layers(config: Any) -> tuple[LayerRange, ...]:
    """Runs of layers that use each other's K/V within one forward (Gemma 3n and 4).

    From the first layer whose K/V others use to the last that uses them.
    """
    modes = getattr(config.get_text_config(decoder=True), "kv_sharing_modes", None) or ()
    involved = [index for index, mode in enumerate(modes) if mode is not None]
    return (LayerRange(involved[0], involved[-1] + 1),) if involved else ()


def check_separable(held: LayerRange, runs: Sequence[LayerRange]) -> None:
    """Raise ModelError if `held` cuts a run of inseparable layers."""
    for run in runs:
        apart = held.stop <= run.start or run.stop <= held.start
        if not apart and not held.holds(run):
            raise ModelError(
                f"layers {held} cut layers {run}, which share their K/V and must stay on one node;"
                f" cut at layer {run.start} or before, or at {run.stop} or after"
            )


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _steady(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list | tuple):
        return [_steady(item) for item in value]
    return value
