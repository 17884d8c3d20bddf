"""A shard that computes arithmetic in place of attention, and the oracle beside it.

A layer keeps a running number. Each new row is mixed, with its position,
into that number, and the number is the row's output: a lost, doubled, stale
or displaced position changes every later row. Only the five bits that name the
row's token pass through every layer as they are. Layers grow in place, one after
the other, like transformers' `DynamicCache`, so a step that fails midway
leaves layers of unequal length.

Rows are 64-bit integers and travel as two fp32 words (hidden size 2). The tail
draws by toy_drawing.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from meshnet.core.protocol.drafts import verified
from meshnet.core.protocol.marks import MARKS_MAX, Marks
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    BadField,
    Capabilities,
    Drawn,
    DType,
    KVBytes,
    KVCacheMiss,
    LayerRange,
    LayerState,
    MeshnetError,
    MissReason,
    ModelId,
    SampledToken,
    SamplingParams,
    ShardDescription,
    ShardStep,
    StepTorn,
    TensorSpec,
    WrongShard,
)
from meshnet.simulation.toy_drawing import CARRIED, VOCABULARY, draw, mix

HIDDEN_SIZE = 2
ROW_BYTES = 8
LAYER_BYTES_PER_TOKEN = 16
TOY_MODEL = ModelId("toy")
CHAIN = "chain"
"""What a layer holds, when it travels."""

CACHING = Capabilities(True, True, truncate=True, batch=True, moves=True, forced=True, grammar=True)
SUMMING = replace(CACHING, truncate=False, marks=MARKS_MAX)
"""Of layers whose states cannot be shortened, only put back."""


@dataclass(slots=True)
class ToyState:
    """One session on one shard: each layer's running number so far, the ids at the tail."""

    layers: LayerRange
    chains: list[list[int]]
    history: list[int] = field(default_factory=list)
    marks: Marks = Marks()  # noqa: RUF009

    @classmethod
    def fresh(cls, layers: LayerRange) -> ToyState:
        return cls(layers, [[layer + 1] for layer in layers_of(layers)])

    @property
    def lengths(self) -> list[int]:
        return [len(chain) - 1 for chain in self.chains]


def layers_of(layers: LayerRange) -> range:
    return range(layers.start, layers.stop)


def never() -> None:
    """A shard without faults: no step fails."""


@dataclass(slots=True)
class Running:
    """One step on its way through the layers."""

    step: ShardStep
    cache: ToyState
    rows: list[int]


