"""Models that tests of several packages share; each is made or fetched once per run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported anywhere: threads of several processes that spin at their barriers on
# the same cores cost minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, however slow the machine is.
settings.register_profile(
    "meshnet", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("meshnet")


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of four layers with a byte-level tokenizer and a chat template."""
    from tests.models import tiny_llama

    return tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct from the user's cache, fetched and converted when absent."""
    from meshnet.engine.models.pull import NoProgress, default_cache_dir, resolve

    return resolve("smollm2-135m", default_cache_dir(), NoProgress()).path


@pytest.fixture(scope="session")
def gemma3_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M, converted: sliding windows and a vocabulary of 262,144. For slow tests."""
    from tests.wheels import gemma3_gguf

    from meshnet.engine.models.gguf import convert_gguf
    from meshnet.engine.models.pull import NoProgress

    folder = tmp_path_factory.mktemp("gemma3")
    target = folder / "model"
    target.mkdir()
    convert_gguf(gemma3_gguf(folder), target, "Gemma 3 270M", NoProgress())
    return target
