"""A short storm over real processes: faults of each sort, under eight streams.

`make test-chaos` runs long ones over more models. A seed replays:
`python -m tools.chaos --subject tiny-fp32 --seed 1 --events 17`.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tests.chaos.chats import Verdict
from tests.chaos.lab import Lab, Mesh
from tests.chaos.report import summary
from tests.chaos.schedule import Fault, Pace, schedule
from tests.chaos.storm import Storm
from tests.chaos.subjects import LAYERS, asks, four_nodes, tiny

SEED = 1
PACE = Pace(tokens_between=40, short_s=(0.1, 0.5), long_s=(3.0, 4.0), long_share=0.3)
SLOW = (Fault.RESTART_NODE, Fault.DRAIN_NODE, Fault.RESTART_HEAD)
"""Processes that are asked to end instead of killed; starting them again takes its time."""


@pytest.mark.timeout(900)
async def test_a_mesh_gets_over_every_kind_of_fault_without_a_wrong_token_or_a_hang(
    tmp_path: Path,
):
    children = psutil.Process().children(recursive=True)
    mesh = Mesh(tiny(tmp_path), "fp32", four_nodes(LAYERS), session_ttl_s=10.0, joins=True)
    events = schedule(
        SEED,
        len(Fault) - len(SLOW),
        nodes=mesh.nodes,
        heads=mesh.heads,
        pace=PACE,
        without=SLOW,
    )

    async with Lab(mesh) as lab:
        storm = Storm(lab, asks(60), seed=SEED, squeeze_bytes=2**20, tell=print)
        record = await storm.run(events)
        kind = lab.network.kind

    print(kind, summary(record))
    assert record.faults == []
    assert tuple(record.events) == events
    assert record.verdicts[Verdict.RIGHT] > 0
    assert record.refills.total() > 0
    assert psutil.Process().children(recursive=True) == children
