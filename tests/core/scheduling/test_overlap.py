"""Sessions of a pipeline form as many groups as it has stages, so that no node idles."""

from __future__ import annotations

import pytest
from tests.core.scheduling.pipeline import Pipeline, cost

from meshnet.core.scheduling.overlap import RECENT_BATCHES, RecentSessions
from meshnet.core.scheduling.scheduler import StepScheduler
from meshnet.core.scheduling.steps import WaitingStep
from meshnet.core.vocabulary import LayerRange, ModelId, SessionId

LAYERS = LayerRange(0, 4)


def step(session: str, *, stages: int = 2, layers: LayerRange = LAYERS) -> WaitingStep:
    return WaitingStep(ModelId("m"), layers, SessionId(session), session, 1, stages=stages)


def sizes(scheduler: StepScheduler, batches: int) -> list[int]:
    return [len(scheduler.next_batch(0.0).run) for _ in range(batches)]


def test_a_batch_takes_the_share_of_one_stage() -> None:
    scheduler = StepScheduler()
    for number in range(8):
        scheduler.add(step(f"s{number}", stages=3))

    assert sizes(scheduler, 3) == [3, 3, 2]


def test_sessions_in_another_stage_count() -> None:
    """Else those that wait would be halved, and halved again, until each ran alone."""
    scheduler = StepScheduler()
    for number in range(8):
        scheduler.add(step(f"s{number}"))
    assert sizes(scheduler, 2) == [4, 4]
    for number in range(4):
        scheduler.add(step(f"s{number}"))

    assert sizes(scheduler, 1) == [4]


def test_sessions_that_came_no_more_count_no_more() -> None:
    recent = RecentSessions()
    recent.note([step("gone 1"), step("gone 2"), step("stays")])
    assert recent.share([step("stays"), step("new")]) == 2
    for _ in range(RECENT_BATCHES):
        recent.note([step("stays")])

    assert recent.share([step("stays"), step("new")]) == 1


def test_sessions_of_other_layers_do_not_count() -> None:
    recent = RecentSessions()
    recent.note([step(f"s{number}", layers=LayerRange(0, 3)) for number in range(8)])

    assert recent.share([step("a"), step("b")]) == 1


def test_a_route_of_one_stage_takes_all() -> None:
    scheduler = StepScheduler()
    for number in range(8):
        scheduler.add(step(f"s{number}", stages=1))

    assert sizes(scheduler, 1) == [8]


@pytest.mark.parametrize(("shares", "gain"), [((0.5, 0.5), 1.2), ((1 / 3, 1 / 3, 1 / 3), 1.25)])
def test_groups_that_overlap_make_more_tokens_than_lockstep(shares, gain) -> None:
    """Eight sessions that begin together, which is when lockstep lasts."""
    one_by_one = [1] * len(shares)
    in_groups = [len(shares), *one_by_one[1:]]

    lockstep = Pipeline(8, shares, one_by_one).throughput(1600)
    overlapping = Pipeline(8, shares, in_groups).throughput(1600)

    assert lockstep == pytest.approx(8 / cost(8), rel=0.01)
    assert overlapping >= gain * lockstep
