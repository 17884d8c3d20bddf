"""Our attention behind transformers' `AttentionInterface`, which most of its models go through.

A model names the attention it uses in its configuration, and calls it with queries, keys and what
it wants beside: scaling, window, soft cap, sinks. Under a name of ours it builds no masks at all.
Keys say which buffer they are of (cache.py); keys that a model makes anew at every step (MLA,
hybrid layers, no cache at all) are laid out on the same grid first.

Invariants
    * what we do not know is refused, never ignored: such a model keeps its own attention;
    * the name says everything that decides the arithmetic, so that it can be told and compared.

Legend: B batch (1), H heads, T new positions, S keys, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.attention import Masks, Shape, attend, attend_each
from meshnet.engine.cache import Rows, rows_of
from meshnet.engine.kv import KEY_GRID, KVBuffer
from meshnet.engine.together import LAYOUT, Layout

IGNORED = frozenset(
    (
        "cache",
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "layer_idx",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    )
)
"""What models pass on and attention has no use for."""
_PREFIX = "meshnet-"
FAST_ROWS_MIN = 16
"""From so many rows on a step is a prefill, to which `fast` applies."""


class UnsupportedAttention(ValueError):
    """A model asks for something that our attention does not do."""


@dataclass(frozen=True, slots=True, order=True)
class AttentionCall:
    """The shapes of one call, by which the self-test tries the kernels."""

    heads: int
    kv_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True, slots=True)
class GridAttention:
    """Our attention with its parameters. `seen`, if given, gathers the shapes of its calls."""

    rows_min: int
    digest: str = ""
    """Of what the kernels of this machine make of fixed rows."""
    fast: bool = False
    seen: set[AttentionCall] | None = field(default=None, compare=False)
    masks: Masks = field(default_factory=Masks, compare=False)

    @property
    def name(self) -> str:
        kind = "fast-prefill" if self.fast else "probe" if self.seen is not None else "canonical"
        return f"{_PREFIX}{kind}-grid{KEY_GRID}-rows{self.rows_min}-{self.digest}"

    def register(self) -> str:
        """Make it known to transformers, and return the name it has there."""
        AttentionInterface.register(self.name, partial(_attention, settings=self))
        return self.name

    def attend_each(self, query_BHD: Tensor, buffers: Sequence[KVBuffer], shape: Shape) -> Tensor:
        """Attend from the last position of each of several sessions: BHD."""
        return attend_each(query_BHD, buffers, shape, rows_min=self.rows_min, masks=self.masks)

    def attend(self, query_THD: Tensor, rows: Rows, shape: Shape) -> Tensor:
        """Attend from the rows of one session, the last in their buffer: THD."""
        if rows.buffer.window != shape.window:
            raise UnsupportedAttention(f"a window of {shape.window}, not {rows.buffer.window}")
        plain = shape.softcap is None and shape.sinks_H is None
        if self.fast and plain and rows.length >= FAST_ROWS_MIN:
            return _sdpa(query_THD, rows, shape)
        return attend(
            query_THD,
            rows.buffer,
            rows.past_length,
            shape,
            rows_min=self.rows_min,
            masks=self.masks,
        )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    settings: GridAttention,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls. Takes BHTD, returns BTHD and no weights."""
    layout: Layout | None = others.pop(LAYOUT, None)
    unknown = [name for name, value in others.items() if value is not None and name not in IGNORED]
    if attention_mask is not None or is_causal is False or dropout or unknown:
        raise UnsupportedAttention(f"attention with {unknown or 'a mask, dropout or no order'}")
    if settings.seen is not None:
        settings.seen.add(_call(query, key, value))
    shape = Shape(
        query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap, s_aux
    )
    query_THD = query[0].transpose(0, 1)
    outputs, start = [], 0
    for rows in rows_of(key) or _laid_out(key, value, query.shape[2], sliding_window, layout):
        outputs.append(settings.attend(query_THD[start : start + rows.length], rows, shape))
        start += rows.length
    output_THD = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output_THD[None], None


def _call(query: Tensor, key: Tensor, value: Tensor) -> AttentionCall:
    if query.shape[0] != 1:
        raise UnsupportedAttention(f"attention over a batch axis of {query.shape[0]}")
    return AttentionCall(query.shape[1], key.shape[1], query.shape[-1], value.shape[-1])


def _laid_out(
    key: Tensor, value: Tensor, length: int, window: int | None, layout: Layout | None
) -> Iterator[Rows]:
    """Keys made anew for this step, each session's in a buffer of its own, from position 0 on."""
    start = 0
    for keys, rows in layout or ((key.shape[2], length),):
        buffer = KVBuffer(window)
        buffer.append(key[0, :, start : start + keys], value[0, :, start : start + keys])
        start += keys
        yield Rows(buffer, rows)


def _sdpa(query_THD: Tensor, rows: Rows, shape: Shape) -> Tensor:
    """Attend by torch's own kernel, whose sums depend on the shape of the call: THD."""
    buffer = rows.buffer
    keys_HSD, values_HSD = buffer.last(buffer.length - buffer.start)
    query_HTD = query_THD.transpose(0, 1)
    hidden_TS = None
    if shape.window is not None or keys_HSD.shape[1] != rows.length:
        keys_S = torch.arange(buffer.start, buffer.length, device=query_THD.device)
        rows_T1 = torch.arange(rows.past_length, buffer.length, device=query_THD.device)[:, None]
        hidden_TS = keys_S > rows_T1
        if shape.window is not None:
            hidden_TS |= keys_S <= rows_T1 - shape.window
    # With a batch axis: without one torch falls back to its slow path.
    output_BHTD = functional.scaled_dot_product_attention(
        query_HTD[None],
        keys_HSD[None],
        values_HSD[None],
        attn_mask=None if hidden_TS is None else ~hidden_TS,
        is_causal=hidden_TS is None,
        scale=shape.scaling,
        enable_gqa=query_HTD.shape[0] != keys_HSD.shape[0],
    )
    return output_BHTD[0].transpose(0, 1)


def refusal(config: Any, layers: LayerRange) -> str | None:
    """Why a model's attention cannot be ours, as far as its configuration tells."""
    text = config.get_text_config(decoder=True)
    types = getattr(text, "layer_types", None) or ()
    for name in ("chunked_attention", "indexed_attention", "hybrid_sliding"):
        if name in types[layers.start : layers.stop]:
            return f"{name} layers"
    if not types and getattr(text, "attention_chunk_size", None) is not None:
        return "chunked attention"
    return None


def is_ours(name: str) -> bool:
    return name.startswith(_PREFIX)


def implementations(model: nn.Module) -> Iterator[Callable[[str], None]]:
    """Setters of the attention of every configuration that a module of `model` reads."""
    distinct = {id(module.config): module.config for module in model.modules() if _reads(module)}
    for config in distinct.values():
        yield partial(setattr, config, "_attn_implementation")


def _reads(module: Any) -> bool:
    return hasattr(getattr(module, "config", None), "_attn_implementation")
