"""Clusters that lose nodes: right text, and no more work than the loss made (ADR-0041)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.sessions.budget import ByteBudget
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import KVCacheMiss, LayerRange, NodeId, SessionId
from meshnet.node.service import NodeService
from meshnet.simulation.faults import CALM, Faults
from meshnet.simulation.plan import CUTS, ChatPlan, ClusterPlan, NodePlan
from meshnet.simulation.salvage_mutants import (
    CRASHING,
    SALVAGE_MUTANTS,
    HandsFillsOn,
    SendsWhateverItKept,
    failing_plan,
)
from meshnet.simulation.world import REAL_PARTS, Parts, World, simulate_plan

SEEDS = range(40)
PROMPT = tuple(range(12))
TOKENS = 40
LOOPBACK = Faults(delay_max_s=0.002)


def cluster(*spares: NodePlan, streams: bool, **plan: object) -> ClusterPlan:
    nodes = tuple(NodePlan(NodeId(f"n{index}"), layers) for index, layers in enumerate(CUTS))
    chat = ChatPlan("c", head=0, starts_s=1.0, prompt=PROMPT, tokens_max=TOKENS)
    streaming = frozenset([0]) if streams else frozenset()
    return replace(
        ClusterPlan((*nodes, *spares), 1, (chat,), drafts=0, streaming_heads=streaming), **plan
    )


class KillsAt:
    """Ends nodes for a minute when the chat has so many tokens; tells what the others computed."""

    def __init__(self, *deaths: tuple[int, str]) -> None:
        self.deaths = list(deaths)
        self.computed: dict[str, int] = {}
        self.partial = 0

    async def __call__(self, world: World) -> None:
        (outcome,) = world.outcomes
        while True:
            await asyncio.sleep(0.0005)
            while self.deaths and len(outcome.tokens) >= self.deaths[0][0]:
                world.machines[NodeId(self.deaths.pop(0)[1])].kill(down_s=60.0)
            for machine in world.machines.values():
                service = machine.service
                if machine.up and isinstance(service, NodeService):
                    (work,) = service.work()
                    self.computed[machine.node] = work.tokens
            self.partial = world.heads[0].head.counters.partial_refills


def run_killing(plan: ClusterPlan, *deaths: tuple[int, str], parts: Parts = REAL_PARTS) -> KillsAt:
    watch = KillsAt(*deaths)
    history = simulate_plan(1, plan, LOOPBACK, parts, watch=watch)
    assert history.complaints == ()
    assert history.tokens == TOKENS
    return watch


SPARE = NodePlan(NodeId("spare"), CUTS[1])
ALL = len(PROMPT) + TOKENS - 1
"""Positions that a node runs which sees each one once."""
AGAIN = 2
"""A step that was under way when a node died is run again by those that had run it."""


@pytest.mark.parametrize("streams", [False, True], ids=["star", "chain"])
def test_survivors_run_no_old_position_when_the_middle_node_dies(streams):
    watch = run_killing(cluster(SPARE, streams=streams), (5, "n1"))

    assert watch.partial == 1
    assert ALL <= watch.computed["n0"] <= ALL + AGAIN
    assert ALL <= watch.computed["n2"] <= ALL + AGAIN
    assert ALL <= watch.computed["spare"] <= ALL + AGAIN


@pytest.mark.parametrize("streams", [False, True], ids=["star", "chain"])
def test_its_replacement_dies_too_and_two_nodes_share_its_layers(streams):
    halves = [
        NodePlan(NodeId("left"), LayerRange(3, 5)),
        NodePlan(NodeId("right"), LayerRange(5, 6)),
    ]
    watch = run_killing(cluster(SPARE, *halves, streams=streams), (5, "n1"), (9, "spare"))

    assert watch.partial == 2
    for node in ("n0", "n2"):
        assert ALL <= watch.computed[node] <= ALL + 2 * AGAIN
    for node in ("left", "right"):
        assert ALL <= watch.computed[node] <= ALL + AGAIN


@pytest.mark.parametrize("streams", [False, True], ids=["star", "chain"])
@pytest.mark.parametrize("lost", [("n0", "n1"), ("n1", "n2")])
def test_two_neighbours_die_at_once(streams, lost):
    spares = [NodePlan(NodeId(f"s{index}"), layers) for index, layers in enumerate(CUTS)]
    watch = run_killing(cluster(*spares, streams=streams), *((7, node) for node in lost))

    (survivor,) = {"n0", "n1", "n2"} - set(lost)
    assert watch.partial >= 1
    assert ALL <= watch.computed[survivor] <= ALL + 2 * AGAIN


@pytest.mark.parametrize("lost", ["n0", "n2"])
def test_the_first_and_the_last_node_are_replaced_alike(lost):
    spares = [NodePlan(NodeId(f"s{index}"), layers) for index, layers in enumerate(CUTS)]
    watch = run_killing(cluster(*spares, streams=True), (7, lost))

    assert watch.partial == 1
    for survivor in {"n0", "n1", "n2"} - {lost}:
        assert ALL <= watch.computed[survivor] <= ALL + AGAIN


def test_where_nothing_is_kept_the_hops_before_the_lost_one_are_filled_and_those_behind_are_not():
    plan = cluster(SPARE, streams=True)
    nodes = tuple(replace(node, kv_bytes_max=CUTS_BYTES) for node in plan.nodes)
    watch = run_killing(replace(plan, nodes=nodes), (5, "n1"))

    assert watch.partial == 1
    assert watch.computed["n0"] > ALL + AGAIN
    assert ALL <= watch.computed["n2"] <= ALL + AGAIN


CUTS_BYTES = 16 * 3 * (len(PROMPT) + TOKENS) + 8
"""Room for the keys and values of a session, and not for what it can do without."""


def test_states_that_cannot_be_shortened_are_filled_again_where_they_are_too_long():
    plan = cluster(SPARE, streams=True)
    nodes = tuple(replace(node, sums_up=True) for node in plan.nodes)
    watch = run_killing(replace(plan, nodes=nodes), (5, "n1"))

    assert ALL <= watch.computed["n2"] <= ALL + AGAIN


def test_nodes_from_before_replays_are_filled_whole_and_the_text_is_right():
    plan = cluster(SPARE, streams=True)
    nodes = tuple(replace(node, replays=False) for node in plan.nodes)
    watch = run_killing(replace(plan, nodes=nodes), (5, "n1"))

    assert watch.partial == 0
    assert watch.computed["n0"] > ALL + AGAIN


@pytest.mark.parametrize("old", range(3))
def test_an_old_node_among_new_ones_costs_work_and_no_wrong_token(old):
    plan = cluster(SPARE, streams=True)
    nodes = [*plan.nodes]
    nodes[old] = replace(nodes[old], replays=False)

    run_killing(replace(plan, nodes=tuple(nodes)), (5, "n1"))


def test_a_fill_that_is_handed_on_shows_in_what_the_node_behind_it_computed():
    watch = run_killing(
        cluster(SPARE, streams=False), (5, "n1"), parts=Parts(questions=HandsFillsOn)
    )

    assert watch.computed["n2"] > ALL + AGAIN


def sends_again(store_class: type[SessionCacheStore[str]], *ids: int) -> bool:
    store = store_class(budget=ByteBudget(1000))
    session, layers = SessionId("s"), LayerRange(0, 2)
    lease = store.prefill(
        session, layers=layers, tokens=2, attempt=1, wire=1, bytes_needed=8, now=0.0
    )
    store.commit(lease, state="rows", ids=(1, 2), state_bytes=8, spare_bytes=4, now=0.0)
    try:
        store.replay(
            session,
            layers=layers,
            past_length=0,
            ids=ids,
            prefix=PrefixDigest().hex,
            attempt=2,
            now=0.0,
        )
    except KVCacheMiss:
        return False
    return True


def test_rows_of_other_ids_are_not_sent_again_and_the_mutant_sends_them():
    """In storms it stands behind two more: what the head was told, and the next step."""
    assert sends_again(SessionCacheStore, 1, 2)
    assert not sends_again(SessionCacheStore, 1, 3)
    assert sends_again(SendsWhateverItKept, 1, 3)


@pytest.mark.parametrize("mutant", SALVAGE_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_within_a_bounded_number_of_seeds(mutant):
    histories = (
        simulate_plan(seed, failing_plan(seed, mutant.faults), mutant.faults, mutant.parts)
        for seed in SEEDS
    )

    assert any(each.complaints for each in histories)


@pytest.mark.parametrize("faults", [CRASHING, CALM], ids=["crashing", "calm"])
def test_the_real_code_keeps_every_promise_in_the_mutants_clusters(faults):
    histories = [simulate_plan(seed, failing_plan(seed, faults), faults) for seed in range(6)]

    assert [line for each in histories for line in each.complaints] == []
    if faults is CRASHING:
        assert sum(each.partial_refills for each in histories) > 4
