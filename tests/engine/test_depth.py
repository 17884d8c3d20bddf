"""Depth and cuts of a model, read without torch where its configuration is plain."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from meshnet.core.vocabulary import ModelError
from meshnet.engine.checkpoint import read_config
from meshnet.engine.identity import inseparable_layers
from meshnet.engine.loading import layers_total
from meshnet.engine.models.depth import depth


def test_a_plain_configuration_is_read_without_torch(tiny_model_dir: Path):
    program = f"""
import sys
from pathlib import Path
from meshnet.engine.models.depth import depth
assert depth(Path({str(tiny_model_dir)!r})) == (4, ())
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_layer": 3},
        {"model_type": "llama", "num_hidden_layers": 5},
        {"model_type": "gemma3n_text", "num_hidden_layers": 20, "num_kv_shared_layers": 10},
        {"model_type": "gemma3n_text", "num_hidden_layers": 35},
    ],
    ids=lambda config: "-".join(str(value) for value in config.values()),
)
def test_every_way_agrees_with_the_engine(config: dict[str, object], tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert depth(tmp_path) == (
        layers_total(tmp_path),
        inseparable_layers(read_config(tmp_path)),
    )


def test_a_damaged_configuration_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "config.json").write_text("{")

    with pytest.raises(ModelError, match=r"config\.json"):
        depth(tmp_path)


ABSURD = {
    "no layers": ({"num_hidden_layers": None}, "num_hidden_layers: expected 1 to 10000, got null"),
    "zero": ({"num_hidden_layers": 0}, "num_hidden_layers: expected 1 to 10000, got 0"),
    "text": ({"num_hidden_layers": "4"}, 'num_hidden_layers: expected 1 to 10000, got "4"'),
    "truth": ({"num_hidden_layers": True}, "num_hidden_layers: expected 1 to 10000, got true"),
    "many": ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected 1 to 10000, got 10000"),
    "wide": ({"hidden_size": 10**30}, "hidden_size: expected 1 to 1048576, got 1000000"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads: expected 1 to 65536, got 0"),
    "no words": ({"vocab_size": -1}, "vocab_size: expected 1 to 2147483647, got -1"),
    "inside": (
        {"num_hidden_layers": None, "text_config": {"num_hidden_layers": 0}},
        "text_config.num_hidden_layers: expected 1 to 10000, got 0",
    ),
    "otherwise called": ({"model_type": "gpt2", "n_layer": 0}, "num_hidden_layers: expected 1 to"),
}


@pytest.mark.parametrize(("config", "told"), ABSURD.values(), ids=ABSURD)
def test_a_size_that_no_model_has_is_named(config: dict[str, object], told: str, tmp_path: Path):
    """A gateway divided by a depth of zero, and built a skeleton of a billion layers."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | config))

    for read in (depth, read_config):
        with pytest.raises(ModelError, match=re.escape(f"{tmp_path}/config.json: {told}")):
            read(tmp_path)


@pytest.mark.slow
def test_sizes_of_every_family_are_taken(tmp_path: Path):
    """Of some a size differs from layer to layer, is null, or says that there is no end."""
    for family in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[family]()
        except (ValueError, StrictDataclassError):
            continue  # it has no defaults
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and family != "blt":  # it has two depths
            path = tmp_path / family
            config.save_pretrained(path)
            assert read_config(path).model_type == config.model_type


def test_a_configuration_that_is_nested_without_end_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("[" * 200_000)

    with pytest.raises(ModelError, match="not readable as JSON"):
        depth(tmp_path)
