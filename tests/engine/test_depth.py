"""Depth and cuts of a model, read without torch where its configuration is plain."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
