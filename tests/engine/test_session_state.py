"""The bytes of a session are counted again whenever they can have changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.families import save_family
from tests.shard_steps import ids_step

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.cache import allocated_bytes
from meshnet.engine.loading import load_shard

HELD = LayerRange(0, 2)
GROWTH = (200, *[1] * 60, 40, 1, 230, *[1] * 4)
"""Over two borders of cells, in single positions and in chunks."""


@pytest.mark.parametrize("family", ["llama", "mistral-swa", "lfm2", "falcon_h1"])
def test_the_bytes_of_a_session_are_those_allocated_at_every_length(tmp_path: Path, family: str):
    path = save_family(tmp_path, family, max_position_embeddings=1024)
    shard = load_shard(path, HELD)
    state = shard.new_state(HELD)
    counted, allocated = [], []

    for length in GROWTH:
        shard.run(ids_step((3,) * length, past=state.length), state)
        counted.append(shard.state_bytes(state))
        allocated.append(allocated_bytes(state.cache))

    assert counted == allocated
    assert len(set(counted)) > 1


def test_a_session_that_was_shortened_is_counted_again(tmp_path: Path):
    path = save_family(tmp_path, "llama", max_position_embeddings=1024)
    shard = load_shard(path, HELD)
    state = shard.new_state(HELD)
    counted, allocated = [], []

    for past in (0, 300, 40, 250, 500):
        if past < state.length:
            shard.truncate(state, past)
            counted.append(shard.state_bytes(state))
            allocated.append(allocated_bytes(state.cache))
        shard.run(ids_step((3,) * (320 if past == 0 else 290), past=state.length), state)
        counted.append(shard.state_bytes(state))
        allocated.append(allocated_bytes(state.cache))

    assert counted == allocated
