"""The short forward with whole steps compiled: what a runner does around `step.run`.

Weights are those of the short forward's joined layers (lean.py); keys and values lie in cells
(cells.py).

Invariants
    * memory that compiled code gets the addresses of is held by the runner or by the call;
    * what enters is not written to.

Legend: T rows of a step, R rows kept, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.compiled import step
from meshnet.engine.compiled.attention import SIZE_STEP
from meshnet.engine.compiled.cache import sources_digest
from meshnet.engine.compiled.cells import SessionCells
from meshnet.engine.compiled.product import CompiledProduct
from meshnet.engine.compiled.records import Ends, Layer, Segment, Shape, address, table
from meshnet.engine.compiled.region import is_large, region_for
from meshnet.engine.compiled.room import Rooms
from meshnet.engine.compiled.team import Team, team_of
from meshnet.engine.compiled.turns import Turns
from meshnet.engine.heap import give_back
from meshnet.engine.lean import LeanLayer, LeanRunner, norm_of
from meshnet.engine.linear import Int8Linear
from meshnet.engine.pointwise import SteadySiLU
from meshnet.engine.runner import Passing
from meshnet.engine.runner import Segment as Work

_NOTHING = Ends(0, 0.0, 0, 0, 0, 0, 0, 0)


def compiled_runner(lean: LeanRunner) -> CompiledRunner | None:
    """Return the compiled form of a joined short forward, if it is such that there is one."""
    layers = [lean.layers[index] for index in sorted(lean.layers)]
    if not all(map(_fits, layers)) or len(set(map(_shape, layers))) > 1:
        return None
    return CompiledRunner(lean, layers, team_of(torch.get_num_threads()))


class CompiledRunner:
    """The forward of a trimmed model of Llama's skeleton in int8, one call for a step."""

    leading_axes: tuple[int, ...] = ()
    per_layer_width = 0
    batches = True
    attention = f"compiled-{sources_digest(Path(step.__file__).parent)}"

    def __init__(self, lean: LeanRunner, layers: Sequence[LeanLayer], team: Team) -> None:
        self._team = team
        self.model, self._decoder = lean.model, lean.decoder
        self.held, self.total = lean.held, lean.total
        self.dtype, self.device = lean.dtype, lean.device
        self.hidden_size, self.vocab_size = lean.hidden_size, lean.vocab_size
        self._shape = _shape(layers[0])
        self._held: list[Tensor] = []
        self._gather_weights(layers)
        self._layers = table(map(self._record, layers))
        self._shapes = table([self._shape])
        self._rooms = Rooms(self._shape, team.parts)
        self._windows = [layer.shape.window for layer in layers]
        self._normed, self._drawn = (
            self._ends() if lean.held.stop == lean.total else (_NOTHING, None)
        )
        self._turns = Turns(lean.decoder.rotary_emb, layers[0].before_mlp.weight[None])

    def new_cache(self, layers: LayerRange) -> SessionCells:
        first = layers.start - self.held.start
        windows = self._windows[first : first + len(layers)]
        return SessionCells(self.total, layers, windows, self._shape.keys, self._shape.size)

    def passing(
        self, entering: Tensor | Passing, layers: LayerRange, segments: Sequence[Work]
    ) -> Passing:
        hidden_TD = self._entering(entering)
        self._run(hidden_TD, layers, segments, None, self._after(layers, hidden_TD))
        return Passing(hidden_TD[None])

    def logits(
        self,
        entering: Tensor | Passing,
        layers: LayerRange,
        segments: Sequence[Work],
        rows: Sequence[int],
    ) -> Tensor:
        hidden_TD = self._entering(entering)
        every = list(rows) == list(range(hidden_TD.shape[0]))
        kept_R = None if every else torch.tensor(rows)
        if self._drawn is None:
            self._run(hidden_TD, layers, segments, kept_R, self._after(layers, hidden_TD))
            logits_RV: Tensor = self.model.lm_head(hidden_TD[: len(rows)])
            return logits_RV
        logits_RV = hidden_TD.new_empty((len(rows), self._drawn.outputs))
        ends = self._drawn._replace(logits=logits_RV.data_ptr())
        self._run(hidden_TD, layers, segments, kept_R, ends)
        return logits_RV

    def _entering(self, entering: Tensor | Passing) -> Tensor:
        """Hidden states TD that the step may write to."""
        if isinstance(entering, Passing):
            return entering.hidden[0].clone(memory_format=torch.contiguous_format)
        embedded_TD: Tensor = self._decoder.embed_tokens(entering[0])
        return embedded_TD.contiguous()

    def _run(
        self,
        hidden_TD: Tensor,
        layers: LayerRange,
        work: Sequence[Work],
        kept_R: Tensor | None,
        ends: Ends,
    ) -> None:
        """Run layers over `hidden_TD`, in place."""
        caches = [self.new_cache(layers) if each.cache is None else each.cache for each in work]
        start, stop = min(each.past_length for each in work), max(each.stop for each in work)
        segments = table(self._segments(work, caches, self._turns.reaching(start, stop)))
        room, after = self._rooms.of(hidden_TD, stop, kept_R), table([ends])
        first = layers.start - self.held.start
        self._team.run(
            step.run,
            address(self._layers),
            first,
            first + len(layers),
            address(self._shapes),
            address(segments),
            len(work),
            room.record,
            address(after),
        )
        for each, cache in zip(work, caches, strict=True):
            cache.settle(each.stop)

    def _segments(
        self, work: Sequence[Work], caches: Sequence[SessionCells], turns: tuple[int, int]
    ) -> list[Segment]:
        """Make room in the sessions' cells, and tell where all of it is."""
        segments, start = [], 0
        for each, cache in zip(work, caches, strict=True):
            # Positions of a trial without a cache begin anywhere; what they see begins with them.
            past = cache.length
            cache.extend(each.length)
            behind = each.past_length * self._shape.size * 4
            cosine, sine = (turn + behind for turn in turns)
            segments.append(Segment(start, each.length, past, cosine, sine, cache.table))
            start += each.length
        return segments

    def _after(self, layers: LayerRange, normed_TD: Tensor) -> Ends:
        if layers.stop < self.total:
            return _NOTHING
        return self._normed._replace(normed=normed_TD.data_ptr())

    def _gather_weights(self, layers: Sequence[LeanLayer]) -> None:
        """Lay weights that are not large behind each other, in the order of a step."""
        linears = [linear for layer in layers for linear in _linears(layer)]
        every: list[CompiledProduct] = [linear.product for linear in linears]
        products = [product for product in every if not is_large(product.weights)]
        region = region_for(product.weights for product in products)
        for product in products:
            product.panels.weights = region.put(product.weights)
            give_back()  # or all weights would be held twice in the end

    def _head_is_ours(self) -> bool:
        head = self.model.lm_head
        return self.held.stop == self.total and _is_compiled(head) and head.rows == self._shape.pair

    def _ends(self) -> tuple[Ends, Ends | None]:
        """What follows the model's last layer: the norm alone, and with a head if it is ours."""
        norm, head = norm_of(self._decoder.norm), self.model.lm_head
        normed = _NOTHING._replace(norm=self._address(norm.weight), eps=norm.eps)
        if not self._head_is_ours():
            return normed, None
        weights, scales, bias = self._linear(head)
        drawn = normed._replace(
            head=weights, head_scales=scales, head_bias=bias, outputs=head.out_features
        )
        return normed, drawn

    def _record(self, layer: LeanLayer) -> Layer:
        of_heads = layer.of_heads
        return Layer(
            self._address(layer.before_attention.weight),
            layer.before_attention.eps,
            *self._linear(layer.qkv),
            0 if of_heads is None else self._address(of_heads.weight),
            0.0 if of_heads is None else of_heads.eps,
            *self._linear(layer.out),
            self._address(layer.before_mlp.weight),
            layer.before_mlp.eps,
            *self._linear(layer.gate_up),
            *self._linear(layer.down),
            layer.shape.window or 0,
        )

    def _linear(self, linear: Any) -> tuple[int, int, int]:
        product: CompiledProduct = linear.product
        bias = 0 if linear.bias is None else self._address(linear.bias)
        return product.weights.data_ptr(), product.scales.data_ptr(), bias

    def _address(self, weight: Tensor) -> int:
        weight = weight.detach().contiguous()
        self._held.append(weight)
        return weight.data_ptr()


def _linears(layer: LeanLayer) -> tuple[Any, ...]:
    return layer.qkv, layer.out, layer.gate_up, layer.down


def _fits(layer: LeanLayer) -> bool:
    linears = _linears(layer)
    if not all(map(_is_compiled, linears)) or len({linear.rows for linear in linears}) > 1:
        return False
    norms = (layer.before_attention.weight, layer.before_mlp.weight)
    plain = all(norm.dtype == torch.float32 and norm.is_cpu for norm in norms)
    return (
        plain and layer.size % SIZE_STEP == 0 and isinstance(layer.activation, SteadySiLU | nn.SiLU)
    )


def _is_compiled(linear: Any) -> bool:
    return isinstance(linear, Int8Linear) and isinstance(linear.product, CompiledProduct)


def _shape(layer: LeanLayer) -> Shape:
    return Shape(
        hidden=layer.gate_up.in_features,
        queries=layer.queries,
        keys=layer.keys,
        size=layer.size,
        inner=layer.down.in_features,
        pair=layer.qkv.rows,
        scaling=float(layer.shape.scaling),
    )
