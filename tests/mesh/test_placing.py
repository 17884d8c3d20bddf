"""When members are told what to hold, and that one decision stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.mesh.members import MODEL, member, sqlite_registry

from meshnet.core.protocol.members import EPOCH_MAX, decode_assignments, encode_assignments
from meshnet.core.routing.placement import ModelSize, place
from meshnet.core.vocabulary import Assignments, LayerRange, Member, MemberState, NodeId
from meshnet.mesh.placing import ASSIGNMENTS, SETTLES_MAX, Decision, Placer
from meshnet.mesh.registry.following import Following
from meshnet.mesh.registry.sqlite import SqliteRegistry
from meshnet.simulation.loop import run
from meshnet.telemetry.events import Event, LayersAssigned

A, B, C = member(1), member(2), member(3)
SETTLE_S = 5.0
TTL_S = 1000.0
NOTHING = Assignments(MODEL, "./tiny", "int8")
SIZE = ModelSize(MODEL, 6)


class Placing:
    """A placer that follows a registry, as a gateway has it."""

    def __init__(self, registry: SqliteRegistry, model: Assignments = NOTHING) -> None:
        self.registry = registry
        self.events: list[Event] = []
        self.decisions = 0
        self.placer = Placer(
            registry,
            model,
            self._decide,
            settle_s=SETTLE_S,
            clock=asyncio.get_running_loop().time,
            record=self.events.append,
        )
        self.following = Following(
            registry,
            self.placer.seen,
            resync_s=TTL_S,
            jitter=lambda: 1.0,
            record=self.events.append,
        )

    async def _decide(
        self, members: Collection[Member], present: Mapping[NodeId, LayerRange]
    ) -> Decision:
        self.decisions += 1
        placement = place(members, SIZE, present)
        return placement.ranges, placement.reason

    async def told(self) -> Assignments | None:
        value = await self.registry.get(ASSIGNMENTS)
        return None if value is None else decode_assignments(value.value)

    async def layers(self) -> dict[str, str]:
        told = await self.told()
        return {} if told is None else {n: str(layers) for n, (layers, _) in told.held.items()}


@asynccontextmanager
async def placing(registry: SqliteRegistry, model: Assignments = NOTHING) -> AsyncIterator[Placing]:
    made = Placing(registry, model)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(made.following.run()), tasks.create_task(made.placer.run())]
        yield made
        for task in running:
            task.cancel()


def test_nothing_is_told_before_members_have_had_time_to_come():
    async def main():
        registry = sqlite_registry()
        async with placing(registry) as mesh:
            await registry.announce(A, TTL_S)
            await asyncio.sleep(SETTLE_S - 1)
            await registry.announce(B, TTL_S)
            await asyncio.sleep(SETTLE_S - 1)
            early = await mesh.layers()
            await asyncio.sleep(2)

            assert early == {}
            assert await mesh.layers() == {A.node: "0-3", B.node: "3-6"}
            assert mesh.decisions == 1
            assert mesh.events == [LayersAssigned(2, 1)]

    run(main, 0)


def test_members_that_never_stop_coming_do_not_hold_it_up_for_ever():
    async def main():
        registry = sqlite_registry()
        async with placing(registry) as mesh:
            for number in range(2 * SETTLES_MAX + 2):
                await registry.announce(member(number), TTL_S)
                await asyncio.sleep(SETTLE_S * 0.7)

            assert mesh.decisions >= 1

    run(main, 0)


def test_that_members_load_and_become_ready_is_no_reason_to_decide_again():
    async def main():
        registry = sqlite_registry()
        async with placing(registry) as mesh:
            await registry.announce(A, TTL_S)
            await asyncio.sleep(2 * SETTLE_S)
            for state in (MemberState.LOADING, MemberState.READY):
                told = replace(A, state=state, model=MODEL, layers=LayerRange(0, 6), epoch=1)
                await registry.announce(told, TTL_S)
                await asyncio.sleep(2 * SETTLE_S)

            assert mesh.decisions == 1

    run(main, 0)


def test_a_member_that_died_is_replaced_and_the_others_keep_their_epochs():
    async def main():
        registry = sqlite_registry()
        async with placing(registry) as mesh:
            for each in (A, B):
                await registry.announce(each, TTL_S)
            await asyncio.sleep(2 * SETTLE_S)
            await registry.announce(C, TTL_S)
            await registry.leave(B.node)
            await asyncio.sleep(2 * SETTLE_S)

            told = await mesh.told()
            assert told is not None
            assert told.held == {A.node: (LayerRange(0, 3), 1), C.node: (LayerRange(3, 6), 2)}

    run(main, 0)


def test_a_placer_that_starts_again_changes_nothing():
    async def main():
        registry = sqlite_registry()
        for each in (A, B):
            await registry.announce(each, TTL_S)
        async with placing(registry) as mesh:
            await asyncio.sleep(2 * SETTLE_S)
            first = await registry.get(ASSIGNMENTS)

        async with placing(registry) as mesh:
            await asyncio.sleep(2 * SETTLE_S)

            assert mesh.decisions == 1
            assert await registry.get(ASSIGNMENTS) == first

    run(main, 0)


def test_where_the_value_was_lost_members_keep_what_they_hold_under_a_later_epoch():
    """Their epochs are higher than any that a new value would begin with."""

    async def main():
        registry = sqlite_registry()
        holding = [
            replace(member(1, "0-2"), state=MemberState.READY, epoch=7),
            replace(member(2, "2-6"), state=MemberState.READY, epoch=9),
        ]
        for each in holding:
            await registry.announce(each, TTL_S)
        async with placing(registry) as mesh:
            await asyncio.sleep(2 * SETTLE_S)

            told = await mesh.told()
            assert told is not None
            assert told.held == {A.node: (LayerRange(0, 2), 10), B.node: (LayerRange(2, 6), 10)}

    run(main, 0)


def test_another_model_is_told_to_everybody_anew_and_later():
    async def main():
        registry = sqlite_registry()
        await registry.announce(A, TTL_S)
        async with placing(registry):
            await asyncio.sleep(2 * SETTLE_S)

        async with placing(registry, replace(NOTHING, source="./other", weights="fp32")) as mesh:
            await asyncio.sleep(2 * SETTLE_S)

            told = await mesh.told()
            assert told is not None
            assert (told.source, told.weights, told.epoch) == ("./other", "fp32", 2)
            assert told.held == {A.node: (LayerRange(0, 6), 2)}

    run(main, 0)


def test_of_two_decisions_one_stands_and_the_other_is_made_again():
    """Both gateways read the same value; only one may write over it."""

    async def main():
        registry = sqlite_registry()
        async with placing(registry) as mesh, placing(registry) as other:
            for each in (A, B, C):
                await registry.announce(each, TTL_S)
            await asyncio.sleep(3 * SETTLE_S)

            told = await mesh.told()
            assert told is not None
            assert told.epoch == 1
            assert mesh.decisions + other.decisions >= 2
            assert set(told.held) == {A.node, B.node, C.node}

    run(main, 0)


def test_a_value_of_a_later_form_is_written_over():
    async def main():
        registry = sqlite_registry()
        await registry.compare_and_set(ASSIGNMENTS, None, b'{"plan": "of the future"}')
        await registry.announce(A, TTL_S)
        async with placing(registry) as mesh:
            await asyncio.sleep(2 * SETTLE_S)

            assert await mesh.layers() == {A.node: "0-6"}

    run(main, 0)


def test_what_is_missing_is_said():
    async def main():
        registry = sqlite_registry()
        async with placing(registry) as mesh:
            assert "no node has joined" in mesh.placer.reason
            await registry.announce(replace(A, failure="no space left"), TTL_S)
            await asyncio.sleep(2 * SETTLE_S)

            assert "no space left" in mesh.placer.reason

    run(main, 0)


def test_a_member_that_obeyed_a_later_word_than_is_known_keeps_what_it_holds():
    """The value was lost and written anew before this member was back: it would obey none of it."""

    async def main():
        registry = sqlite_registry()
        lost = NOTHING.changed({A.node: LayerRange(0, 2), B.node: LayerRange(2, 6)})
        await registry.compare_and_set(ASSIGNMENTS, None, encode_assignments(lost))
        await registry.announce(replace(A, epoch=1, model=MODEL, layers=LayerRange(0, 2)), TTL_S)
        await registry.announce(replace(B, epoch=7, model=MODEL, layers=LayerRange(1, 6)), TTL_S)
        async with placing(registry) as mesh:
            await asyncio.sleep(2 * SETTLE_S)

            told = await mesh.told()
            assert told is not None
            assert told.held == {A.node: (LayerRange(0, 2), 1), B.node: (LayerRange(1, 6), 8)}

    run(main, 0)


def test_a_member_that_says_the_last_epoch_there_is_hinders_nobody():
    """Nodes would refuse the value that comes behind it."""

    async def main():
        registry = sqlite_registry()
        for each in (replace(A, epoch=EPOCH_MAX), B):
            await registry.announce(each, TTL_S)
        async with placing(registry) as mesh:
            await asyncio.sleep(2 * SETTLE_S)

            told = await mesh.told()
            assert told is not None
            assert told.held == {A.node: (LayerRange(0, 3), 1), B.node: (LayerRange(3, 6), 1)}

    run(main, 0)


def test_members_that_could_not_hold_another_model_are_told_this_one():
    """Nothing else would ever let them try it: its gateway was started with the wrong path."""

    async def main():
        registry = sqlite_registry()
        wrong = replace(NOTHING, source="./wrong").changed({A.node: LayerRange(0, 6)})
        await registry.compare_and_set(ASSIGNMENTS, None, encode_assignments(wrong))
        await registry.announce(replace(A, epoch=1, failure="no such model"), TTL_S)
        async with placing(registry) as mesh:
            await asyncio.sleep(2 * SETTLE_S)
            first = await mesh.told()
            await registry.announce(B, TTL_S)
            await asyncio.sleep(2 * SETTLE_S)

            assert first is not None
            assert first.held == {A.node: (LayerRange(0, 6), 2)}
            assert await mesh.layers() == {A.node: "0-6", B.node: "0-6"}, "it has not heard yet"

    run(main, 0)