class ToyShard:
    """Layers of the toy model. `fail_after` decides per step after how many layers it tears."""

    def __init__(
        self,
        layers: LayerRange,
        *,
        layers_total: int,
        model: ModelId = TOY_MODEL,
        fingerprint: str = "toy",
        context_length: int = 4096,
        capabilities: Capabilities = CACHING,
        fail_after: Callable[[], int | None] = never,
    ) -> None:
        self._fail_after, leaving = fail_after, ROW_BYTES * (layers.stop < layers_total)
        self._description = ShardDescription(
            model=model,
            fingerprint=fingerprint,
            layers=layers,
            layers_total=layers_total,
            dtype=DType.FP32,
            hidden_size=HIDDEN_SIZE,
            vocab_size=VOCABULARY,
            context_length=context_length,
            capabilities=capabilities,
            kv_bytes=KVBytes(LAYER_BYTES_PER_TOKEN * len(layers) + leaving, spare=leaving),
            weight_bytes=len(layers),
            bytes_read=len(layers),
            arithmetic="toy",
        )

    @property
    def description(self) -> ShardDescription:
        return self._description

    def new_state(self, layers: LayerRange) -> ToyState:
        return ToyState.fresh(layers)

    def state_bytes(self, state: ToyState) -> int:
        return LAYER_BYTES_PER_TOKEN * sum(state.lengths)

    def truncate(self, state: ToyState, length: int) -> None:
        """Forget the positions from `length` on.

        Raises:
            KVCacheMiss: it goes back to marks only, and there is none.
        """
        if not self.description.capabilities.truncate and length not in state.marks.lengths:
            raise KVCacheMiss(MissReason.PAST_LENGTH, f"no mark at {length}")
        state.marks = state.marks.cut(length)
        for chain in state.chains:
            del chain[length + 1 :]
        del state.history[length:]

    def export_layer(self, state: ToyState, layer: int) -> LayerState:
        chain = state.chains[layer - state.layers.start]
        spec = TensorSpec(CHAIN, DType.FP32, (len(chain), HIDDEN_SIZE))
        return LayerState((spec,), struct.pack(f"<{len(chain)}Q", *chain), state.marks.lengths)

    def restore_layer(self, state: ToyState, layer: int, held: LayerState, length: int) -> None:
        """Raises BadField if it holds another number of positions."""
        shapes = [spec.shape for spec in held.tensors]
        if shapes != [(length + 1, HIDDEN_SIZE)]:
            raise BadField("tensors", f"[{(length + 1, HIDDEN_SIZE)}]", shapes)
        chain = struct.unpack(f"<{length + 1}Q", held.data)
        state.chains[layer - state.layers.start][:] = chain
        state.marks = Marks(held.marks)

    def end_restore(self, state: ToyState, tokens: Sequence[int]) -> None:
        """Raises BadField if some layer holds another number of positions."""
        if set(state.lengths) != {len(tokens)}:
            raise BadField("layers", f"{len(tokens)} positions", state.lengths)
        state.history.extend(tokens)

    def text_of(self, token_id: int) -> str:
        return f"<{token_id}>"

    def run(self, step: ShardStep, state: ToyState | None) -> Activation | Drawn | None:
        """Run `step.layers` over the new rows, extending `state` in place.

        Raises:
            StepTorn: failed after some layers had grown; `state` must not be used again.
            BadField, WrongShard: before `state` was touched.
        """
        running = self._running(step, state)
        self._grow([running])
        return self._result(running)

    def run_batch(
        self, work: Sequence[tuple[ShardStep, ToyState]]
    ) -> list[Activation | Drawn | MeshnetError | None]:
        """Run steps of several sessions through the same layers, all rows in one pass.

        Raises:
            StepTorn: failed after some layers had grown; no state of them may be used again.
        """
        begun = [self._running_or_error(step, state) for step, state in work]
        self._grow([each for each in begun if isinstance(each, Running)])
        return [
            self._result(each) if isinstance(each, Running) else each.without_frames()
            for each in begun
        ]

    def _running_or_error(self, step: ShardStep, state: ToyState) -> Running | MeshnetError:
        try:
            return self._running(step, state)
        except MeshnetError as error:
            return error

    def _running(self, step: ShardStep, state: ToyState | None) -> Running:
        if not self._description.layers.holds(step.layers):
            raise WrongShard(f"expected layers in {self._description.layers}, got {step.layers}")
        rows = self._rows(step)
        cache = ToyState.fresh(step.layers) if state is None else state
        if cache.layers != step.layers:
            raise WrongShard(f"expected layers {cache.layers}, got {step.layers}")
        known = step.length - step.drafts
        cache.marks = cache.marks.before(step.past_length, known, want_token=step.want_token)
        return Running(step, cache, rows)

    def _result(self, running: Running) -> Activation | Drawn | None:
        step, cache, rows = running.step, running.cache, running.rows
        known, length = step.length - step.drafts, step.past_length + step.length
        cache.marks = cache.marks.after(length, known, want_token=step.want_token)
        if step.layers.stop < self._description.layers_total:
            return pack_rows(rows)
        sure = len(step.tokens) - step.drafts
        cache.history.extend(step.tokens[:sure])
        drawn = self._drawn(rows, step, cache.history) if step.want_token else None
        cache.history.extend(step.tokens[sure + (len(drawn.ids) - 1 if drawn else 0) :])
        return drawn

    def _rows(self, step: ShardStep) -> list[int]:
        if step.layers.start > 0:
            if step.activation is None:
                raise BadField("activation", "hidden states", None)
            return unpack_rows(step.activation, step.length)
        if len(step.tokens) != step.length:
            raise BadField("tokens", f"{step.length} ids", len(step.tokens))
        if any(not 0 <= token < VOCABULARY for token in step.tokens):
            raise BadField("tokens", f"ids below {VOCABULARY}", max(step.tokens))
        return [embed(token) for token in step.tokens]

    def _grow(self, batch: Sequence[Running]) -> None:
        """Take the rows of all sessions through the layers, each layer at once for all of them."""
        stop_after = self._fail_after()
        layers = {running.cache.layers for running in batch}
        assert len(layers) <= 1, "a batch goes through one range of layers"
        rows = [row for running in batch for row in running.rows]
        for index in range(len(next(iter(layers), ()))):
            if stop_after is not None and index >= stop_after:
                message = f"out of memory after {index} layers"
                raise StepTorn(message, out_of_memory=True)
            outs = [
                _extended(running.cache.chains[index], own, running.step.past_length)
                for running, own in zip(batch, self._split(rows, batch), strict=True)
            ]
            mixed = [out for own in outs for out in own]
            rows = [carrying(row, out) for row, out in zip(rows, mixed, strict=True)]
        for running, own in zip(batch, self._split(rows, batch), strict=True):
            running.rows = own

    def _split(self, rows: list[int], batch: Sequence[Running]) -> list[list[int]]:
        """Give the rows of a batch back to its sessions."""
        rest = iter(rows)
        return [list(islice(rest, len(running.rows))) for running in batch]

    def _drawn(self, rows: list[int], step: ShardStep, history: list[int]) -> Drawn:
        """Draw and verify the guesses, of which the history gets those that are accepted."""
        guesses = step.tokens[len(step.tokens) - step.drafts :]
        first = step.length - step.drafts

        def draw(count: int) -> SampledToken:
            history.extend(guesses[count - 1 : count])
            position = step.past_length + first + count
            return self._draw(rows[first - 1 + count], position, history, step.sampling)

        return verified(guesses, draw)

    def _draw(
        self, row: int, position: int, history: Sequence[int], sampling: SamplingParams
    ) -> SampledToken:
        return draw(row, position, history, sampling)


