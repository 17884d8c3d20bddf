"""Which steps run together, who goes first, and who never waits too long: each rule by example."""

from __future__ import annotations

import pytest

from meshnet.core.scheduling.scheduler import StepScheduler
from meshnet.core.scheduling.steps import LIGHT_POSITIONS_MAX, BatchLimits, StepId, WaitingStep
from meshnet.core.vocabulary import LayerRange, ModelId, NoRoom, SessionId

MODEL = ModelId("m")
LAYERS = LayerRange(0, 4)
CHUNK = 512


class Queue:
    """A scheduler whose steps have names."""

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self.scheduler = StepScheduler(limits)
        self._names: dict[StepId, str] = {}

    def add(self, name: str, positions: int = 1, **fields: object) -> str:
        """Let a step wait. Without an owner or a session it has one of its own."""
        asked = {"model": MODEL, "layers": LAYERS, "session": SessionId(name), "owner": name}
        step = WaitingStep(positions=positions, **{**asked, **fields})
        self._names[self.scheduler.add(step)] = name
        return name

    def remove(self, name: str) -> bool:
        found = next(step_id for step_id, other in self._names.items() if other == name)
        return self.scheduler.remove(found)

    def batch(self, now: float = 0.0) -> list[str]:
        return self.names(self.scheduler.next_batch(now).run)

    def names(self, step_ids: tuple[StepId, ...]) -> list[str]:
        return [self._names[step_id] for step_id in step_ids]


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_waiting_decodes_run_together_in_the_order_they_came(queue: Queue) -> None:
    for name in "abc":
        queue.add(name)

    assert queue.batch() == ["a", "b", "c"]
    assert queue.batch() == []


def test_steps_of_another_model_or_of_other_layers_run_by_themselves(queue: Queue) -> None:
    queue.add("a")
    queue.add("other layers", layers=LayerRange(0, 3))
    queue.add("other model", model=ModelId("n"))
    queue.add("b")

    assert queue.batch() == ["a", "b"]
    assert queue.batch() == ["other layers"]
    assert queue.batch() == ["other model"]


def test_a_step_that_does_not_merge_runs_alone_and_in_its_turn(queue: Queue) -> None:
    queue.add("a")
    queue.add("alone", merges=False)
    queue.add("b")

    assert queue.batch() == ["a", "b"]
    assert queue.batch() == ["alone"]

    queue.add("first", merges=False)
    queue.add("second")
    assert queue.batch() == ["first"]


def test_steps_of_one_session_keep_their_order_and_never_share_a_batch(queue: Queue) -> None:
    """The second needs what the first leaves in the session's cache."""
    queue.add("chunk", CHUNK, session=SessionId("s"), owner="o")
    queue.add("last chunk", 3, session=SessionId("s"), owner="o")
    queue.add("decode", 1, session=SessionId("s"), owner="o")
    queue.add("other")

    assert queue.batch() == ["other", "chunk"]
    assert queue.batch() == ["last chunk"]
    assert queue.batch() == ["decode"]


def test_a_session_whose_last_chunk_is_short_does_not_wait_for_itself() -> None:
    """Its last chunk is as light as a decode, and must not hold up the chunk before it."""
    queue = Queue(BatchLimits(positions_max=CHUNK))
    queue.add("chunk", CHUNK, session=SessionId("s"), owner="o")
    queue.add("last chunk", 3, session=SessionId("s"), owner="o")
    queue.add("other chunk", CHUNK)
    ran = []
    for number in range(4):
        queue.add(f"decode {number}")
        ran.append(queue.batch())

    assert [ran[1], ran[3]] == [["chunk"], ["other chunk"]]
    assert "last chunk" in ran[2]


def test_a_batch_holds_at_most_so_many_steps() -> None:
    queue = Queue(BatchLimits(steps_max=2))
    for name in "abc":
        queue.add(name)

    assert queue.batch() == ["a", "b"]
    assert queue.batch() == ["c"]


def test_a_batch_holds_at_most_so_many_positions() -> None:
    queue = Queue(BatchLimits(positions_max=10))
    for name in "abc":
        queue.add(name, 4)

    assert queue.batch() == ["a", "b"]
    assert queue.batch() == ["c"]


def test_a_chunk_larger_than_the_budget_runs_alone() -> None:
    queue = Queue(BatchLimits(positions_max=100))
    queue.add("large", CHUNK)
    queue.add("small", 50)

    assert queue.batch() == ["large"]
    assert queue.batch() == ["small"]


def test_short_prompts_are_filled_together(queue: Queue) -> None:
    for name in "abc":
        queue.add(name, 200)

    assert queue.batch() == ["a", "b"]
    assert queue.batch() == ["c"]


def test_decodes_ride_with_a_chunk_that_fits(queue: Queue) -> None:
    queue.add("chunk", CHUNK)
    queue.add("decode")
    queue.add("drafts", LIGHT_POSITIONS_MAX)

    assert queue.batch() == ["decode", "drafts", "chunk"]


def test_a_chunk_that_does_not_fit_takes_turns_with_decodes() -> None:
    queue = Queue(BatchLimits(positions_max=CHUNK))
    queue.add("chunk 1", CHUNK)
    queue.add("chunk 2", CHUNK)
    batches = []
    for number in range(4):
        queue.add(f"decode {number}")
        batches.append(queue.batch())

    assert batches == [["decode 0"], ["chunk 1"], ["decode 1", "decode 2"], ["chunk 2"]]


