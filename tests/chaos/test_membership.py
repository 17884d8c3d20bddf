"""A registry that dies under eight streams, and nodes that die without a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.chats import Verdict
from tests.chaos.lab import Lab
from tests.chaos.membership import WAYS, ghost, joined
from tests.chaos.schedule import registry_deaths
from tests.chaos.storm import Storm
from tests.chaos.subjects import LAYERS, asks, four_nodes, tiny


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_streams_do_not_notice_that_the_registry_died_and_ghosts_leave_every_route(
    tmp_path: Path,
):
    mesh = joined(tiny(tmp_path), "fp32", four_nodes(LAYERS))
    registry, other = mesh.heads
    async with Lab(mesh) as lab:
        ghosts = [await ghost(lab, way, "d") for way in WAYS]
        storm = Storm(lab, asks(60), seed=1, squeeze_bytes=0, chats_by=[other])
        record = await storm.run(registry_deaths(registry, 2, after_tokens=100))

    assert [each.routed for each in ghosts] == [(), ()]
    assert record.faults == []
    assert record.verdicts[Verdict.RIGHT] == record.verdicts.total() > 0
    assert not record.refills
