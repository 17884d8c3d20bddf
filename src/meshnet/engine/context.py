"""How many positions a model has: one reading for its shards and for its text.

Were the two to differ, the API would promise positions that nodes refuse. torch is not imported.
"""

from __future__ import annotations

from collections.abc import Callable

CONTEXT_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "seq_length",
)

UNLIMITED_CONTEXT = 1 << 20
"""For models that do not say (recurrent ones, ALiBi): as much as the wire carries."""


def stated_context(field: Callable[[str], object]) -> int | None:
    """The first length that a configuration states; `field` gives None for an absent one."""
    for name in CONTEXT_FIELDS:
        length = field(name)
        if isinstance(length, int) and not isinstance(length, bool) and length > 0:
            return length
    return None
