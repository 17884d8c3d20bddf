"""What holds for every queue: who runs together, who waits for whom, and that nobody starves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.core.scheduling.scheduler import StepScheduler
from meshnet.core.scheduling.steps import Batch, BatchLimits, StepId, WaitingStep
from meshnet.core.vocabulary import LayerRange, ModelId, NoRoom, SessionId

LIMITS = BatchLimits(positions_max=40, steps_max=3, waiting_max=6)
LIGHT, CHUNKS = st.integers(1, 17), st.sampled_from([18, 20, 30, 64])

LAWS = settings(max_examples=100, derandomize=True, deadline=None)


def steps(positions: st.SearchStrategy[int]) -> st.SearchStrategy[WaitingStep]:
    return st.builds(
        WaitingStep,
        model=st.just(ModelId("m")),
        layers=st.sampled_from([LayerRange(0, 4), LayerRange(0, 4), LayerRange(4, 8)]),
        session=st.sampled_from([None, *(SessionId(name) for name in "pqrstuvw")]),
        owner=st.sampled_from("abc"),
        positions=positions,
        merges=st.sampled_from([True, True, True, False]),
        stages=st.sampled_from([1, 1, 2, 3]),
    )


ANY = st.one_of(steps(LIGHT), steps(CHUNKS))
PLAYS = st.lists(st.one_of(ANY, st.none(), st.integers(0, 20)), max_size=60)
"""A step comes, a batch is asked for (None), or one of those that wait leaves (a number)."""
PACES = st.sampled_from([-1.0, 1.0])
"""When a batch is asked for."""


@dataclass
class Play:
    """Plays to a scheduler, and keeps its own book of who waits and since when."""

    scheduler: StepScheduler = field(default_factory=lambda: StepScheduler(LIMITS))
    waiting: dict[StepId, WaitingStep] = field(default_factory=dict)
    batches: list[list[tuple[StepId, WaitingStep]]] = field(default_factory=list)

    def add(self, step: WaitingStep) -> StepId | None:
        try:
            step_id = self.scheduler.add(step)
        except NoRoom:
            assert len(self.waiting) == LIMITS.waiting_max
            return None
        self.waiting[step_id] = step
        return step_id

    def leave(self, number: int) -> None:
        if self.waiting:
            step_id = list(self.waiting)[number % len(self.waiting)]
            assert self.scheduler.remove(step_id)
            del self.waiting[step_id]

    def batch(self) -> list[tuple[StepId, WaitingStep]]:
        run = self.scheduler.next_batch(0.0).run
        chosen = [(step_id, self.waiting.pop(step_id)) for step_id in run]
        self.batches.append(chosen)
        return chosen

    def ready(self, step_id: StepId) -> bool:
        """No earlier step of its session waits."""
        session = self.waiting[step_id].session
        return session is None or step_id == min(
            other for other, step in self.waiting.items() if step.session == session
        )

    def all(self, moves: list[WaitingStep | int | None]) -> Play:
        for move in moves:
            match move:
                case None:
                    self.batch()
                case WaitingStep():
                    self.add(move)
                case _:
                    self.leave(move)
        return self


@LAWS
@given(PLAYS)
def test_only_what_may_run_together_does_and_within_the_budget(moves):
    for batch in Play().all(moves).batches:
        together = [step for _, step in batch]
        sessions = [step.session for step in together if step.session is not None]

        assert len(together) <= LIMITS.steps_max
        assert len({(step.model, step.layers) for step in together}) <= 1
        assert len(set(sessions)) == len(sessions)
        if len(together) > 1:
            assert all(step.merges for step in together)
            assert sum(step.positions for step in together) <= LIMITS.positions_max


@LAWS
@given(PLAYS)
def test_a_device_is_never_left_idle_while_a_step_waits(moves):
    play = Play().all(moves)
    while play.waiting:
        assert play.batch()


class Choosing(StepScheduler):
    """Goes the whole way also where there is nothing to choose from."""

    def next_batch(self, now: float) -> Batch:
        return self._chosen(now)


TIMED = st.builds(replace, ANY, deadline=st.sampled_from([None, None, None, None, None, 0.0]))


@LAWS
@given(st.lists(st.one_of(TIMED, PACES), min_size=20, max_size=60))
def test_the_only_step_is_taken_as_if_it_had_been_chosen(moves):
    short, long = StepScheduler(LIMITS), Choosing(LIMITS)
    for move in moves:
        if isinstance(move, WaitingStep):
            if len(short) < LIMITS.waiting_max:
                assert short.add(move) == long.add(move)
        else:
            assert short.next_batch(move) == long.next_batch(move)
            assert len(short) == len(long)


@LAWS
@given(PLAYS)
def test_the_same_play_gives_the_same_batches(moves):
    assert Play().all(moves).batches == Play().all(moves).batches


@LAWS
@given(PLAYS)
def test_a_light_step_waits_for_one_chunk_at_most(moves):
    """A chunk that runs when it comes counts; those of its own session before it do not."""
    play, chunks_seen, chunk_runs = Play(), Counter(), False
    for move in moves:
        if isinstance(move, WaitingStep):
            step_id = play.add(move)
            if step_id is not None and chunk_runs:
                chunks_seen[step_id] += move.is_light and play.ready(step_id)
        elif move is None:
            ready = [step_id for step_id in play.waiting if play.ready(step_id)]
            batch = play.batch()
            chunk_runs = any(not step.is_light for _, step in batch)
            for step_id in ready:
                if chunk_runs and step_id in play.waiting and play.waiting[step_id].is_light:
                    chunks_seen[step_id] += 1
        else:
            play.leave(move)

    assert max(chunks_seen.values(), default=0) <= 1


@LAWS
@given(PLAYS)
def test_like_steps_of_one_owner_run_in_the_order_they_came(moves):
    play = Play()
    alike = [
        replace(move, session=None, merges=True) if isinstance(move, WaitingStep) else move
        for move in moves
    ]
    play.all(alike)
    order: dict[object, list[StepId]] = {}
    for batch in play.batches:
        for step_id, step in batch:
            order.setdefault((step.owner, step.layers, step.is_light), []).append(step_id)

    assert all(step_ids == sorted(step_ids) for step_ids in order.values())


def batches_until(play: Play, wanted: StepId, others: list[WaitingStep]) -> int:
    """Fill the queue up before each batch, and count them until `wanted` runs."""
    rest = cycle(others)
    for count in range(1, 10_000):
        while len(play.waiting) < LIMITS.waiting_max and others:
            play.add(next(rest))
        if wanted in [step_id for step_id, _ in play.batch()]:
            return count
    raise AssertionError("starved")


def earlier(play: Play, wanted: StepId) -> int:
    """Count the steps that its owner had waiting before it."""
    owner = play.waiting[wanted].owner
    return sum(step.owner == owner for other, step in play.waiting.items() if other < wanted)


@LAWS
@given(PLAYS, steps(LIGHT), st.lists(ANY, max_size=7))
def test_no_light_step_starves(moves, step, others):
    """It has a session of its own: one behind its session's chunk waits as long as that does."""
    play = Play().all(moves)
    wanted = play.add(replace(step, session=SessionId("own")))
    if wanted is None:
        return
    bound = 2 * (earlier(play, wanted) + 1) * LIMITS.waiting_max

    assert batches_until(play, wanted, others) <= bound


