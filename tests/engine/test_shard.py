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
from tests.shard_chain import Chain, load_chain, unsplit

from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    BadField,
    DType,
    KVCacheMiss,
    LayerRange,
    MissReason,
    NumericalError,
    SampledToken,
    SamplingParams,
    ShardStep,
    StepTorn,
    TensorSpec,
    WrongShard,
)
from meshnet.engine.loading import load_shard
from meshnet.engine.shard import TorchModelShard

MIDDLE = LayerRange(2, 4)
TAIL = LayerRange(4, LAYERS)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def middle(llama: Path) -> TorchModelShard:
    return load_shard(llama, MIDDLE)


@pytest.fixture
def tail(llama: Path) -> TorchModelShard:
    return load_shard(llama, TAIL)


def _activation(values: torch.Tensor, dtype: DType = DType.FP32) -> Activation:
    spec = TensorSpec(HIDDEN, dtype, tuple(values.shape))
    return Activation((spec,), values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _hidden(length: int) -> torch.Tensor:
    return torch.randn(1, length, 64, generator=torch.Generator().manual_seed(7))


def _step(layers: LayerRange, hidden: torch.Tensor, past: int = 0, **fields: Any) -> ShardStep:
    length = hidden.shape[-2]
    step = ShardStep(layers, past, length, (), _activation(hidden), SamplingParams())
    return replace(step, **fields)


def _ids_step(tokens: tuple[int, ...], past: int = 0) -> ShardStep:
    return ShardStep(LayerRange(0, 2), past, len(tokens), tokens, None, SamplingParams())


def _values(output: object) -> torch.Tensor:
    assert isinstance(output, Activation)
    values = torch.frombuffer(bytearray(output.data), dtype=torch.float32)
    return values.view(output.hidden.shape)


# --- ranges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(0, 3, 6), (0, 1, 2, 5, 6), (0, 6)], ids=str)
def test_any_part_of_the_held_layers_runs_as_if_it_were_all(llama: Path, cuts: tuple[int, ...]):
    """Overlapping shards: a route names the layers, a node may hold more."""
    reference = unsplit(llama, prompt(), TOKENS)
    whole = load_shard(llama, LayerRange(0, LAYERS))
    parts = [LayerRange(start, stop) for start, stop in pairwise(cuts)]

    answer = Chain([whole] * len(parts), parts).generate(prompt(), TOKENS)

    assert answer.ids == reference.ids
    assert answer.difference(reference) == 0.0


def test_inputs_of_later_layers_travel_with_the_hidden_states(tmp_path: Path):
    """Gemma 3n computes them from the ids, which only the first layers see."""
    path = save_family(tmp_path, "gemma3n")
    reference = unsplit(path, prompt(), TOKENS)
    whole = load_shard(path, LayerRange(0, LAYERS))
    parts = [LayerRange(0, 1), LayerRange(1, 2), LayerRange(2, LAYERS)]

    answer = Chain([whole] * len(parts), parts).generate(prompt(), TOKENS)

    assert answer.difference(reference) == 0.0


def test_a_part_that_cuts_layers_sharing_their_kv_is_refused(tmp_path: Path):
    path = save_family(tmp_path, "gemma3n")
    whole = load_shard(path, LayerRange(0, LAYERS))

    with pytest.raises(WrongShard, match="share their K/V"):
        whole.new_state(LayerRange(0, 3))

    assert whole.description.inseparable == (LayerRange(2, LAYERS),)


def test_sessions_on_different_parts_do_not_disturb_each_other(middle: TorchModelShard):
    hidden = _hidden(5)
    alone = _values(middle.run(_step(MIDDLE, hidden), middle.new_state(MIDDLE)))
    state = middle.new_state(MIDDLE)

    first = _values(middle.run(_step(MIDDLE, hidden[:, :4]), state))
    part = LayerRange(3, 4)
    middle.run(_step(part, _hidden(3)), middle.new_state(part))
    last = _values(middle.run(_step(MIDDLE, hidden[:, 4:], past=4), state))

    torch.testing.assert_close(torch.cat([first, last], 1), alone, rtol=1e-4, atol=1e-4)


def test_a_state_takes_room_for_its_own_layers_only(middle: TorchModelShard):
    both, one = middle.new_state(MIDDLE), middle.new_state(LayerRange(2, 3))

    middle.run(_step(MIDDLE, _hidden(8)), both)
    middle.run(_step(LayerRange(2, 3), _hidden(8)), one)

    assert middle.state_bytes(both) == 2 * middle.state_bytes(one) > 0


@pytest.mark.parametrize("tokens", [1, 9, 40])
def test_the_bytes_of_a_session_are_what_the_description_says(middle: TorchModelShard, tokens: int):
    state = middle.new_state(MIDDLE)

    middle.run(_step(MIDDLE, _hidden(tokens)), state)

    assert middle.state_bytes(state) == middle.description.kv_bytes.of(tokens)


@pytest.mark.parametrize("layers", [LayerRange(0, 2), LayerRange(1, 3), LayerRange(3, 5)], ids=str)
def test_layers_that_are_not_held_are_refused(middle: TorchModelShard, layers: LayerRange):
    with pytest.raises(WrongShard, match="holds 2-4"):
        middle.run(_step(layers, _hidden(2)), None)


# --- what enters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("shift", [0, 3], ids=["aligned", "unaligned"])
def test_hidden_states_are_taken_from_any_buffer(
    middle: TorchModelShard, buffer: Callable[[bytes], Any], shift: int
):
    """A body may begin anywhere in what was received."""
    step = _step(MIDDLE, _hidden(3))
    assert step.activation is not None
    expected = _values(middle.run(step, None))
    received = bytes(shift) + bytes(step.activation.data)
    data = memoryview(buffer(received))[shift:] if shift else buffer(received)

    output = middle.run(replace(step, activation=replace(step.activation, data=data)), None)

    assert torch.equal(_values(output), expected)


def test_what_leaves_is_not_copied_and_what_enters_is_not_written_to(middle: TorchModelShard):
    step = _step(MIDDLE, _hidden(3))
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
    step = replace(_step(MIDDLE, _hidden(3)), activation=_activation(torch.zeros(shape)))

    with pytest.raises(BadField, match="shape"):
        middle.run(step, middle.new_state(MIDDLE))


def test_a_step_without_what_its_first_layer_needs_is_refused(llama: Path, middle: TorchModelShard):
    head = load_shard(llama, LayerRange(0, 2))

    with pytest.raises(BadField, match="activation"):
        middle.run(replace(_step(MIDDLE, _hidden(2)), activation=None), None)
    with pytest.raises(BadField, match="tokens"):
        head.run(replace(_ids_step((1, 2)), tokens=()), None)


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
def test_ids_outside_the_vocabulary_are_refused(llama: Path, token: int):
    head = load_shard(llama, LayerRange(0, 2))

    with pytest.raises(BadField, match="tokens"):
        head.run(_ids_step((5, token)), None)


def test_positions_beyond_the_context_are_refused(llama: Path):
    head = load_shard(llama, LayerRange(0, 2))
    state = head.new_state(LayerRange(0, 2))
    head.run(_ids_step((5,) * head.description.context_length), state)

    with pytest.raises(BadField, match="positions"):
        head.run(_ids_step((5,), past=head.description.context_length), state)


@pytest.mark.parametrize(
    "fields",
    [
        {"activation": _activation(torch.zeros(1, 2, 9))},
        {"layers": LayerRange(3, 9)},
        {"tokens": (1, VOCAB_SIZE)},
    ],
    ids=["shape", "layers", "tokens"],
)
def test_a_refused_step_leaves_the_session_as_it_was(
    middle: TorchModelShard, fields: dict[str, Any]
):
    hidden = _hidden(6)
    whole = _values(middle.run(_step(MIDDLE, hidden), None))
    state = middle.new_state(MIDDLE)
    middle.run(_step(MIDDLE, hidden[:, :4]), state)

    with pytest.raises((BadField, WrongShard)):
        middle.run(replace(_step(MIDDLE, hidden[:, 4:], past=4), **fields), state)

    after = _values(middle.run(_step(MIDDLE, hidden[:, 4:], past=4), state))
    torch.testing.assert_close(after, whole[:, 4:], rtol=1e-4, atol=1e-4)


def test_a_step_at_another_length_than_the_session_holds_is_a_miss(middle: TorchModelShard):
    state = middle.new_state(MIDDLE)
    middle.run(_step(MIDDLE, _hidden(4)), state)

    with pytest.raises(KVCacheMiss, match="expected 3 positions, session holds 4") as miss:
        middle.run(_step(MIDDLE, _hidden(1), past=3), state)

    assert miss.value.reason is MissReason.PAST_LENGTH


def test_a_step_for_other_layers_than_the_session_holds_is_a_miss(middle: TorchModelShard):
    state = middle.new_state(MIDDLE)
    middle.run(_step(MIDDLE, _hidden(4)), state)

    with pytest.raises(KVCacheMiss) as miss:
        middle.run(_step(LayerRange(3, 4), _hidden(1), past=4), state)

    assert miss.value.reason is MissReason.START_LAYER


# --- element types --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"), [(DType.BF16, torch.bfloat16), (DType.FP16, torch.float16)]
)
def test_hidden_states_of_another_element_type_are_converted(
    middle: TorchModelShard, dtype: DType, torch_dtype: torch.dtype
):
    hidden = _hidden(4)
    exact = _values(middle.run(_step(MIDDLE, hidden), None))
    rounded = _activation(hidden.to(torch_dtype), dtype)

    output = middle.run(replace(_step(MIDDLE, hidden), activation=rounded), None)

    assert isinstance(output, Activation)
    assert output.hidden.dtype is DType.FP32
    assert float((_values(output) - exact).norm() / exact.norm()) < 1e-2


