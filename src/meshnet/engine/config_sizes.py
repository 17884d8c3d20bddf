"""The numbers of a model's configuration that everything is built on, held against bounds first.

Else an absurd one is found out by whatever is built on it: a split without layers, a skeleton that
takes all memory, a division by zero. torch is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshnet.core.vocabulary import ModelError

SIZES = {
    "num_hidden_layers": 10_000,
    "hidden_size": 2**20,
    "vocab_size": 2**31 - 1,
    "num_attention_heads": 2**16,
    "max_position_embeddings": 2**31 - 1,
}
"""The most of each that makes sense; the least is one."""
NOT_OF_ALL = ("num_attention_heads", "max_position_embeddings")
"""Where they are null or lists, that is what a family makes of them."""


def plain_config(file: Path) -> dict[str, Any]:
    """Return what a `config.json` says, as it stands there. Raises ModelError."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not readable as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file}: expected a JSON object")
    check_sizes(file, config)
    return config


def check_sizes(file: Path, config: Mapping[str, Any]) -> None:
    """Raise ModelError for a size that no model has. What is not said is the family's own."""
    inner = config.get("text_config")
    text, prefix = (inner, "text_config.") if isinstance(inner, dict) else (config, "")
    for name in [name for name in SIZES if name in text]:
        value, most = text[name], SIZES[name]
        if name in NOT_OF_ALL and not isinstance(value, int):
            continue
        if type(value) is not int or not 1 <= value <= most:
            got = json.dumps(value, default=str)[:40]
            raise ModelError(f"{file}: {prefix}{name}: expected 1 to {most}, got {got}")