def _extended(chain: list[int], rows: Sequence[int], past_length: int) -> list[int]:
    """Mix new rows into a layer's running number; return what it was after each of them."""
    for position, row in enumerate(rows, start=past_length):
        chain.append(mix(chain[-1], mix(row, position)))
    return chain[len(chain) - len(rows) :]


def embed(token: int) -> int:
    return carrying(token, mix(0x6D657368, token))


def carrying(row: int, mixed: int) -> int:
    """Return `mixed` with the token that `row` carries, as a residual stream would keep it."""
    return mixed & ~CARRIED | row & CARRIED


def pack_rows(rows: Sequence[int]) -> Activation:
    spec = TensorSpec(HIDDEN, DType.FP32, (1, len(rows), HIDDEN_SIZE))
    return Activation((spec,), struct.pack(f"<{len(rows)}Q", *rows))


def unpack_rows(activation: Activation, length: int) -> list[int]:
    """Read the rows of an activation. Raises BadField if they are not `length` toy rows."""
    hidden = activation.hidden
    if hidden.shape[-2:] != (length, HIDDEN_SIZE) or hidden.nbytes != length * ROW_BYTES:
        raise BadField("activation", f"shape [1, {length}, {HIDDEN_SIZE}] fp32", hidden.shape)
    return list(struct.unpack(f"<{length}Q", activation.data))


def oracle(
    prompt: Sequence[int],
    sampling: SamplingParams,
    tokens_max: int,
    layers_total: int,
    stop_ids: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """The same model with no cache, no network and no failures; a stop id ends it and is kept."""
    tokens = list(prompt)
    for _ in range(tokens_max):
        rows = [embed(token) for token in tokens]
        for layer in range(layers_total):
            number, rows, below = layer + 1, [], rows
            for position, row in enumerate(below):
                number = mix(number, mix(row, position))
                rows.append(carrying(row, number))
        token = draw(rows[-1], len(tokens), tokens, sampling).token_id
        tokens.append(token)
        told = len(tokens) <= len(prompt) + len(sampling.forced)
        if token in stop_ids and not told:
            break
    return tuple(tokens[len(prompt) :])
