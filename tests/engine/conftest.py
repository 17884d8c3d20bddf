"""Tiny models that most tests of the engine load, and none writes to."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.families import save_family
from tests.shard_steps import TAIL

from meshnet.core.vocabulary import ModelId
from meshnet.engine.loading import load_shard
from meshnet.engine.shard import TorchModelShard
from meshnet.engine.text import HFText


@pytest.fixture(scope="session")
def tiny(tiny_model_dir: Path) -> HFText:
    """The text half of the tiny model."""
    return HFText.load(tiny_model_dir, ModelId("tiny"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture
def tail(llama: Path) -> TorchModelShard:
    """The last layers of `llama`, loaded anew for every test."""
    return load_shard(llama, TAIL)