def test_a_value_too_large_for_the_shards_element_type_is_refused(llama: Path):
    """A bf16 model reaches values that fp16 cannot hold; they must not become infinity unseen."""
    short = load_shard(llama, MIDDLE, dtype=DType.FP16)
    state = short.new_state(MIDDLE)
    hidden = _hidden(2)
    hidden[0, 0, 0] = 1e5

    with pytest.raises(NumericalError, match="do not fit"):
        short.run(_step(MIDDLE, hidden), state)

    assert state.length == 0
    assert not state.torn


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
def test_cached_and_uncached_split_agree_in_short_element_types(llama: Path, dtype: DType):
    """Not bitwise, that is fp32's promise; but the same model."""
    edges = [(0, 2), (2, 4), (4, LAYERS)]
    shards = [load_shard(llama, LayerRange(*edge), dtype=dtype) for edge in edges]
    chain = Chain(shards)

    cached = chain.generate(prompt(), 4)
    whole = chain.generate(prompt() + cached.ids[:3], 1, cached=False)

    difference = (cached.logits[-1] - whole.logits[0]).norm() / whole.logits[0].norm()
    assert float(difference) < 0.1
    assert shards[0].description.capabilities.kv_cache


# --- failures -------------------------------------------------------------------------------------


def _break(shard: TorchModelShard, error: Exception) -> None:
    """Let the shard's second layer fail, after the first has extended its cache."""
    layers = shard._runner._layers
    layer = layers._layers[shard.description.layers.start + 1]

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    layer.register_forward_pre_hook(fail)


