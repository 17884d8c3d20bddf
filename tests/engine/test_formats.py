"""Layers in int8: read once, a few at a time, and exact however the model is split."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.families import CUTS, LAYERS, SHARING_CUTS, VOCAB_SIZE, save_family
from tests.shard_chain import Chain, load_chain, unsplit
from transformers import AutoModelForCausalLM

from meshnet.core.vocabulary import LayerRange, ModelError, WeightFormat
from meshnet.engine import layerwise, trimming
from meshnet.engine.checkpoint import Checkpoint, read_config
from meshnet.engine.formats import format_for, load_in_format
from meshnet.engine.layerwise import groups, load_converted
from meshnet.engine.linear import Int8Linear, quantised
from meshnet.engine.linear_choice import LinearChoice
from meshnet.engine.loading import load_shard

CPU = torch.device("cpu")
WHOLE = LayerRange(0, LAYERS)
RANGES = (LayerRange(0, 2), LayerRange(2, 4), LayerRange(4, LAYERS))
EXACT = ("llama-tied", "qwen3_moe", "gpt_oss", "deepseek_v3", "gpt2", "gemma3")


def prompt(length: int = 13) -> list[int]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


def converted(path: Path, held: LayerRange = WHOLE):
    return load_converted(path, Checkpoint(path), read_config(path), held, LinearChoice(2), CPU)


@pytest.mark.parametrize("weights", [WeightFormat.INT8, WeightFormat.INT8_FAST])
@pytest.mark.parametrize("name", EXACT)
def test_int8_is_bitwise_the_same_split_chunked_and_refilled(
    tmp_path: Path, name: str, weights: WeightFormat
):
    """The oracle is the unsplit engine in the same format."""
    path = save_family(tmp_path, name)
    whole = Chain(load_chain(path, (), LAYERS, weights))
    split = Chain(load_chain(path, CUTS[1], LAYERS, weights))

    expected = whole.generate(prompt(), 6)

    for way in ({}, {"chunk": 4}, {"miss_at": 3}):
        answer = split.generate(prompt(), 6, **way)
        assert answer.ids == expected.ids
        assert torch.equal(answer.logits, expected.logits), way
    assert all(shard.description.capabilities.exact for shard in split.shards)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])
def test_layers_that_share_their_kv_are_exact_too(tmp_path: Path, name: str):
    path = save_family(tmp_path, name)
    weights = WeightFormat.INT8

    expected = Chain(load_chain(path, (), LAYERS, weights)).generate(prompt(), 6)
    answer = Chain(load_chain(path, SHARING_CUTS[1], LAYERS, weights)).generate(prompt(), 6)

    assert torch.equal(answer.logits, expected.logits)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "falcon_h1"])
def test_int8_is_near_fp32(tmp_path: Path, name: str):
    path = save_family(tmp_path, name)
    reference = unsplit(path, prompt(), 1)

    answer = Chain(load_chain(path, (), LAYERS, WeightFormat.INT8)).generate(prompt(), 1)

    error = (answer.logits - reference.logits).norm() / reference.logits.norm()
    assert 0 < float(error) < 0.1


@pytest.mark.parametrize("held", RANGES, ids=str)
@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3_moe", "deepseek_v3", "gpt2"])
def test_int8_reads_the_bytes_and_files_that_fp32_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, held: LayerRange
):
    """Each layer alone, and none of the ends again with each."""
    monkeypatch.setattr(layerwise, "GROUP_BYTES", 1)
    path = save_family(tmp_path, name)
    config = read_config(path)

    plain, _ = load_in_format(
        path, Checkpoint(path), config, held, WeightFormat.FP32, CPU, lambda note: None
    )
    loaded, _ = load_in_format(
        path, Checkpoint(path), config, held, WeightFormat.INT8, CPU, lambda note: None
    )

    assert loaded.bytes_read == plain.bytes_read
    assert loaded.files_opened == plain.files_opened
    assert loaded.checkpoint_names == plain.checkpoint_names


def test_each_layer_has_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Groups of two, so that a layer could land in its neighbour's place."""
    path = save_family(tmp_path, "llama")
    whole = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    layer_bytes = sum(
        value.numel() * 4 for name, value in whole.items() if name.startswith("model.layers.0.")
    )
    monkeypatch.setattr(layerwise, "GROUP_BYTES", 2 * layer_bytes)

    model = converted(path, LayerRange(1, LAYERS)).loaded.model

    held = {n: m for n, m in model.named_modules() if isinstance(m, Int8Linear)}
    assert len(held) == 5 * 7 + 1
    for name, module in held.items():
        levels, scales = quantised(whole[f"{name}.weight"])
        assert torch.equal(module.product.unpacked()[0], levels)
        assert torch.equal(module.scale, scales)
    norm = "model.layers.3.input_layernorm.weight"
    assert torch.equal(model.state_dict()[norm], whole[norm])