def test_a_decode_that_came_during_a_chunk_runs_before_the_next_one(queue: Queue) -> None:
    """Also when it is one of many: a chunk that runs beside others would hold it up again."""
    queue.add("chunk 1", CHUNK)
    queue.add("chunk 2", CHUNK)
    assert queue.batch() == ["chunk 1"]
    for number in range(20):
        queue.add(f"decode {number}")

    first, second = queue.batch(), queue.batch()

    assert first == [f"decode {number}" for number in range(16)]
    assert second == ["decode 16", "decode 17", "decode 18", "decode 19", "chunk 2"]


def test_a_chunk_of_another_model_gets_its_turn_too(queue: Queue) -> None:
    queue.add("chunk", CHUNK, model=ModelId("n"))
    queue.add("a")
    assert queue.batch() == ["a"]
    queue.add("a")

    assert queue.batch() == ["chunk"]
    assert queue.batch() == ["a"]


def test_a_short_chunk_does_not_overtake_a_long_one_for_ever() -> None:
    queue = Queue(BatchLimits(positions_max=CHUNK))
    queue.add("long", CHUNK)
    order = []
    for number in range(3):
        queue.add(f"decode {number}")
        queue.add(f"short {number}", 32)
        order.append(queue.batch())

    rest = ["decode 1", "decode 2", "short 0", "short 1", "short 2"]
    assert order == [["decode 0"], ["long"], rest]


def test_owners_take_turns_however_many_steps_one_of_them_has() -> None:
    queue = Queue(BatchLimits(steps_max=1))
    for number in range(3):
        queue.add(f"a{number}", owner="a")
    queue.add("b", owner="b")
    queue.add("c", owner="c")

    assert [queue.batch() for _ in range(5)] == [["a0"], ["b"], ["c"], ["a1"], ["a2"]]


def test_an_owner_who_comes_back_waits_for_one_step_of_the_other() -> None:
    queue = Queue(BatchLimits(steps_max=1))
    for number in range(4):
        queue.add(f"a{number}", owner="a")
    served = []
    for _ in range(4):
        queue.add("b", owner="b")
        served += queue.batch() + queue.batch()

    assert served == ["a0", "b", "a1", "b", "a2", "b", "a3", "b"]


def test_chunks_of_several_owners_take_turns_as_well(queue: Queue) -> None:
    for number in range(3):
        queue.add(f"a{number}", CHUNK, owner="a")
    queue.add("b", CHUNK, owner="b")

    assert [queue.batch() for _ in range(4)] == [["a0"], ["b"], ["a1"], ["a2"]]


def test_a_full_queue_refuses_and_takes_again_what_left_it() -> None:
    queue = Queue(BatchLimits(waiting_max=2))
    queue.add("a")
    queue.add("b")
    with pytest.raises(NoRoom):
        queue.add("c")

    assert queue.remove("a")
    queue.add("c")

    assert queue.batch() == ["b", "c"]


def test_a_step_that_was_removed_never_runs_and_one_that_runs_cannot_be_removed(
    queue: Queue,
) -> None:
    queue.add("gone")
    queue.add("stays")

    assert queue.remove("gone")
    assert queue.batch() == ["stays"]
    assert not queue.remove("gone")
    assert not queue.remove("stays")


def test_a_step_whose_deadline_has_passed_leaves_unrun(queue: Queue) -> None:
    queue.add("late", deadline=5.0)
    queue.add("early", deadline=5.5)

    batch = queue.scheduler.next_batch(5.0)

    assert queue.names(batch.spent) == ["late"]
    assert queue.names(batch.run) == ["early"]
    assert len(queue.scheduler) == 0


def test_a_queue_that_is_cleared_holds_nothing(queue: Queue) -> None:
    for name in "abc":
        queue.add(name)

    assert len(queue.scheduler.clear()) == 3
    assert queue.batch() == []


def test_a_step_has_positions_and_stages() -> None:
    with pytest.raises(ValueError, match="positions"):
        WaitingStep(MODEL, LAYERS, None, "o", 0)
    with pytest.raises(ValueError, match="stages"):
        WaitingStep(MODEL, LAYERS, None, "o", 1, stages=0)
    with pytest.raises(ValueError, match="at least 1"):
        BatchLimits(steps_max=0)


def test_a_chunk_that_would_run_beside_decodes_does_not_overtake_one_of_another_model(
    queue: Queue,
) -> None:
    queue.add("other model", CHUNK, model=ModelId("n"))
    ran = []
    for number in range(3):
        queue.add(f"decode {number}")
        queue.add(f"chunk {number}", 32)
        ran.append(queue.batch())

    assert ran[:2] == [["decode 0"], ["other model"]]
    assert "chunk 0" in ran[2]


def test_a_chunk_beside_decodes_counts_as_one_of_the_steps() -> None:
    queue = Queue(BatchLimits(steps_max=2))
    for name in "ab":
        queue.add(name)
    queue.add("chunk", 32)

    assert queue.batch() == ["a", "b"]
    assert queue.batch() == ["chunk"]
