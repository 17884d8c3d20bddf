"""A short forward for models with Llama's skeleton, of about a third of transformers' operators.

    hidden --norm--> q, k, v --(norms)--> rotary --> K/V, attention --> o --+--> hidden
    hidden --norm--> gate, up --> activation * --> down --------------------+--> hidden

In a small model half of a token's time goes into the operators between the matrix products, 1 to
8 microseconds each. So projections of the same input are one product, and what follows works in
place. Each operator yields the bits of transformers' own; only a product of joined floating-point
weights may round otherwise.

Invariants
    * weights are held once: the joined ones replace those they were made of;
    * what enters is not written to;
    * one step at a time.

Which models may run here is decided elsewhere (lean_choice.py), by trial.

Legend: T new positions of all segments, L of one segment, R rows kept, D hidden, V vocabulary,
H query heads, K key/value heads, N = H + K, S head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.attention import Shape
from meshnet.engine.cache import Rows
from meshnet.engine.heap import give_back
from meshnet.engine.interface import GridAttention
from meshnet.engine.kv import KVBuffer
from meshnet.engine.linear import merged
from meshnet.engine.runner import Passing, Runner, Segment


@dataclass(frozen=True, slots=True)
class Rotary:
    """The turn of each position: cosine, and sine with the sign of `rotate_half`. Both T1S."""

    cosine: Tensor
    sine: Tensor

    @classmethod
    def of(cls, cosine_1TS: Tensor, sine_1TS: Tensor) -> Rotary:
        half = sine_1TS.shape[-1] // 2
        sine_1TS = torch.cat([-sine_1TS[..., :half], sine_1TS[..., half:]], -1)
        return cls(cosine_1TS[0, :, None], sine_1TS[0, :, None])

    def turn(self, heads_TNS: Tensor) -> None:
        other_TNS = heads_TNS.roll(heads_TNS.shape[-1] // 2, -1).mul_(self.sine)
        heads_TNS.mul_(self.cosine).add_(other_TNS)


class Norm:
    """Root mean square norm over the last axis."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        # An operator takes a Python number only after making a tensor of it.
        self._eps = torch.tensor(eps, dtype=torch.float32, device=weight.device)
        self._width = torch.tensor(float(weight.shape[-1]), device=weight.device)

    def __call__(self, hidden: Tensor) -> Tensor:
        if hidden.dtype == torch.float32:
            return torch.mul(hidden, self._scale(hidden)).mul_(self.weight)
        wide = hidden.float()
        return wide.mul_(self._scale(wide)).to(hidden.dtype).mul_(self.weight)

    def _scale(self, wide: Tensor) -> Tensor:
        squares = torch.sum(wide * wide, -1, True)
        return torch.addcdiv(self._eps, squares, self._width).rsqrt_()


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one segment of a step, and the cache of its session."""

    start: int
    length: int
    cache: Any


class LeanLayer:
    """One decoder layer, with the weights of the module it stands for."""

    def __init__(
        self, index: int, module: Any, *, window: int | None, attention: GridAttention
    ) -> None:
        projections, mlp = module.self_attn, module.mlp
        self._index = index
        self._module = module
        self.size: int = projections.head_dim
        self.queries: int = projections.q_proj.out_features // self.size
        self.keys: int = projections.k_proj.out_features // self.size
        self.shape = Shape(projections.scaling, window)
        self._grid = attention
        self.before_attention = norm_of(module.input_layernorm)
        self.before_mlp = norm_of(module.post_attention_layernorm)
        self.of_heads = _norm_of_heads(projections, self.queries, self.keys)
        self.qkv: Any = _Separate(projections.q_proj, projections.k_proj, projections.v_proj)
        self.gate_up: Any = _Separate(mlp.gate_proj, mlp.up_proj)
        self.out, self.down, self.activation = projections.o_proj, mlp.down_proj, mlp.act_fn
        self._in_place = isinstance(mlp.act_fn, nn.SiLU)

    def join(self) -> None:
        """Let projections of the same input be one product, and drop the separate weights."""
        attention, mlp = self._module.self_attn, self._module.mlp
        self.qkv = _joined(attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj") or self.qkv
        self.gate_up = _joined(mlp, ("gate_proj", "up_proj"), "gate_up_proj") or self.gate_up

    def __call__(
        self, hidden_TD: Tensor, rotary: Rotary, parts: Sequence[Part], kept: Tensor | None
    ) -> Tensor:
        """Run the layer; with `kept`, what leaves are the hidden states of those rows."""
        attended_TD = self._attended(hidden_TD, rotary, parts)
        if kept is not None:
            attended_TD, hidden_TD = attended_TD[kept], hidden_TD[kept]
        hidden_TD = self.out(attended_TD).add_(hidden_TD)
        gate, up = self.gate_up(self.before_mlp(hidden_TD)).chunk(2, -1)
        gate = functional.silu(gate, inplace=True) if self._in_place else self.activation(gate)
        passed_TD: Tensor = self.down(gate.mul_(up))
        return passed_TD.add_(hidden_TD)

    def _attended(self, hidden_TD: Tensor, rotary: Rotary, parts: Sequence[Part]) -> Tensor:
        qkv = self.qkv(self.before_attention(hidden_TD))
        qkv = qkv.view(qkv.shape[0], -1, self.size)
        turned_TNS = qkv.narrow(1, 0, self.queries + self.keys)
        value_TKS = qkv.narrow(1, self.queries + self.keys, self.keys)
        if self.of_heads is not None:
            turned_TNS = self.of_heads(turned_TNS)
        rotary.turn(turned_TNS)
        for part in parts:
            rows = turned_TNS.narrow(0, part.start, part.length)
            key_LKS = rows.narrow(1, self.queries, self.keys)
            value_LKS = value_TKS.narrow(0, part.start, part.length)
            self.buffer(part).append(key_LKS.transpose(0, 1), value_LKS.transpose(0, 1))
        return self.attended(turned_TNS.narrow(1, 0, self.queries), parts)

    def buffer(self, part: Part) -> KVBuffer:
        buffer: KVBuffer = part.cache.layers[self._index].buffer
        return buffer

    def attended(self, query_THS: Tensor, parts: Sequence[Part]) -> Tensor:
        """Attend from rows whose keys and values are in their buffers: TD."""
        if len(parts) > 1 and len(parts) == len(query_THS):
            buffers = [self.buffer(part) for part in parts]
            return self._grid.attend_each(query_THS, buffers, self.shape).flatten(1)
        attended_TD = [
            self._grid.attend(
                query_THS.narrow(0, part.start, part.length),
                Rows(self.buffer(part), part.length),
                self.shape,
            ).flatten(1)
            for part in parts
        ]
        return attended_TD[0] if len(parts) == 1 else torch.cat(attended_TD)


class _Separate:
    """Projections of one input whose weights are not joined yet."""

    def __init__(self, *projections: nn.Module) -> None:
        self._projections = projections

    def __call__(self, hidden_TD: Tensor) -> Tensor:
        return torch.cat([project(hidden_TD) for project in self._projections], -1)


class LeanRunner:
    """The forward of a trimmed model of Llama's skeleton, for any range of the layers it holds."""

    leading_axes: tuple[int, ...] = ()
    per_layer_width = 0
    batches = True

    def __init__(
        self, model: Any, generic: Runner, attention: GridAttention, *, exact: bool
    ) -> None:
        """`exact`: joined weights round as separate ones do."""
        self.model = model
        self.decoder: Any = model.meshnet_layers.decoder
        self._new_cache = generic.new_cache
        self.attention = attention.name if exact else f"{attention.name}-lean"
        self.held, self.total = generic.held, generic.total
        self.dtype, self.device = generic.dtype, generic.device
        self.hidden_size, self.vocab_size = generic.hidden_size, generic.vocab_size
        slots = self._new_cache(self.held).layers
        made = {}
        for index in range(self.held.start, self.held.stop):
            module, window = model.meshnet_layers.layer(index), slots[index].buffer.window
            made[index] = LeanLayer(index, module, window=window, attention=attention)
        self.layers = made

    def join(self) -> None:
        """Join weights, layer by layer; no other forward of the model works from then on."""
        for layer in self.layers.values():
            layer.join()
            give_back()  # before the next layer has its weights twice

    def new_cache(self, layers: LayerRange) -> Any:
        return self._new_cache(layers)

    def passing(
        self, entering: Tensor | Passing, layers: LayerRange, segments: Sequence[Segment]
    ) -> Passing:
        """Run `layers` and return what leaves them, after the final norm if they end the model."""
        hidden_TD = self._run(entering, layers, segments, None)
        if layers.stop == self.total:
            hidden_TD = self.decoder.norm(hidden_TD)
        return Passing(hidden_TD[None])

    def logits(
        self,
        entering: Tensor | Passing,
        layers: LayerRange,
        segments: Sequence[Segment],
        rows: Sequence[int],
    ) -> Tensor:
        """Run `layers`, which end at the model's last; logits RV. The last layer's MLP, norm and
        head see no other rows."""
        every = list(rows) == list(range(sum(segment.length for segment in segments)))
        kept = None if every else torch.tensor(rows, device=self.device)
        hidden_RD = self._run(entering, layers, segments, kept)
        logits_RV: Tensor = self.model.lm_head(self.decoder.norm(hidden_RD))
        return logits_RV

    def _run(
        self,
        entering: Tensor | Passing,
        layers: LayerRange,
        segments: Sequence[Segment],
        kept: Tensor | None,
    ) -> Tensor:
        if isinstance(entering, Passing):
            hidden_TD = entering.hidden[0]
        else:
            hidden_TD = self.decoder.embed_tokens(entering[0])
        rotary, parts = self._rotary(hidden_TD, segments), self._parts(layers, segments)
        for index in range(layers.start, layers.stop):
            last = index == layers.stop - 1
            hidden_TD = self.layers[index](hidden_TD, rotary, parts, kept if last else None)
        for segment, part in zip(segments, parts, strict=True):
            part.cache.settle(segment.stop)
        return hidden_TD

    def _parts(self, layers: LayerRange, segments: Sequence[Segment]) -> list[Part]:
        parts, start = [], 0
        for segment in segments:
            cache = self._new_cache(layers) if segment.cache is None else segment.cache
            parts.append(Part(start, segment.length, cache))
            start += segment.length
        return parts

    def _rotary(self, hidden_TD: Tensor, segments: Sequence[Segment]) -> Rotary:
        positions = [
            torch.arange(segment.past_length, segment.stop, device=self.device)
            for segment in segments
        ]
        positions_T = positions[0] if len(positions) == 1 else torch.cat(positions)
        return Rotary.of(*self.decoder.rotary_emb(hidden_TD[None], positions_T[None]))


def norm_of(module: Any) -> Norm:
    return Norm(module.weight, _eps(module))


def _eps(norm: Any) -> float:
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def _norm_of_heads(attention: Any, queries: int, keys: int) -> Norm | None:
    """The norm of query and key heads (Qwen3), for both at once."""
    if not hasattr(attention, "q_norm"):
        return None
    query, key = attention.q_norm, attention.k_norm
    if _eps(query) != _eps(key):
        raise ValueError("norms of queries and keys differ")
    weight_NS = torch.cat([query.weight.expand(queries, -1), key.weight.expand(keys, -1)])
    return Norm(weight_NS, _eps(query))


def _joined(module: nn.Module, names: Sequence[str], name: str) -> nn.Module | None:
    """Hang one projection into `module` in place of several; None if they are of unlike kinds."""
    try:
        joined = merged([getattr(module, old) for old in names])
    except TypeError:
        return None
    for old in names:
        delattr(module, old)
    module.add_module(name, joined)
    return joined
