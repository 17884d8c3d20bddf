"""Attention whose result for a row depends on its position and its keys, and on nothing else.

A row at position p reads the keys of whole cells, up to the end of the cell of p (kv.py); what
it must not see scores -inf and weighs exactly 0. Rows of one cell form one matrix product; rows of
different cells never do. Products of few rows go through other kernels than larger ones, so they
are filled up to `Tile.rows_min`, which the self-test finds.

    position     0..255   256..511   512..767
    row 300      [keys 0 .................. 511]        with 211 of them masked
    row 600      [keys 0 ............................. 767]

Legend: T new positions, H query heads, K key/value heads, G = H / K, D head size, S keys read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshnet.engine.kv import KVBuffer, cell_stop, first_key


@dataclass(frozen=True, slots=True)
class Shape:
    """What a layer's attention does beside softmax(q k) v."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None
    """One logit per head that takes part in the softmax and has no value (GPT-OSS)."""


def attend(
    query_THD: Tensor, held: KVBuffer, past_length: int, shape: Shape, *, rows_min: int
) -> Tensor:
    """Attend from positions [past_length, past_length + T), whose keys `held` has: THD."""
    stop = past_length + query_THD.shape[0]
    assert held.keys is not None
    assert held.values is not None
    assert held.length >= stop, f"{held.length} positions held, {stop} needed"
    parts = []
    position = past_length
    while position < stop:
        end = min(stop, cell_stop(position))
        first = first_key(position, shape.window) - held.start
        last = cell_stop(position) - held.start
        parts.append(
            _attend_in_cell(
                query_THD[position - past_length : end - past_length],
                held.keys[:, first:last],
                held.values[:, first:last],
                position - held.start - first,
                shape,
                rows_min,
            )
        )
        position = end
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_in_cell(
    query_THD: Tensor, keys_KSD: Tensor, values_KSD: Tensor, at: int, shape: Shape, rows_min: int
) -> Tensor:
    """Attend from rows of one cell; the first of them is at key `at`."""
    length, heads, size = query_THD.shape
    held_heads, span, _ = keys_KSD.shape
    group = heads // held_heads
    rows = length * group
    query_KRD = query_THD.view(length, held_heads, group, size).transpose(0, 1)
    query_KRD = query_KRD.reshape(held_heads, rows, size)
    if rows < rows_min:
        query_KRD = torch.cat([query_KRD, query_KRD[:, :1].expand(-1, rows_min - rows, -1)], 1)
    scores_KRS = torch.bmm(query_KRD, keys_KSD.transpose(1, 2)).mul_(shape.scaling)
    if shape.softcap is not None:
        scores_KRS.div_(shape.softcap).tanh_().mul_(shape.softcap)
    mask_TS = mask(length, span, at, shape.window, scores_KRS.dtype, scores_KRS.device)
    scores_KRS[:, :rows].view(held_heads, length, group, span).add_(mask_TS[None, :, None])
    weights_KRS = _softmax(scores_KRS, shape.sinks_H, rows)
    output_KRD = torch.bmm(weights_KRS, values_KSD)[:, :rows]
    output = output_KRD.reshape(held_heads, length, group, -1).transpose(0, 1)
    return output.reshape(length, heads, -1)


def mask(
    length: int,
    span: int,
    at: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """0 where row t at key `at + t` sees key s, -inf elsewhere: TS."""
    keys_S = torch.arange(span, device=device)
    rows_T1 = torch.arange(at, at + length, device=device)[:, None]
    hidden_TS = keys_S > rows_T1
    if window is not None:
        hidden_TS |= keys_S <= rows_T1 - window
    return torch.zeros(1, dtype=dtype, device=device).masked_fill(hidden_TS, float("-inf"))


def _softmax(scores_KRS: Tensor, sinks_H: Tensor | None, rows: int) -> Tensor:
    if sinks_H is None:
        return torch.softmax(scores_KRS, -1)
    heads = scores_KRS.shape[0]
    group = len(sinks_H) // heads
    sinks_KR1 = sinks_H.view(heads, 1, group).expand(-1, -(-scores_KRS.shape[1] // group), -1)
    sinks_KR1 = sinks_KR1.reshape(heads, -1, 1)[:, : scores_KRS.shape[1]].to(scores_KRS.dtype)
    return torch.softmax(torch.cat([scores_KRS, sinks_KR1], -1), -1)[..., :-1]
