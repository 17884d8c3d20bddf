"""Shards of one model say so; shards of two models do not pass for one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.families import LAYERS, save_family

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.loading import load_shard


def _fingerprint(path: Path, start: int = 0) -> str:
    return load_shard(path, LayerRange(start, start + 2)).description.fingerprint


def test_all_shards_of_a_model_have_one_fingerprint(tmp_path: Path):
    path = save_family(tmp_path, "llama")

    prints = {_fingerprint(path, at) for at in range(0, LAYERS, 2)}

    assert len(prints) == 1


def test_what_saving_and_serving_changes_does_not_change_the_fingerprint(tmp_path: Path):
    path = save_family(tmp_path, "llama")
    before = _fingerprint(path)
    config = json.loads((path / "config.json").read_text())
    config.update(transformers_version="1.2.3", use_cache=False, dtype="float16")
    (path / "config.json").write_text(json.dumps(config))

    assert _fingerprint(path) == before


def test_another_configuration_has_another_fingerprint(tmp_path: Path):
    path = save_family(tmp_path, "llama")
    before = _fingerprint(path)
    config = json.loads((path / "config.json").read_text())
    config["rms_norm_eps"] = 1e-3
    (path / "config.json").write_text(json.dumps(config))

    assert _fingerprint(path) != before


def test_another_tokenizer_has_another_fingerprint(tmp_path: Path):
    """Pit A34."""
    path = save_family(tmp_path, "llama")
    (path / "tokenizer.json").write_text("{}")
    before = _fingerprint(path)
    (path / "tokenizer.json").write_text('{"version": "1.0"}')

    assert _fingerprint(path) != before


def test_another_element_type_has_another_arithmetic(tmp_path: Path):
    path = save_family(tmp_path, "llama")

    exact = load_shard(path, LayerRange(0, 2), weights=WeightFormat.FP32).description
    short = load_shard(path, LayerRange(0, 2), weights=WeightFormat.BF16).description

    assert exact.arithmetic != short.arithmetic
    assert exact.fingerprint == short.fingerprint
