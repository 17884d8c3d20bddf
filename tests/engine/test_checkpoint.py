"""A shard reads the tensors of its own layers, and says clearly what is wrong with a directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.families import LAYERS, family_config, save_family
from transformers import AutoModelForCausalLM

from meshnet.core.vocabulary import LayerRange, ModelError, WeightFormat
from meshnet.engine.checkpoint import Checkpoint, load_layers, read_config
from meshnet.engine.loading import load_shard

FAMILIES = ("llama", "llama-tied", "qwen3_moe", "deepseek_v3", "gpt2")
RANGES = (LayerRange(0, 2), LayerRange(2, 4), LayerRange(4, LAYERS))


def _load(path: Path, layers: LayerRange):
    cpu = torch.device("cpu")
    return load_layers(path, Checkpoint(path), read_config(path), layers, torch.float32, cpu)


@pytest.mark.parametrize("layers", RANGES, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_shard_reads_the_bytes_of_its_own_tensors_and_no_others(
    tmp_path: Path, name: str, layers: LayerRange
):
    """Experts are single tensors in the checkpoint and merged in the model: bytes, not names."""
    path = save_family(tmp_path, name)

    description = load_shard(path, layers, weights=WeightFormat.FP32).description

    assert description.bytes_read == description.weight_bytes
    whole = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert description.bytes_read < whole / 2


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_a_shard_holds_the_same_values_as_the_whole_model(tmp_path: Path, name: str):
    path = save_family(tmp_path, name)
    whole = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()

    held = _load(path, LayerRange(2, 4)).model.state_dict()

    assert all(torch.equal(value, whole[key]) for key, value in held.items())
    assert {int(key.split(".")[2]) for key in held} == {2, 3}


def test_a_shard_opens_only_the_files_that_hold_its_tensors(tmp_path: Path):
    """Files of other layers need not even be there."""
    path = save_family(tmp_path, "llama")
    opened = _load(path, LayerRange(2, 4)).files_opened
    for file in path.glob("*.safetensors"):
        if file.name not in opened:
            file.unlink()

    again = _load(path, LayerRange(2, 4))

    assert again.files_opened == opened


def test_nothing_of_a_shard_stays_without_memory(tmp_path: Path):
    path = save_family(tmp_path, "gemma3")

    model = _load(path, LayerRange(2, 4)).model

    assert not [name for name, value in model.named_parameters() if value.is_meta]
    assert not [name for name, value in model.named_buffers() if value.is_meta]


@pytest.mark.parametrize("weights", [WeightFormat.BF16, WeightFormat.FP16, WeightFormat.FP32])
def test_weights_are_held_in_the_element_type_asked_for(tmp_path: Path, weights: WeightFormat):
    path = save_family(tmp_path, "llama")

    description = load_shard(path, LayerRange(0, LAYERS), weights=weights).description

    assert description.dtype.value == description.weights == weights.value
    assert description.weight_bytes == description.bytes_read * description.dtype.itemsize // 4


def test_a_truncated_file_is_named(tmp_path: Path):
    """Pit A101."""
    path = save_family(tmp_path, "llama", shard_size="1GB")
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(ModelError, match=r"model\.safetensors.*damaged"):
        load_shard(path, LayerRange(0, 2))


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tmp_path: Path):
    """Pit A101."""
    path = save_family(tmp_path, "llama", shard_size="1GB")
    file = path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = torch.zeros(7, 64)
    save_file(tensors, file, metadata={"format": "pt"})

    with pytest.raises(ModelError, match=rf"{name}.*\(7, 64\).*\(96, 64\)"):
        load_shard(path, LayerRange(0, 2))


def test_a_wrong_tensor_of_another_layer_is_not_this_shards_business(tmp_path: Path):
    path = save_family(tmp_path, "llama", shard_size="1GB")
    file = path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(7, 64)
    save_file(tensors, file, metadata={"format": "pt"})

    shard = load_shard(path, LayerRange(2, 4))

    assert shard.description.layers == LayerRange(2, 4)


def test_a_missing_tensor_is_named(tmp_path: Path):
    path = save_family(tmp_path, "llama", shard_size="1GB")
    file = path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})

    with pytest.raises(ModelError, match=r"missing.*model\.norm\.weight"):
        load_shard(path, LayerRange(4, LAYERS))


def test_a_missing_file_of_the_index_is_named(tmp_path: Path):
    path = save_family(tmp_path, "llama")
    for file in path.glob("*.safetensors"):
        file.unlink()

    with pytest.raises(ModelError, match=r"\.safetensors: damaged or missing"):
        load_shard(path, LayerRange(0, 2))


def test_pickled_weights_are_refused_unread(tmp_path: Path):
    """Pits A96 and A101."""
    path = save_family(tmp_path / "whole", "llama", shard_size="1GB")
    shutil.copytree(path, tmp_path / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"not even a pickle")

    with pytest.raises(ModelError, match="pickled weights are never read"):
        load_shard(tmp_path / "pickled", LayerRange(0, 2))


def test_an_index_cannot_point_outside_its_directory(tmp_path: Path):
    """Pit A101: the name in the index is somebody else's word."""
    path = save_family(tmp_path / "model", "llama")
    secret = tmp_path / "secret.safetensors"
    save_file({"model.norm.weight": torch.ones(64)}, secret, metadata={"format": "pt"})
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = "../secret.safetensors"
    index.write_text(json.dumps(content))

    with pytest.raises(ModelError, match=r"model/secret\.safetensors: damaged or missing"):
        load_shard(path, LayerRange(4, LAYERS))


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}'])
def test_a_damaged_index_is_refused(tmp_path: Path, content: str):
    family_config("llama").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(content)

    with pytest.raises(ModelError, match="not an index"):
        load_shard(tmp_path, LayerRange(0, 2))


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_shard(tmp_path, LayerRange(0, 2))


def test_a_model_that_needs_code_of_its_own_is_refused(tmp_path: Path):
    """Pit A96: code that comes with a checkpoint is never run."""
    config = {"model_type": "homemade", "auto_map": {"AutoConfig": "code.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ModelError, match=r"config\.json"):
        load_shard(tmp_path, LayerRange(0, 2))


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_attention_heads", 34), ("hidden_size", "wide"), ("num_hidden_layers", None)],
)
def test_a_configuration_that_contradicts_itself_is_refused(
    tmp_path: Path, field: str, value: object
):
    path = save_family(tmp_path, "llama")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {field: value}))

    with pytest.raises(ModelError, match=r"(config\.json|cannot load layers)"):
        load_shard(path, LayerRange(0, 2))


def test_layers_beyond_the_model_are_refused(tmp_path: Path):
    path = save_family(tmp_path, "llama")

    with pytest.raises(ModelError, match="the model has 6 layers"):
        load_shard(path, LayerRange(4, LAYERS + 1))


def test_an_unknown_device_is_refused(tmp_path: Path):
    path = save_family(tmp_path, "llama")

    with pytest.raises(ModelError, match="device 'abacus'"):
        load_shard(path, LayerRange(0, 2), device="abacus")