def test_nothing_stays_without_memory(tmp_path: Path):
    model = converted(save_family(tmp_path, "gemma3"), LayerRange(2, 4)).loaded.model

    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_that_stays_keeps_a_file_mapped(tmp_path: Path):
    """Its pages would count as this process's memory."""
    path = save_family(tmp_path, "llama-tied")

    model = converted(path).loaded.model

    assert str(path) not in Path("/proc/self/maps").read_text()
    assert len(list(model.parameters())) > LAYERS


def test_a_tied_tail_holds_its_output_head_and_no_embedding(tmp_path: Path):
    path = save_family(tmp_path, "llama-tied")
    whole = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()

    head, tail = (converted(path, held).loaded.model for held in (RANGES[0], RANGES[2]))

    assert torch.equal(head.get_input_embeddings().weight, whole["model.embed_tokens.weight"])
    assert not list(tail.get_input_embeddings().parameters())
    levels, _ = quantised(whole["model.embed_tokens.weight"])
    assert torch.equal(tail.get_output_embeddings().product.unpacked()[0], levels)


def test_a_tied_model_on_one_node_looks_up_in_full_precision(tmp_path: Path):
    path = save_family(tmp_path, "llama-tied")
    whole = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()

    model = converted(path).loaded.model

    assert torch.equal(model.get_input_embeddings().weight, whole["model.embed_tokens.weight"])
    assert isinstance(model.get_output_embeddings(), Int8Linear)


def test_a_node_tells_format_operators_and_bytes(tmp_path: Path):
    path = save_family(tmp_path, "qwen3_moe")

    plain, exact, fast = (
        load_shard(path, RANGES[1], weights=weights).description
        for weights in (WeightFormat.FP32, WeightFormat.INT8, WeightFormat.INT8_FAST)
    )

    assert [told.weights for told in (plain, exact, fast)] == ["fp32", "int8", "int8-fast"]
    assert [told.operators for told in (plain, exact, fast)] == ["linear", "compiled", "compiled"]
    assert exact.weight_bytes < 0.35 * plain.weight_bytes
    assert len({told.arithmetic for told in (plain, exact, fast)}) == 3
    assert len({told.fingerprint for told in (plain, exact, fast)}) == 1


def test_what_stays_in_floating_point_is_told(tmp_path: Path):
    """Bloom computes with the weights of two of its layers itself."""
    told: list[str] = []

    load_shard(save_family(tmp_path, "bloom"), WHOLE, weights=WeightFormat.INT8, report=told.append)

    assert "layers 0-6: not made int8: dense, dense_4h_to_h" in told


def test_a_missing_tensor_of_any_group_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layerwise, "GROUP_BYTES", 1)
    path = save_family(tmp_path, "llama")
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["model.layers.3.mlp.up_proj.weight"]
    index.write_text(json.dumps(content))

    with pytest.raises(ModelError, match=r"missing.*layers\.3\.mlp\.up_proj"):
        converted(path)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10, 10, 10, 10], [(0, 4)]),
        ([30, 30, 30, 30], [(0, 2), (2, 4)]),
        ([100, 10, 10, 100], [(0, 1), (1, 3), (3, 4)]),
        ([64, 1, 63, 1], [(0, 1), (1, 3), (3, 4)]),
    ],
)
def test_a_group_is_small_or_a_single_layer(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], expected: list[tuple[int, int]]
):
    monkeypatch.setattr(layerwise, "GROUP_BYTES", 64)

    made = groups(LayerRange(0, 4), dict(enumerate(sizes)))

    assert [(group.start, group.stop) for group in made] == expected


