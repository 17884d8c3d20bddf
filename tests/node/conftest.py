"""Nodes on one compute thread: all layers, those of the middle, those of the tail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.node.bench import (
    LAYERS,
    Bench,
)

from meshnet.core.vocabulary import (
    LayerRange,
)
from meshnet.node.compute import ComputeThread


@pytest.fixture
def thread() -> Iterator[ComputeThread]:
    compute = ComputeThread(name="test-compute", jobs_max=4)
    yield compute
    assert compute.close(deadline_s=30.0)


@pytest.fixture
def whole(thread: ComputeThread) -> Bench:
    """A node that holds every layer: head and tail in one."""
    return Bench(thread, LayerRange(0, LAYERS))


@pytest.fixture
def middle(thread: ComputeThread) -> Bench:
    return Bench(thread, LayerRange(1, 3))


@pytest.fixture
def tail(thread: ComputeThread) -> Bench:
    return Bench(thread, LayerRange(2, LAYERS))
