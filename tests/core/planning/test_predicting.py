"""What a plan will take, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.planning.meshes import (
    MB,
    MS,
    Draw,
    every_plan,
    hops_of,
    layer_of,
    mesh_of,
    node_of,
    shape_of,
    speed_of,
    whole_chunks,
)

from meshnet.core.planning import HEAD, Wanted, predict
from meshnet.core.planning.mesh import LOCAL, UNKNOWN, Way, Ways
from meshnet.core.planning.predicting import TOKEN_BYTES
from meshnet.core.planning.scoring import ANSWER_TOKENS, Scores
from meshnet.core.planning.times import reading_rate
from meshnet.core.vocabulary import BadField, Link, NodeId, Reading, Speed, WeightFormat

A, B = NodeId("a"), NodeId("b")
PLAIN = speed_of(10e9, multiplies_per_s=1e9, attention_bytes_per_s=1e9, layer_s=MS, step_s=2 * MS)
FOUR = shape_of([layer_of(10 * MB, multiplies=MB, per_token=1000)] * 4)


def test_a_token_on_one_node_is_step_layers_reading_and_attention():
    mesh = mesh_of(node_of("x", speed=PLAIN), head_machine="x", head_s=0.5 * MS)

    made = predict(hops_of("a 0-4"), FOUR, mesh, Wanted(2000, prompt=499), cutting=whole_chunks)

    time = made.hops[0].time
    assert time.step_s == 2 * MS
    assert time.layers_s == pytest.approx(4 * MS)
    assert time.reading_s == pytest.approx(40 * MB / 10e9)
    assert time.attention_s == pytest.approx(4 * 500 * 1000 / 1e9)
    assert time.products_s == 0
    local_s = TOKEN_BYTES / LOCAL.bytes_per_s
    assert made.token_s == pytest.approx((2 + 4 + 4 + 2 + 0.5) * MS + 2 * local_s)


def test_the_output_head_is_read_by_the_last_hop_alone():
    shape = shape_of([layer_of()] * 4, head_bytes=50 * MB)
    mesh = mesh_of(node_of("x"), node_of("y"))

    made = predict(
        hops_of("b 0-2, a 2-4"), shape, mesh, Wanted(100, prompt=1), cutting=whole_chunks
    )

    assert [hop.time.reading_s for hop in made.hops] == pytest.approx([2 * MS, 7 * MS])


def test_a_prompt_of_one_chunk_takes_all_hops_one_after_the_other():
    mesh = mesh_of(node_of("x", speed=PLAIN), head_machine="x")

    made = predict(hops_of("a 0-4"), FOUR, mesh, Wanted(2000, prompt=101), cutting=whole_chunks)

    products_s, attention_s = 4 * MB * 100 / 1e9, 4 * 101 * 51 * 1000 / 20e9
    local_s = 2 * TOKEN_BYTES / LOCAL.bytes_per_s
    assert made.first_s == pytest.approx(10 * MS + products_s + attention_s + local_s)


def test_chunks_follow_each_other_through_equal_hops():
    """Three chunks through two hops take four times as long as one on one of them."""
    shape = shape_of([layer_of(multiplies=100 * MB, per_token=0)] * 4, activation_bytes=0)
    mesh = mesh_of(node_of("x"), node_of("y"), node_of("z"))
    one, two = (
        predict(hops_of(text), shape, mesh, Wanted(2000, prompt=prompt), cutting=whole_chunks)
        for text, prompt in (("a 0-2, b 2-4", 128), ("a 0-2, b 2-4", 384))
    )

    ways_s = one.back_s + sum(hop.way_s for hop in one.hops)

    hop_s = (one.first_s - ways_s) / 2
    assert two.first_s - ways_s == pytest.approx(4 * hop_s)


def test_the_slowest_hop_paces_a_prompt():
    shape = shape_of([layer_of(multiplies=100 * MB, per_token=0)] * 4, activation_bytes=0)
    mesh = mesh_of(node_of("x"), node_of("y"))
    wanted = Wanted(3000, prompt=20 * 128)

    even, uneven = (
        predict(hops_of(text), shape, mesh, wanted, cutting=whole_chunks)
        for text in ("a 0-2, b 2-4", "a 0-3, b 3-4")
    )

    assert uneven.first_s / even.first_s == pytest.approx(3 * 20 / (2 * 20), rel=0.1)


@pytest.mark.parametrize(
    ("cores", "turns"),
    [
        (0, 5),  # not told, so enough: four chunks pass two hops one behind the other
        (4, 5),
        (2, 8),  # one hop at a time
    ],
)
def test_nodes_of_a_machine_take_turns_at_its_cores_in_a_prompt(cores, turns):
    shape = shape_of([layer_of(multiplies=100 * MB, per_token=0)] * 4, activation_bytes=0)
    mesh = mesh_of(node_of("x", threads=2, cores=cores), node_of("x", threads=2, cores=cores))

    def first_s(prompt: int) -> float:
        wanted = Wanted(3000, prompt=prompt)
        return predict(hops_of("a 0-2, b 2-4"), shape, mesh, wanted, cutting=whole_chunks).first_s

    assert first_s(512) / first_s(128) == pytest.approx(turns / 2, rel=0.02)


def test_a_core_is_not_waited_for_while_another_is_free():
    """Three hops on two cores: two chunks never need more than two at once."""
    shape = shape_of([layer_of(multiplies=100 * MB, per_token=0)] * 3, activation_bytes=0)
    mesh = mesh_of(*[node_of("x", cores=2)] * 3)

    def first_s(prompt: int) -> float:
        hops = hops_of("a 0-1, b 1-2, c 2-3")
        wanted = Wanted(3000, prompt=prompt)
        return predict(hops, shape, mesh, wanted, cutting=whole_chunks).first_s

    assert first_s(256) / first_s(128) == pytest.approx(4 / 3, rel=0.02)
    assert 3 * 8 / 2 <= 3 * first_s(1024) / first_s(128) < 3 * 8


def test_a_star_pays_the_way_over_the_gateway_between_hops():
    far = [Link(A, 20 * MS, 1e9), Link(B, 20 * MS, 1e9)]
    mesh = mesh_of(node_of("x", links=[Link(B, 2 * MS, 1e9)]), node_of("y"), head=tuple(far))
    chain, star = (
        predict(
            hops_of("a 0-2, b 2-4"), FOUR, mesh, Wanted(100, prompt=1),
            cutting=whole_chunks, chain=chain,
        )
        for chain in (True, False)
    )  # fmt: skip

    assert chain.hops[1].way_s == pytest.approx(MS, rel=0.01)
    assert star.hops[1].way_s == pytest.approx(20 * MS, rel=0.01)
    assert chain.hops[0].way_s == star.hops[0].way_s


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_the_parts_add_up_and_no_time_is_free(seed, chosen):
    draw = Draw(seed)
    hops = chosen.choice([*every_plan(draw.mesh, draw.shape)])

    made = predict(hops, draw.shape, draw.mesh, draw.wanted, cutting=whole_chunks)

    parts = [made.back_s, made.head_s]
    for hop in made.hops:
        time = hop.time
        parts += [hop.way_s, time.step_s, time.layers_s, time.reading_s, time.products_s]
        parts.append(time.attention_s)
        assert hop.weight_bytes == draw.shape.weight_bytes_of(hop.layers)
    assert min(parts) >= 0
    assert made.token_s == pytest.approx(sum(parts))
    assert made.tokens_per_s == pytest.approx(1 / sum(parts))
    assert made.first_s > 0
    assert made.together_tokens_per_s > 0


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_a_score_is_the_time_of_a_token_and_a_share_of_the_first(seed, chosen):
    """Exactly so where all chunks cost the same, nothing is drawn, and nodes share no cores."""
    draw = Draw(seed)
    shape = shape_of([layer_of(MB, per_token=0)] * len(draw.shape.layers))
    wanted = Wanted(2000, prompt=chosen.choice([1, 128, 384]))
    nodes = [replace(own, cores=0) for own in draw.mesh.nodes.values()]
    mesh = mesh_of(*nodes, head=draw.mesh.head)
    hops = chosen.choice([*every_plan(mesh, shape)])

    made = predict(hops, shape, mesh, wanted, cutting=whole_chunks)

    score = Scores(shape, mesh, wanted).score(hops)
    if score is not None:
        assert score == pytest.approx(made.token_s + made.first_s / ANSWER_TOKENS)


def test_several_sessions_fill_the_hops_of_a_pipeline():
    """Two sessions over two equal hops: while one is here, the other is there."""
    mesh = mesh_of(node_of("x"), node_of("y"))
    shape = shape_of([layer_of(per_token=0)] * 4, activation_bytes=0)

    one, two, many = (
        predict(
            hops_of("a 0-2, b 2-4"), shape, mesh, Wanted(100, sessions=sessions, prompt=1),
            cutting=whole_chunks,
        )
        for sessions in (1, 2, 16)
    )  # fmt: skip

    assert one.together_tokens_per_s == pytest.approx(one.tokens_per_s)
    assert two.together_tokens_per_s == pytest.approx(2 * one.tokens_per_s)
    assert two.together_tokens_per_s < many.together_tokens_per_s < 16 * one.tokens_per_s


def test_two_nodes_on_one_core_give_sessions_no_more_than_one():
    shape = shape_of([layer_of(per_token=0)] * 4)

    def together(cores: int) -> float:
        mesh = mesh_of(node_of("x", cores=cores), node_of("x", cores=cores), head_machine="x")
        wanted = Wanted(100, sessions=2, prompt=1)
        made = predict(hops_of("a 0-2, b 2-4"), shape, mesh, wanted, cutting=whole_chunks)
        return made.together_tokens_per_s

    assert together(1) == pytest.approx(together(2) / 2, rel=0.01)


def test_readings_are_joined_evenly_in_the_logarithm():
    speed = Speed(
        WeightFormat.INT8, (Reading(1 * MB, 40e9), Reading(100 * MB, 10e9)), 1e9, 1e9, 1e9, 0, 0
    )

    rates = [reading_rate(speed, held * MB) for held in (0.1, 1, 10, 100, 5000)]

    assert rates == pytest.approx([40e9, 40e9, 25e9, 10e9, 10e9])


def test_weights_of_a_shared_machine_pass_through_its_caches():
    fast_when_small = Speed(
        WeightFormat.INT8, (Reading(20 * MB, 40e9), Reading(40 * MB, 10e9)), 1e9, 1e9, 1e9, 0, 0
    )
    apart = mesh_of(node_of("x", speed=fast_when_small), node_of("y", speed=fast_when_small))
    beside = mesh_of(node_of("x", speed=fast_when_small), node_of("x", speed=fast_when_small))

    readings = [
        predict(
            hops_of("a 0-2, b 2-4"), FOUR, mesh, Wanted(100, prompt=1), cutting=whole_chunks
        ).hops[0].time.reading_s
        for mesh in (apart, beside)
    ]  # fmt: skip

    assert readings == pytest.approx([20 * MB / 40e9, 20 * MB / 10e9])


def test_ways_are_measured_local_over_the_gateway_or_unknown():
    mesh = mesh_of(
        node_of("x", links=[Link(B, 4 * MS, 1e9)]), node_of("y"), node_of("x"), node_of("z"),
        node_of("v"), head=(Link(A, 2 * MS, 1e8), Link(NodeId("d"), 6 * MS, 1e8)), head_machine="y",
    )  # fmt: skip
    ways = Ways(mesh, chain=True)

    a, b, c, d, e = map(NodeId, "abcde")
    assert ways.between(a, b) == Way(2 * MS, 1e9)
    assert ways.between(b, a) == Way(2 * MS, 1e9)
    assert ways.between(a, c) == LOCAL
    assert ways.between(HEAD, b) == LOCAL
    assert ways.between(a, d) == Way(4 * MS, 0.5e8)
    assert ways.between(a, e) == UNKNOWN
    assert ways.between(HEAD, e) == UNKNOWN


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a 0-2", "cover of 4 layers"),
        ("a 0-2, b 3-4", "cover"),
        ("a 0-2, a 2-4", "each node once"),
        ("a 0-2, q 2-4", "nodes of a, b"),
    ],
)
def test_hops_that_are_no_plan_are_refused(text, named):
    mesh = mesh_of(node_of("x"), node_of("y"))

    with pytest.raises(BadField, match=named):
        predict(hops_of(text), FOUR, mesh, Wanted(100, prompt=1), cutting=whole_chunks)


def test_a_node_that_measured_another_format_is_refused_by_name():
    other = Speed(WeightFormat.BF16, (Reading(MB, 1e9),), 1e9, 1e9, 1e9, 0, 0)
    mesh = mesh_of(node_of("x", speed=other))

    with pytest.raises(BadField, match="a: speeds: expected one of int8, got \\['bf16'\\]"):
        predict(hops_of("a 0-4"), FOUR, mesh, Wanted(100, prompt=1), cutting=whole_chunks)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"context": 0}, "context"),
        ({"context": 8, "prompt": 9}, "prompt"),
        ({"context": 8, "prompt": 0}, "prompt"),
        ({"context": 8, "prompt": 1, "sessions": 0}, "sessions"),
    ],
)
def test_what_cannot_be_wanted_is_refused_by_name(given, field):
    with pytest.raises(BadField, match=field):
        Wanted(**given)