@LAWS
@given(PLAYS, steps(CHUNKS), st.lists(ANY, max_size=7))
def test_no_chunk_starves(moves, step, others):
    play = Play().all(moves)
    wanted = play.add(replace(step, session=SessionId("own")))
    if wanted is None:
        return
    most = LIMITS.waiting_max
    bound = (earlier(play, wanted) + 1) * most * (most * most // 4 + most + 2)

    assert batches_until(play, wanted, others) <= bound


@LAWS
@given(st.integers(2, 5), st.integers(1, 4), st.sampled_from([1, 20]))
def test_owners_with_much_to_do_get_equal_shares(owners, per_owner, positions):
    """However many sessions each of them has: here the first has several, the others one."""
    scheduler = StepScheduler(BatchLimits(steps_max=1))
    names = ["a"] * per_owner + [chr(ord("b") + number) for number in range(owners - 1)]
    template = WaitingStep(ModelId("m"), LayerRange(0, 4), None, "a", positions)
    owner_of = {scheduler.add(replace(template, owner=name)): name for name in names}
    served: Counter[str] = Counter()
    for _ in range(owners * 12):
        (step_id,) = scheduler.next_batch(0.0).run
        owner = owner_of.pop(step_id)
        served[owner] += 1
        owner_of[scheduler.add(replace(template, owner=owner))] = owner

    assert len(served) == owners
    assert max(served.values()) - min(served.values()) <= 1