def test_a_step_that_fails_midway_tears_the_session_for_good(llama: Path):
    shard = load_shard(llama, MIDDLE)
    state = shard.new_state(MIDDLE)
    _break(shard, RuntimeError("boom"))

    with pytest.raises(StepTorn, match="boom") as torn:
        shard.run(_step(MIDDLE, _hidden(3)), state)
    with pytest.raises(StepTorn, match="earlier step"):
        shard.run(_step(MIDDLE, _hidden(3)), state)

    assert not torn.value.out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_running_out_of_memory_is_told_from_other_failures(llama: Path, error: Exception):
    shard = load_shard(llama, MIDDLE)
    _break(shard, error)

    with pytest.raises(StepTorn) as torn:
        shard.run(_step(MIDDLE, _hidden(3)), shard.new_state(MIDDLE))

    assert torn.value.out_of_memory


def test_a_session_that_failed_does_not_disturb_another(llama: Path):
    shard = load_shard(llama, MIDDLE)
    expected = _values(shard.run(_step(MIDDLE, _hidden(3)), None))
    handle_error = RuntimeError("boom")
    layer = shard._runner._layers._layers[3]

    def fail(*args: object, **kwargs: object) -> None:
        raise handle_error

    handle = layer.register_forward_pre_hook(fail)
    with pytest.raises(StepTorn):
        shard.run(_step(MIDDLE, _hidden(3)), shard.new_state(MIDDLE))
    handle.remove()

    again = _values(shard.run(_step(MIDDLE, _hidden(3)), shard.new_state(MIDDLE)))

    assert torch.equal(again, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error_and_never_a_token(
    tail: TorchModelShard, value: float
):
    hidden = _hidden(3)
    hidden[0, -1, 0] = value
    state = tail.new_state(TAIL)

    with pytest.raises(NumericalError):
        tail.run(_step(TAIL, hidden), state)
    with pytest.raises(StepTorn):
        tail.run(_step(TAIL, _hidden(1), past=3), state)


# --- the tail -------------------------------------------------------------------------------------


def test_the_tail_draws_nothing_when_no_token_is_wanted(tail: TorchModelShard):
    state = tail.new_state(TAIL)

    output = tail.run(_step(TAIL, _hidden(3), want_token=False), state)

    assert output is None
    assert state.length == 3


def test_penalties_see_all_ids_of_the_session(tail: TorchModelShard):
    """The tail's history is built by the prefill's ids and extended by each decode's."""
    state = tail.new_state(TAIL)
    hidden = _hidden(3)
    first = tail.run(_step(TAIL, hidden, tokens=(1, 2, 3), want_token=False), state)
    assert first is None
    step = _step(TAIL, _hidden(1), past=3)
    plain = tail.run(step, _after(tail, hidden, (1, 2, 3)))
    assert isinstance(plain, SampledToken)

    # The winner is among the prompt's ids, so a repetition penalty must move it.
    seen = _after(tail, hidden, (1, plain.token_id, 3))
    sampling = SamplingParams(repetition_penalty=50.0, prompt_length=3)
    penalised = tail.run(replace(step, tokens=(4,), sampling=sampling), seen)

    assert isinstance(penalised, SampledToken)
    assert penalised.token_id != plain.token_id


def _after(tail: TorchModelShard, hidden: torch.Tensor, tokens: tuple[int, ...]) -> Any:
    state = tail.new_state(TAIL)
    tail.run(_step(TAIL, hidden, tokens=tokens, want_token=False), state)
    return state


def test_a_peer_that_sends_no_ids_gets_greedy_tokens(tail: TorchModelShard):
    """ADR-0022 knows no ids on the wire, so nothing can be penalised or seeded by position."""
    greedy = tail.run(_step(TAIL, _hidden(3)), tail.new_state(TAIL))
    hot = SamplingParams(temperature=2.0, seed=3)

    tokens = [
        tail.run(_step(TAIL, _hidden(3), sampling=replace(hot, seed=seed)), tail.new_state(TAIL))
        for seed in range(5)
    ]

    assert tokens == [greedy] * 5


def test_ids_that_come_only_after_a_prefill_without_are_not_taken_for_the_whole(
    tail: TorchModelShard,
):
    """Half a history would penalise and key the draw differently from the refill's."""
    hot = SamplingParams(temperature=2.0, seed=3)

    def draw(sampling: SamplingParams) -> Any:
        state = _after(tail, _hidden(3), ())
        return tail.run(_step(TAIL, _hidden(1), past=3, tokens=(4,), sampling=sampling), state)

    greedy = draw(SamplingParams())
    tokens = [draw(replace(hot, seed=seed)) for seed in range(5)]

    assert tokens == [greedy] * 5


def test_a_seeded_draw_is_the_same_cached_and_stateless(llama: Path):
    chain = Chain(load_chain(llama, (3,), LAYERS))
    head, last = chain.shards
    sampling = SamplingParams(temperature=1.0, seed=11, prompt_length=5)
    ids = (7, 8, 9, 10, 11)

    def draw(tokens: tuple[int, ...], past: int, states: list[Any]) -> SampledToken:
        hop = ShardStep(LayerRange(0, 3), past, len(tokens), tokens, None, sampling)
        entering = head.run(hop, states[0])
        assert isinstance(entering, Activation)
        hop = replace(hop, layers=LayerRange(3, LAYERS), activation=entering)
        token = last.run(hop, states[1])
        assert isinstance(token, SampledToken)
        return token

    states: list[Any] = [shard.new_state(shard.description.layers) for shard in chain.shards]
    draw(ids, 0, states)
    cached = draw((12,), 5, states)
    stateless = draw((*ids, 12), 0, [None, None])

    assert cached.token_id == stateless.token_id


def test_the_founding_documents_names_are_there(middle: TorchModelShard):
    store = object()

    middle.kv_sessions = store

    assert middle.kv_sessions is store
    assert middle.supports_kv_cache
