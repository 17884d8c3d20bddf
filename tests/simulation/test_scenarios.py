"""Named clusters: contention for places, opposite orders, a head that dies with its sessions."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from meshnet.core.vocabulary import NodeId, SamplingParams
from meshnet.simulation.clients import Ending
from meshnet.simulation.faults import CALM, STORM, Faults
from meshnet.simulation.plan import CUTS, ChatPlan, ClusterPlan, NodePlan, plan
from meshnet.simulation.world import World, simulate_plan

LOOPBACK = Faults(delay_max_s=0.002)
SAMPLE_S = 0.02


def nodes(sessions_max: int, order: tuple[int, ...] = (0, 1, 2)) -> tuple[NodePlan, ...]:
    """Three nodes; `order` names which of them (by id) holds which cut."""
    return tuple(
        NodePlan(NodeId(f"n{name}"), layers, sessions_max=sessions_max)
        for name, layers in zip(order, CUTS, strict=True)
    )


def chats(count: int, heads: int, tokens_max: int) -> tuple[ChatPlan, ...]:
    return tuple(
        ChatPlan(
            name=f"c{index}",
            head=index % heads,
            starts_s=1.0,
            prompt=(index % 32, 1, 2, 3),
            tokens_max=tokens_max,
            sampling=SamplingParams(temperature=0.8, seed=index, prompt_length=4),
        )
        for index in range(count)
    )


class Watch:
    """Looks at the cluster every few milliseconds while chats wait for their first token."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.samples = self.busy = 0
        self.world: World | None = None

    async def __call__(self, world: World) -> None:
        self.world = world
        while True:
            await asyncio.sleep(SAMPLE_S)
            now = asyncio.get_running_loop().time()
            begun = [each for each in world.outcomes if each.plan.starts_s + 0.1 < now]
            if any(each.ending is Ending.OPEN and not each.tokens for each in begun):
                self.samples += 1
                self.busy += all(
                    machine.service.describe().sessions == self.places
                    for machine in world.machines.values()
                )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_two_heads_with_opposite_orders_finish_six_sessions_on_three_nodes(seed, order):
    """No hold-and-wait: each node has room for two, and both heads want all of it at once."""
    cluster = ClusterPlan(nodes(2, order), heads=2, chats=chats(6, heads=2, tokens_max=15))

    history = simulate_plan(seed, cluster, CALM)

    assert history.generations == 6
    assert history.complaints == ()


@pytest.mark.parametrize("heads", [1, 2])
def test_twelve_chats_share_two_places_and_all_finish(heads):
    """Pit C1."""
    watch = Watch(places=2)
    cluster = ClusterPlan(nodes(2), heads=heads, chats=chats(12, heads, tokens_max=100))

    history = simulate_plan(1, cluster, LOOPBACK, watch=watch)

    assert history.complaints == ()
    assert watch.world is not None
    finishes = [outcome.finish for outcome in watch.world.outcomes]
    assert sum(finish.prefills for finish in finishes if finish is not None) <= 2 * 12
    assert watch.samples > 100
    assert watch.busy >= 0.9 * watch.samples


def test_those_who_wait_for_a_place_ask_with_pauses_and_cost_nobody_a_refill():
    """A round's places are given back before the next round asks, and do not hurry it.

    Else a late hint frees the place just won, and whoever waits asks as fast as answers come.
    """
    watch = Watch(places=2)
    cluster = ClusterPlan(nodes(2), heads=2, chats=chats(12, heads=2, tokens_max=100))

    history = simulate_plan(1, cluster, LOOPBACK, watch=watch)

    assert history.refills == 0
    assert watch.world is not None
    rounds = sum(each.head.counters.holds for each in watch.world.heads)
    assert rounds < 20 * 12


def kill_the_first_head(at_s: float) -> Callable[[World], Coroutine[None, None, None]]:
    async def watch(world: World) -> None:
        await asyncio.sleep(at_s)
        assert all(each.tokens for each in world.outcomes[:8]), "all eight must be running"
        world.heads[0].crash()
        await asyncio.Event().wait()

    return watch


def test_a_new_chat_starts_within_ten_seconds_after_a_head_died_with_eight_sessions():
    """Pits A79 and C15: nobody releases the eight; their pins run out (architecture, section 3)."""
    newcomer = ChatPlan("new", head=1, starts_s=4.0, prompt=(5, 6), tokens_max=5)
    doomed = chats(8, heads=1, tokens_max=2000)
    cluster = ClusterPlan(nodes(8), heads=2, chats=(*doomed, newcomer))
    began: list[float] = []

    async def watch(world: World) -> None:
        try:
            await kill_the_first_head(4.0)(world)
        finally:
            began.extend(each.first_token_at or 1e9 for each in world.outcomes[8:])

    history = simulate_plan(3, cluster, LOOPBACK, watch=watch)

    assert history.complaints == ()
    assert began[0] - 4.0 < 10.0


def test_the_older_of_two_sessions_goes_on_though_each_holds_what_the_other_needs():
    """Seed 10297: bytes were short on one node, places on the next; 991 refills and no end."""
    history = simulate_plan(10297, plan(10297, STORM), STORM)

    assert history.complaints == ()
    assert history.refills < 20
