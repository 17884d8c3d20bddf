"""Attention whose result for a row depends on its position and its keys, and on nothing else.

A row at position p reads the keys of whole cells, up to the end of the cell of p (kv.py); what
it must not see scores -inf and weighs exactly 0. Rows of one cell form one matrix product; rows of
different cells never do. Products of few rows go through other kernels than larger ones, so they
are filled up to `Tile.rows_min`, which the self-test finds.

    position     0..255   256..511   512..767
    row 300      [keys 0 .................. 511]        with 211 of them masked
    row 600      [keys 0 ............................. 767]

Legend: B sessions, T new positions, R rows, H query heads, K key/value heads, G = H / K, D head
size, S keys read.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class Masks:
    """The masks of a step, kept since all layers ask for the same: 0 for what a row sees, or -inf.

    At most `MASK_VALUES_MAX` values are kept; a larger mask is made anew for every layer.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Tensor] = {}

    def of(
        self, rows: int, group: int, span: int, at: int, window: int | None, like: Tensor
    ) -> Tensor:
        """Return the mask RS of `rows` rows, `group` of each position, from key `at` on."""
        key = (rows, group, span, at, window, like.dtype, like.device)
        mask_RS = self._kept.get(key)
        if mask_RS is None:
            mask_RS = _mask(rows, group, span, at, window, like)
            self._keep(key, mask_RS)
        return mask_RS

    def _keep(self, key: tuple[object, ...], mask_RS: Tensor) -> None:
        room = MASK_VALUES_MAX - mask_RS.numel()
        if room < 0:
            return
        while sum(map(Tensor.numel, self._kept.values())) > room:
            self._kept.pop(next(iter(self._kept)))
        self._kept[key] = mask_RS


MASK_VALUES_MAX = 1 << 20


def attend(
    query_THD: Tensor,
    held: KVBuffer,
    past_length: int,
    shape: Shape,
    *,
    rows_min: int,
    masks: Masks | None = None,
) -> Tensor:
    """Attend from positions [past_length, past_length + T), whose keys `held` has: THD."""
    stop = past_length + query_THD.shape[0]
    assert held.length >= stop, f"{held.length} positions held, {stop} needed"
    masks = masks or Masks()
    parts = []
    position = past_length
    while position < stop:
        end = min(stop, cell_stop(position))
        cell_THD = query_THD
        if end - position < len(query_THD):
            cell_THD = query_THD.narrow(0, position - past_length, end - position)
        parts.append(_attend_in_cell(cell_THD, _Cell.of(held, position, shape), rows_min, masks))
        position = end
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_each(
    query_BHD: Tensor, held: Sequence[KVBuffer], shape: Shape, *, rows_min: int, masks: Masks
) -> Tensor:
    """Attend from the last position of each of B buffers: BHD, the bits that `attend` yields."""
    batch, heads, size = query_BHD.shape
    assert held[0].keys is not None
    held_heads = held[0].keys.shape[0]
    group = heads // held_heads
    query_BKRD = _filled(query_BHD.reshape(batch, held_heads, group, size), rows_min)
    outputs = [
        _weighed(query_KRD, _Cell.of(buffer, buffer.length - 1, shape), group, masks)
        for query_KRD, buffer in zip(query_BKRD.unbind(0), held, strict=True)
    ]
    output_BKRD = torch.stack(outputs)
    if group < rows_min:
        output_BKRD = output_BKRD.narrow(2, 0, group)
    return output_BKRD.reshape(batch, heads, -1)


