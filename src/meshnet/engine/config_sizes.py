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
    "num_hidden_layers": range(1, 10_001),
    "hidden_size": range(1, 2**20 + 1),
    "vocab_size": range(1, 2**31),
    "num_attention_heads": range(1, 2**16 + 1),
    "max_position_embeddings": range(-1, 2**31),
}
"""What makes sense. XLNet says by -1 that its positions have no end."""
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
        value, sizes = text[name], SIZES[name]
        if name in NOT_OF_ALL and not isinstance(value, int):
            continue
        if type(value) is not int or value not in sizes:
            got = json.dumps(value, default=str)[:40]
            expected = f"expected {sizes.start} to {sizes.stop - 1}"
            raise ModelError(f"{file}: {prefix}{name}: {expected}, got {got}")
