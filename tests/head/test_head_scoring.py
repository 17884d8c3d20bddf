"""A prompt whose log probabilities are wanted: its ids are drawn as told, by tails that can."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from tests.head.cluster import (
    LAYERS,
    LAYERS_TOTAL,
    PROMPT,
    B,
    C,
    Cluster,
    collect,
    request,
    running,
)

from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.vocabulary import HopLost, NodeId, SampledToken, SamplingParams
from meshnet.head import (
    FailureCode,
    FinishReason,
    GenerationFailed,
    GenerationRequest,
    Head,
    TokenEvent,
)
from meshnet.simulation.toy_drawing import draw, mix
from meshnet.simulation.toy_shard import CACHING, ToyShard, carrying, embed

D = NodeId("d")
SCORED = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3)


def scoring(answer: int, *, temperature: float = 0.0) -> GenerationRequest:
    sampling = SamplingParams(
        temperature=temperature,
        seed=7,
        logprobs=2,
        prompt_length=len(SCORED),
        forced=SCORED[1:],
    )
    tokens_max = len(SCORED) - 1 + answer
    return request(SCORED[:1], tokens_max=tokens_max, sampling=sampling, stop_ids=(9, 5))


def able(node: NodeId) -> ToyShard:
    return ToyShard(LAYERS[node], layers_total=LAYERS_TOTAL, capabilities=CACHING)


def scoring_cluster() -> Cluster:
    cluster = Cluster(truncate=True)
    for node in LAYERS:
        cluster.boot(node, able(node))
    return cluster


async def drawn(head: Head, asked: GenerationRequest) -> list[SampledToken]:
    async with aclosing(head.generate(asked)) as items:
        return [item.token async for item in items if isinstance(item, TokenEvent)]


def unsplit(asked: GenerationRequest, ids: list[int], position: int) -> SampledToken:
    """What the whole model draws after `ids[:position]`, computed in one go."""
    rows = [embed(token) for token in ids[:position]]
    for layer in range(LAYERS_TOTAL):
        number, above = layer + 1, []
        for at, row in enumerate(rows):
            number = mix(number, mix(row, at))
            above.append(carrying(row, number))
        rows = above
    return draw(rows[-1], position, ids[:position], asked.sampling)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_prompt_is_scored_as_the_unsplit_model_would(temperature: float):
    async with running(scoring_cluster()) as head:
        asked = scoring(answer=3, temperature=temperature)
        tokens = await drawn(head, asked)

    ids = [SCORED[0], *(token.token_id for token in tokens)]
    assert tuple(ids[: len(SCORED)]) == SCORED
    assert tokens == [unsplit(asked, ids, position) for position in range(1, len(ids))]


async def test_known_ids_are_sent_as_many_as_a_step_may_have():
    cluster = scoring_cluster()
    async with running(cluster) as head:
        await collect(head, scoring(answer=1))

    asked = [each.request for each in cluster.forwards if each.node == C]
    assert [len(each.tokens) for each in asked] == [1, 17, 10]
    assert [each.mode for each in asked] == [Mode.PREFILL, Mode.DECODE, Mode.DECODE]


async def test_a_stop_id_in_a_prompt_ends_nothing():
    async with running(scoring_cluster()) as head:
        tokens, finish = await collect(head, scoring(answer=0))

    assert tokens == SCORED[1:]
    assert finish.reason is FinishReason.LENGTH


async def test_a_lost_step_changes_no_log_probability():
    cluster, failed = scoring_cluster(), False

    async def lose_one(node: NodeId, sent: ForwardRequest) -> None:
        nonlocal failed
        if node == C and sent.drafts and not failed:
            failed = True
            raise HopLost("reset")

    async with running(cluster) as head:
        undisturbed = await drawn(head, scoring(answer=4))
        cluster.before_forward = lose_one
        assert await drawn(head, scoring(answer=4)) == undisturbed

    assert failed


async def test_last_layers_that_cannot_are_left_out_of_the_route():
    cluster = Cluster({**LAYERS, D: LAYERS[C]}, truncate=True)
    cluster.boot(D, able(C))
    async with running(cluster) as head:
        tokens, _ = await collect(head, scoring(answer=0))

    assert tokens == SCORED[1:]
    assert {each.node for each in cluster.forwards} >= {B, D}
    assert C not in {each.node for each in cluster.forwards}


async def test_where_no_last_layers_can_that_is_said_at_once():
    cluster = Cluster()
    async with running(cluster) as head:
        with pytest.raises(GenerationFailed) as failed:
            await collect(head, scoring(answer=0))
        tokens, _ = await collect(head, request(PROMPT, tokens_max=2))

    assert failed.value.code is FailureCode.NO_ROUTE
    assert "tell the log probabilities of a prompt" in str(failed.value)
    assert len(tokens) == 2
