"""What a shard does with one step, and what it refuses before its cache is touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.families import LAYERS, VOCAB_SIZE, save_family
from tests.family_rows import TOKENS, prompt
from tests.shard_chain import Chain, unsplit
from tests.shard_steps import (
    MIDDLE,
    activation_of,
    hidden_of,
    hidden_step,
    ids_step,
    values_of,
)

from meshnet.core.vocabulary import (
    Activation,
    BadField,
    DType,
    KVCacheMiss,
    LayerRange,
    MissReason,
    NumericalError,
    WeightFormat,
    WrongShard,
)
from meshnet.engine.loading import load_shard
from meshnet.engine.shard import TorchModelShard

CLOSE = 1e-4
"""Of logits to those of transformers, whose attention sums in another order."""


@pytest.fixture(scope="module")
def middle(llama: Path) -> TorchModelShard:
    return load_shard(llama, MIDDLE)


# --- ranges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(0, 3, 6), (0, 1, 2, 5, 6), (0, 6)], ids=str)
def test_any_part_of_the_held_layers_runs_as_if_it_were_all(llama: Path, cuts: tuple[int, ...]):
    """Overlapping shards: a route names the layers, a node may hold more."""
    reference = unsplit(llama, prompt(), TOKENS)
    whole = load_shard(llama, LayerRange(0, LAYERS), weights=WeightFormat.FP32)
    parts = [LayerRange(start, stop) for start, stop in pairwise(cuts)]

    answer = Chain([whole] * len(parts), parts).generate(prompt(), TOKENS)

    assert answer.ids == reference.ids
    assert answer.difference(reference) < CLOSE
    assert torch.equal(answer.logits, Chain([whole]).generate(prompt(), TOKENS).logits)


def test_inputs_of_later_layers_travel_with_the_hidden_states(tmp_path: Path):
    """Gemma 3n computes them from the ids, which only the first layers see."""
    path = save_family(tmp_path, "gemma3n")
    reference = unsplit(path, prompt(), TOKENS)
    whole = load_shard(path, LayerRange(0, LAYERS), weights=WeightFormat.FP32)
    parts = [LayerRange(0, 1), LayerRange(1, 2), LayerRange(2, LAYERS)]

    answer = Chain([whole] * len(parts), parts).generate(prompt(), TOKENS)

    assert answer.difference(reference) < CLOSE
    assert torch.equal(answer.logits, Chain([whole]).generate(prompt(), TOKENS).logits)


def test_a_part_that_cuts_layers_sharing_their_kv_is_refused(tmp_path: Path):
    """Pit A74."""
    path = save_family(tmp_path, "gemma3n")
    whole = load_shard(path, LayerRange(0, LAYERS), weights=WeightFormat.FP32)

    with pytest.raises(WrongShard, match="share their K/V"):
        whole.new_state(LayerRange(0, 3))

    assert whole.description.inseparable == (LayerRange(2, LAYERS),)


def test_sessions_on_different_parts_do_not_disturb_each_other(middle: TorchModelShard):
    hidden = hidden_of(5)
    alone = values_of(middle.run(hidden_step(MIDDLE, hidden), middle.new_state(MIDDLE)))
    state = middle.new_state(MIDDLE)

    first = values_of(middle.run(hidden_step(MIDDLE, hidden[:, :4]), state))
    part = LayerRange(3, 4)
    middle.run(hidden_step(part, hidden_of(3)), middle.new_state(part))
    last = values_of(middle.run(hidden_step(MIDDLE, hidden[:, 4:], past=4), state))

    torch.testing.assert_close(torch.cat([first, last], 1), alone, rtol=1e-4, atol=1e-4)


def test_a_state_takes_room_for_its_own_layers_only(middle: TorchModelShard):
    both, one = middle.new_state(MIDDLE), middle.new_state(LayerRange(2, 3))

    middle.run(hidden_step(MIDDLE, hidden_of(8)), both)
    middle.run(hidden_step(LayerRange(2, 3), hidden_of(8)), one)

    assert middle.state_bytes(both) == 2 * middle.state_bytes(one) > 0


@pytest.mark.parametrize("tokens", [1, 9, 40])
def test_the_bytes_of_a_session_are_what_the_description_says(middle: TorchModelShard, tokens: int):
    state = middle.new_state(MIDDLE)

    middle.run(hidden_step(MIDDLE, hidden_of(tokens)), state)

    said = middle.description.kv_bytes
    assert middle.state_bytes(state) == said.without_spare().of(tokens)
    assert said.of(tokens) == said.without_spare().of(tokens) + said.spare_of(tokens)


def test_a_row_that_leaves_the_layers_is_what_the_description_says(middle: TorchModelShard):
    left = middle.run(hidden_step(MIDDLE, hidden_of(9)), middle.new_state(MIDDLE))

    assert isinstance(left, Activation)
    assert len(left.data) == 9 * middle.description.kv_bytes.spare


def test_nothing_leaves_the_last_layers(tail: TorchModelShard):
    assert tail.description.kv_bytes.spare == 0


@pytest.mark.parametrize("layers", [LayerRange(0, 2), LayerRange(1, 3), LayerRange(3, 5)], ids=str)
def test_layers_that_are_not_held_are_refused(middle: TorchModelShard, layers: LayerRange):
    with pytest.raises(WrongShard, match="holds 2-4"):
        middle.run(hidden_step(layers, hidden_of(2)), None)


# --- what enters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("shift", [0, 3], ids=["aligned", "unaligned"])
def test_hidden_states_are_taken_from_any_buffer(
    middle: TorchModelShard, buffer: Callable[[bytes], Any], shift: int
):
    """A body may begin anywhere in what was received."""
    step = hidden_step(MIDDLE, hidden_of(3))
    assert step.activation is not None
    expected = values_of(middle.run(step, None))
    received = bytes(shift) + bytes(step.activation.data)
    data = memoryview(buffer(received))[shift:] if shift else buffer(received)

    output = middle.run(replace(step, activation=replace(step.activation, data=data)), None)

    assert torch.equal(values_of(output), expected)


def test_what_leaves_is_not_copied_and_what_enters_is_not_written_to(middle: TorchModelShard):
    step = hidden_step(MIDDLE, hidden_of(3))
    assert step.activation is not None
    before = bytes(step.activation.data)
    data = bytearray(before)

    output = middle.run(replace(step, activation=replace(step.activation, data=data)), None)

    assert isinstance(output, Activation)
    assert isinstance(output.data, memoryview)
    assert bytes(data) == before


@pytest.mark.parametrize(
    "shape", [(1, 3, 63), (3, 64), (2, 3, 64), (1, 4, 64), (1, 3, 64, 1)], ids=str
)
def test_hidden_states_of_another_shape_are_refused(
    middle: TorchModelShard, shape: tuple[int, ...]
):
    step = replace(hidden_step(MIDDLE, hidden_of(3)), activation=activation_of(torch.zeros(shape)))

    with pytest.raises(BadField, match="shape"):
        middle.run(step, middle.new_state(MIDDLE))


def test_a_step_without_what_its_first_layer_needs_is_refused(llama: Path, middle: TorchModelShard):
    head = load_shard(llama, LayerRange(0, 2))

    with pytest.raises(BadField, match="activation"):
        middle.run(replace(hidden_step(MIDDLE, hidden_of(2)), activation=None), None)
    with pytest.raises(BadField, match="tokens"):
        head.run(replace(ids_step((1, 2)), tokens=()), None)


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
def test_ids_outside_the_vocabulary_are_refused(llama: Path, token: int):
    head = load_shard(llama, LayerRange(0, 2))

    with pytest.raises(BadField, match="tokens"):
        head.run(ids_step((5, token)), None)


def test_positions_beyond_the_context_are_refused(llama: Path):
    head = load_shard(llama, LayerRange(0, 2))
    state = head.new_state(LayerRange(0, 2))
    head.run(ids_step((5,) * head.description.context_length), state)

    with pytest.raises(BadField, match="positions"):
        head.run(ids_step((5,), past=head.description.context_length), state)


@pytest.mark.parametrize(
    "fields",
    [
        {"activation": activation_of(torch.zeros(1, 2, 9))},
        {"layers": LayerRange(3, 9)},
        {"tokens": (1, VOCAB_SIZE)},
    ],
    ids=["shape", "layers", "tokens"],
)
def test_a_refused_step_leaves_the_session_as_it_was(
    middle: TorchModelShard, fields: dict[str, Any]
):
    hidden = hidden_of(6)
    whole = values_of(middle.run(hidden_step(MIDDLE, hidden), None))
    state = middle.new_state(MIDDLE)
    middle.run(hidden_step(MIDDLE, hidden[:, :4]), state)

    with pytest.raises((BadField, WrongShard)):
        middle.run(replace(hidden_step(MIDDLE, hidden[:, 4:], past=4), **fields), state)

    after = values_of(middle.run(hidden_step(MIDDLE, hidden[:, 4:], past=4), state))
    torch.testing.assert_close(after, whole[:, 4:], rtol=1e-4, atol=1e-4)


def test_a_step_at_another_length_than_the_session_holds_is_a_miss(middle: TorchModelShard):
    state = middle.new_state(MIDDLE)
    middle.run(hidden_step(MIDDLE, hidden_of(4)), state)

    with pytest.raises(KVCacheMiss, match="expected 3 positions, session holds 4") as miss:
        middle.run(hidden_step(MIDDLE, hidden_of(1), past=3), state)

    assert miss.value.reason is MissReason.PAST_LENGTH


def test_a_step_for_other_layers_than_the_session_holds_is_a_miss(middle: TorchModelShard):
    state = middle.new_state(MIDDLE)
    middle.run(hidden_step(MIDDLE, hidden_of(4)), state)

    with pytest.raises(KVCacheMiss) as miss:
        middle.run(hidden_step(LayerRange(3, 4), hidden_of(1), past=4), state)

    assert miss.value.reason is MissReason.START_LAYER


# --- element types --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"), [(DType.BF16, torch.bfloat16), (DType.FP16, torch.float16)]
)
def test_hidden_states_of_another_element_type_are_converted(
    middle: TorchModelShard, dtype: DType, torch_dtype: torch.dtype
):
    """Pit A76."""
    hidden = hidden_of(4)
    exact = values_of(middle.run(hidden_step(MIDDLE, hidden), None))
    rounded = activation_of(hidden.to(torch_dtype), dtype)

    output = middle.run(replace(hidden_step(MIDDLE, hidden), activation=rounded), None)

    assert isinstance(output, Activation)
    assert output.hidden.dtype is DType.FP32
    assert float((values_of(output) - exact).norm() / exact.norm()) < 1e-2


def test_a_value_too_large_for_the_shards_element_type_is_refused(llama: Path):
    """Pit A75.

    A bf16 model reaches values that fp16 cannot hold; they must not become infinity unseen.
    """
    short = load_shard(llama, MIDDLE, weights=WeightFormat.FP16)
    state = short.new_state(MIDDLE)
    hidden = hidden_of(2)
    hidden[0, 0, 0] = 1e5

    with pytest.raises(NumericalError, match="do not fit"):
        short.run(hidden_step(MIDDLE, hidden), state)

    assert state.length == 0
    assert not state.torn


@pytest.mark.parametrize("weights", [WeightFormat.BF16, WeightFormat.FP16])
def test_cached_and_uncached_split_agree_in_short_element_types(llama: Path, weights: WeightFormat):
    """Not bitwise, that is fp32's promise; but the same model."""
    edges = [(0, 2), (2, 4), (4, LAYERS)]
    shards = [load_shard(llama, LayerRange(*edge), weights=weights) for edge in edges]
    chain = Chain(shards)

    cached = chain.generate(prompt(), 4)
    whole = chain.generate(prompt() + cached.ids[:3], 1, cached=False)

    difference = (cached.logits[-1] - whole.logits[0]).norm() / whole.logits[0].norm()
    assert float(difference) < 0.1
    assert shards[0].description.capabilities.kv_cache


def test_the_founding_documents_names_are_there(middle: TorchModelShard):
    store = object()

    middle.kv_sessions = store

    assert middle.kv_sessions is store
    assert middle.supports_kv_cache