@dataclass(frozen=True, slots=True)
class _Cell:
    """What the rows of one cell read, the first of them from key `at`."""

    keys_KSD: Tensor
    values_KSD: Tensor
    at: int
    shape: Shape

    @classmethod
    def of(cls, held: KVBuffer, position: int, shape: Shape) -> _Cell:
        keys_KSD, values_KSD = held.keys, held.values
        assert keys_KSD is not None
        assert values_KSD is not None
        first = first_key(position, shape.window) - held.start
        last = cell_stop(position) - held.start
        if first or last < keys_KSD.shape[1]:
            keys_KSD = keys_KSD.narrow(1, first, last - first)
            values_KSD = values_KSD.narrow(1, first, last - first)
        return cls(keys_KSD, values_KSD, position - held.start - first, shape)


def _attend_in_cell(query_THD: Tensor, cell: _Cell, rows_min: int, masks: Masks) -> Tensor:
    """Attend from rows of one cell."""
    length, heads, size = query_THD.shape
    held_heads = cell.keys_KSD.shape[0]
    group = heads // held_heads
    if length == 1:
        query_KRD = query_THD.reshape(held_heads, group, size)
    else:
        query_KRD = query_THD.view(length, held_heads, group, size).transpose(0, 1)
        query_KRD = query_KRD.reshape(held_heads, length * group, size)
    output_KRD = _weighed(_filled(query_KRD, rows_min), cell, group, masks)
    if length * group < rows_min:
        output_KRD = output_KRD.narrow(1, 0, length * group)
    if length == 1:
        return output_KRD.reshape(1, heads, -1)
    output = output_KRD.view(held_heads, length, group, -1).transpose(0, 1)
    return output.reshape(length, heads, -1)


def _weighed(query_KRD: Tensor, cell: _Cell, group: int, masks: Masks) -> Tensor:
    """Values weighed by how well queries and keys match: KRD."""
    shape = cell.shape
    rows, span = query_KRD.shape[1], cell.keys_KSD.shape[1]
    mask_RS = masks.of(rows, group, span, cell.at, shape.window, query_KRD)
    keys_KDS = cell.keys_KSD.transpose(1, 2)
    if shape.softcap is None:
        scores_KRS = torch.baddbmm(mask_RS, query_KRD, keys_KDS, alpha=shape.scaling)
    else:
        scores_KRS = torch.bmm(query_KRD, keys_KDS).mul_(shape.scaling / shape.softcap)
        scores_KRS.tanh_().mul_(shape.softcap).add_(mask_RS)
    return torch.bmm(_softmax(scores_KRS, shape.sinks_H), cell.values_KSD)


def _filled(query: Tensor, rows_min: int) -> Tensor:
    """At least `rows_min` rows along the last axis but one; what fills up is never looked at."""
    missing = rows_min - query.shape[-2]
    if missing <= 0:
        return query
    first = query.narrow(-2, 0, 1)
    return torch.cat([query, first.expand(*query.shape[:-2], missing, -1)], -2)


def _mask(rows: int, group: int, span: int, at: int, window: int | None, like: Tensor) -> Tensor:
    length = -(-rows // group)
    keys_S = torch.arange(span, device=like.device)
    # Rows that only fill up may lie beyond the cell; they must see something all the same.
    rows_T1 = torch.arange(at, at + length, device=like.device).clamp_max_(span - 1)[:, None]
    hidden_TS = keys_S > rows_T1
    if window is not None:
        hidden_TS |= keys_S <= rows_T1 - window
    mask_TS = like.new_zeros(1).masked_fill(hidden_TS, float("-inf"))
    return mask_TS.repeat_interleave(group, 0)[:rows]


def _softmax(scores_KRS: Tensor, sinks_H: Tensor | None) -> Tensor:
    if sinks_H is None:
        return torch.softmax(scores_KRS, -1)
    heads, rows, _ = scores_KRS.shape
    group = len(sinks_H) // heads
    sinks_KR1 = sinks_H.view(heads, 1, group).expand(-1, -(-rows // group), -1)
    sinks_KR1 = sinks_KR1.reshape(heads, -1, 1)[:, :rows].to(scores_KRS.dtype)
    return torch.softmax(torch.cat([scores_KRS, sinks_KR1], -1), -1)[..., :-1]