def int8_logits(path: Path) -> torch.Tensor:
    shards = load_chain(path, CUTS[1], LAYERS, WeightFormat.INT8)
    return Chain(shards).generate(prompt(), 1).logits


@pytest.mark.parametrize("name", ["llama-tied", "qwen3_moe", "gpt2", "falcon_h1", "mixtral"])
def test_matrices_read_as_they_are_stored_make_the_same_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setattr(trimming, "MATRIX_MIN", 1)
    path = save_family(tmp_path, name, dtype="bfloat16")
    answer = int8_logits(path)
    loaded = converted(path).loaded.model
    monkeypatch.setattr(layerwise, "_stored", lambda config: None)

    assert torch.equal(answer, int8_logits(path))
    assert all(not weight.is_floating_point() or weight.dtype == torch.float32
               for weight in loaded.state_dict().values())  # fmt: skip


def test_tensors_that_are_wider_than_the_configuration_says_lose_no_digit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trimming, "MATRIX_MIN", 1)
    path = save_family(tmp_path, "llama")
    expected = int8_logits(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))

    assert torch.equal(int8_logits(path), expected)


PEAK = """
import sys, threading
from pathlib import Path
import torch
from meshnet.core.vocabulary import LayerRange
from meshnet.engine.checkpoint import Checkpoint, read_config
from meshnet.engine.layerwise import load_converted
from meshnet.engine.linear_choice import LinearChoice
from meshnet.engine.quantising import weight_bytes

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

torch.set_num_threads(1)
path, layers = Path(sys.argv[1]), int(sys.argv[2])
config = read_config(path)
def load(*held):
    choice, cpu = LinearChoice(2), torch.device("cpu")
    return load_converted(path, Checkpoint(path), config, LayerRange(*held), choice, cpu)
first = load(0, 1)
before = resident("VmRSS")
middle = load(1, layers - 1)
print(resident("VmHWM") - before, resident("VmRSS") - before, weight_bytes(middle.loaded.model))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_never_needs_more_than_the_shard_and_one_layer(tmp_path: Path):
    """In a process of its own; the layers are large beside what the interpreter does meanwhile."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12}
    save_family(tmp_path, "llama", shard_size="20MB", **sizes)
    layer_bytes = 4 * (3 * 4096 * 1024 + 3 * 1024 * 1024)

    output = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), "12"],
        capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"},
    ).stdout  # fmt: skip

    peak, after, shard_bytes = map(int, output.split())
    assert peak < 1.1 * (shard_bytes + layer_bytes)
    assert after < 1.15 * shard_bytes


def test_a_shard_is_int8_on_the_cpu_and_never_by_itself_int8_fast(tmp_path: Path):
    told = load_shard(save_family(tmp_path, "llama"), RANGES[1]).description

    assert (told.weights, told.dtype.value) == ("int8", "fp32")
    assert format_for(torch.device("cuda")) is WeightFormat.BF16


@pytest.mark.parametrize("weights", [WeightFormat.INT8, WeightFormat.INT8_FAST])
def test_many_quantised_layers_are_exact(smollm2_dir: Path, weights: WeightFormat):
    """Thirty layers enlarge rounding until two attentions differ by 6 %; ours is taken still."""
    told = load_shard(smollm2_dir, LayerRange(0, 30), weights=weights).description

    assert told.capabilities.exact
    assert told.capabilities.batch


@pytest.mark.parametrize("weights", [WeightFormat.BF16, WeightFormat.FP16, WeightFormat.FP32])
def test_floating_point_is_never_called_exact(tmp_path: Path, weights: WeightFormat):
    """Ten positions may well come out equal in few bits; three hundred do not."""
    path = save_family(tmp_path, "llama", num_attention_heads=1, num_key_value_heads=1)

    shard = load_shard(path, LayerRange(0, LAYERS), weights=weights)

    assert not shard.description.capabilities.exact
