"""Two nodes of the tiny model and a gateway over them, for tests that leave no trace in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import MeshnetProcess, gateway, nodes


@pytest.fixture(scope="session")
def serving(tiny_model_dir: Path) -> Iterator[list[MeshnetProcess]]:
    """The head's node, layers 0-2, and the tail's, layers 2-4, both fp32, of eight places."""
    with nodes(tiny_model_dir, ["0-2", "2-4"], MESHNET_WEIGHTS="fp32") as started:
        yield started


@pytest.fixture(scope="session")
def api(serving: list[MeshnetProcess], tiny_model_dir: Path) -> Iterator[MeshnetProcess]:
    urls = [node.url for node in serving]
    # What lingers of an ended chat would count as what garbage left behind.
    with gateway(tiny_model_dir, urls, MESHNET_PREFIX_SESSIONS="0") as started:
        yield started
