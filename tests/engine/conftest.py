"""The text half of the tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshnet.core.vocabulary import ModelId
from meshnet.engine.text import HFText


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Path) -> HFText:
    return HFText.load(tiny_model_dir, ModelId("tiny"))
