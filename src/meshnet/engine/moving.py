"""A session as plain tensors, layer by layer, and back: whatever runs the layers here or there.

    keys HTS, values HTS       of positions [length - T, length); a window has let go of the others
    conv_states.0              a state that sums up all positions, as transformers keeps it
    at.96.conv_states.0        the copy of it that the session can go back to at length 96

Invariants
    * what is exported is a copy: nothing that happens to the session later changes it;
    * what is restored was first held, whole, against the form of such a layer here: names, types
      and shapes; and before `end` every local layer must have been;
    * a session that was restored goes on bit for bit as the one that was exported.

Legend: H key/value heads, T positions held, S head size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DummyLayer, LinearAttentionLayer

from meshnet.core.protocol.marks import MARKS_MAX, Marks
from meshnet.core.vocabulary import BadField, LayerState, TensorSpec
from meshnet.engine.activations import TORCH_DTYPES, WIRE_DTYPES, bytes_of, tensor_over
from meshnet.engine.cache import unfilled_layers
from meshnet.engine.kv import KEY_GRID, BufferedLayer, first_key, kept_max
from meshnet.engine.runner import Runner, Segment
from meshnet.engine.selftest import random_input
from meshnet.engine.session_state import SessionState
from meshnet.engine.states import State, copied, has_state, state_of

ROWS = ("keys", "values")
_STATES = ("conv_states", "recurrent_states")
_AT = re.compile(r"at\.[0-9]+\.")
Form = Mapping[str, TensorSpec]
"""What a layer holds after one position, by name."""


class MovesSessions:
    """The part of a shard that exports and restores sessions. Blocking; on the compute thread."""

    _runner: Runner
    _forms: dict[int, Form] | None = None

    def export_layer(self, state: SessionState, layer: int) -> LayerState:
        """Return what one layer of a whole session holds."""
        return exported(state.cache, layer)

    def restore_layer(self, state: SessionState, layer: int, held: LayerState, length: int) -> None:
        """Put one layer into a fresh session that will be `length` positions long.

        Raises BadField if `held` is no such layer of this model, and `state` is as it was.
        """
        if self._forms is None:
            self._forms = forms_of(self._runner)
        check(held, self._forms[layer], length, _window(state.cache, layer))
        with torch.inference_mode():
            _put(state.cache, layer, held, length, self._runner.device)

    def end_restore(self, state: SessionState, tokens: Sequence[int]) -> None:
        """Say whose positions the restored layers hold. Raises BadField if some layer is not."""
        cache = state.cache
        left = unfilled_layers(cache)
        copies = getattr(cache, "copies", {})
        summing = {index for index, layer in enumerate(cache.layers) if has_state(layer)}
        if left or any(set(layers) != summing for layers in copies.values()):
            raise BadField("layers", "all layers of the session, with the same marks", left)
        cache.settle(len(tokens))
        state.length, state.marks = len(tokens), Marks(tuple(sorted(copies)))
        assert state.history is not None, "a fresh session knows its ids"
        state.history.extend(tokens)


def can_move(cache: Any) -> bool:
    """Whether everything that caches like this one hold is known here, layer by layer."""
    kinds = (BufferedLayer, DummyLayer)
    return not hasattr(cache, "linear_cache") and all(
        isinstance(layer, kinds) or type(layer) is LinearAttentionLayer for layer in cache.layers
    )


@torch.inference_mode()
def forms_of(runner: Runner) -> dict[int, Form]:
    """Find out what each held layer keeps, by one position."""
    cache = runner.new_cache(runner.held)
    runner.passing(random_input(runner, 1), runner.held, [Segment(0, 1, cache)])
    return {
        layer: {spec.name: spec for spec in exported(cache, layer).tensors}
        for layer in range(runner.held.start, runner.held.stop)
    }


def exported(cache: Any, layer: int) -> LayerState:
    """What a layer of `cache` holds, and the copies of its states."""
    named = list(_named(cache, layer))
    specs = tuple(TensorSpec(name, WIRE_DTYPES[t.dtype], tuple(t.shape)) for name, t in named)
    data = b"".join(bytes_of(tensor) for _, tensor in named)
    return LayerState(specs, data, _marks(cache, layer))


def _named(cache: Any, layer: int) -> Iterator[tuple[str, Tensor]]:
    held = _layer(cache, layer)
    if isinstance(held, BufferedLayer) and held.buffer.length > held.buffer.start:
        rows = held.buffer.last(held.buffer.length - held.buffer.start)
        yield from zip(ROWS, rows, strict=True)
    if has_state(held):
        yield from _states("", state_of(held))
    for length in _marks(cache, layer):
        yield from _states(f"at.{length}.", cache.copies[length][layer])


def _states(prefix: str, state: State) -> Iterator[tuple[str, Tensor]]:
    for kind in _STATES:
        for number, value in state[kind].items():
            if isinstance(value, Tensor):
                yield f"{prefix}{kind}.{number}", value


def _marks(cache: Any, layer: int) -> tuple[int, ...]:
    copies = getattr(cache, "copies", {})
    return tuple(sorted(length for length, layers in copies.items() if layer in layers))


def check(held: LayerState, form: Form, length: int, window: int | None) -> None:
    """Raise BadField unless `held` is what a layer of this form holds at `length`."""
    marks = held.marks
    states = [name for name in form if name not in ROWS]
    right = len(marks) <= MARKS_MAX and list(marks) == sorted({*marks})
    if not right or (marks and (not states or not 0 < marks[0] <= marks[-1] <= length)):
        raise BadField("marks", f"at most {MARKS_MAX} rising lengths up to {length}", marks)
    expected = [*form, *(f"at.{mark}.{name}" for mark in marks for name in states)]
    got = {spec.name: spec for spec in held.tensors}
    if len(got) < len(held.tensors) or set(got) != set(expected):
        raise BadField("tensors", f"{expected}", list(got))
    for name, spec in got.items():
        _check_one(spec, form[_AT.sub("", name, count=1)])
    if ROWS[0] in form:
        _check_rows(got[ROWS[0]], got[ROWS[1]], length, window)


def _check_one(spec: TensorSpec, form: TensorSpec) -> None:
    shape = spec.shape
    if form.name in ROWS and len(shape) == 3:
        shape = (shape[0], form.shape[1], shape[2])
    if shape != form.shape or spec.dtype is not form.dtype:
        expected = f"{form.dtype.value} {form.shape}"
        raise BadField(spec.name, expected, (spec.dtype.value, spec.shape))


def _check_rows(keys: TensorSpec, values: TensorSpec, length: int, window: int | None) -> None:
    rows = keys.shape[1]
    start = length - rows
    most = length if window is None else min(length, kept_max(window))
    seen = 0 <= start <= first_key(length, window) and start % KEY_GRID == 0
    if values.shape[1] != rows or rows > most or not seen:
        expected = f"positions from a multiple of {KEY_GRID} to {length} that its rows see"
        raise BadField("keys", expected, (keys.shape, values.shape))


def _put(cache: Any, layer: int, held: LayerState, length: int, device: torch.device) -> None:
    tensors, offset = {}, 0
    for spec in held.tensors:
        tensors[spec.name] = tensor_over(held.data, offset, spec).to(device)
        assert tensors[spec.name].dtype == TORCH_DTYPES[spec.dtype]
        offset += spec.nbytes
    target = _layer(cache, layer)
    if ROWS[0] in tensors:
        keys_HTS, values_HTS = (tensors[name] for name in ROWS)
        target.buffer.begin_at(length - keys_HTS.shape[1])
        target.buffer.append(keys_HTS, values_HTS)
    if has_state(target):
        _put_states(target, tensors)
    for mark in held.marks:
        state = copied(state_of(target))
        for kind in _STATES:
            for number in state[kind]:
                if (value := tensors.get(f"at.{mark}.{kind}.{number}")) is not None:
                    state[kind][number] = value.clone()
        cache.copies.setdefault(mark, {})[layer] = state


def _put_states(target: Any, tensors: Mapping[str, Tensor]) -> None:
    for kind in _STATES:
        for number in getattr(target, kind):
            if (value := tensors.get(f"{kind}.{number}")) is not None:
                target.lazy_initialization(**{kind: value}, state_idx=number)
                getattr(target, kind)[number].copy_(value)
                # transformers sets it with the convolution's state and with nothing else.
                target.has_previous_state[number] |= kind == _STATES[0]


def _layer(cache: Any, layer: int) -> Any:
    """A layer without a slot shares another's keys and values (Gemma 3n)."""
    return cache.layers[layer] if layer < len(cache.layers) else None


def _window(cache: Any, layer: int) -> int | None:
    held = _layer(cache, layer)
    return held.buffer.window if isinstance(held, BufferedLayer) else None
