"""Nodes that come back with other weights under the same model id."""

from __future__ import annotations

import asyncio

import pytest
from tests.head.cluster import LAYERS, B, Cluster, collect, expected, request, running

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.protocol.messages import ForwardRequest
from meshnet.core.vocabulary import LayerRange, NodeId
from meshnet.head import FailureCode, GenerationFailed, HeadLimits
from meshnet.simulation.loop import run
from meshnet.simulation.toy_shard import ToyShard

RETRAINED = "retrained"


def retrained(layers: LayerRange) -> ToyShard:
    return ToyShard(layers, layers_total=6, fingerprint=RETRAINED)


def test_other_weights_never_continue_what_the_first_ones_began():
    async def main():
        cluster = Cluster()

        async def replace_the_middle(node: NodeId, request: ForwardRequest) -> None:
            if node == B and request.past_length == 7:
                cluster.boot(B, retrained(LAYERS[B]))

        cluster.before_forward = replace_the_middle
        limits = HeadLimits(generation=GenerationLimits(recover_s=10.0))
        async with running(cluster, limits=limits) as head:
            with pytest.raises(GenerationFailed) as failed:
                await collect(head, request())

        assert failed.value.code is FailureCode.NO_ROUTE

    run(main, 0)


def test_a_chat_that_meets_new_weights_before_its_first_token_takes_them_everywhere():
    """The head's picture of the nodes is some seconds old when all of them were replaced."""

    async def main():
        cluster = Cluster()
        async with running(cluster) as head:
            for node, layers in LAYERS.items():
                cluster.boot(node, retrained(layers))
            tokens, _ = await collect(head, request())

            assert tokens == expected(request())
            route = head.directory.route(head.model)
            assert route.fingerprint == RETRAINED

    run(main, 0)


def test_a_chat_does_not_mix_weights_while_nodes_are_replaced_one_by_one():
    async def main():
        cluster = Cluster()
        async with running(cluster) as head:
            cluster.boot(B, retrained(LAYERS[B]))
            chat = asyncio.create_task(collect(head, request()))
            await asyncio.sleep(3.0)
            answered = {asked.node for asked in cluster.forwards}
            for node, layers in LAYERS.items():
                cluster.boot(node, retrained(layers))
            tokens, _ = await chat

            assert tokens == expected(request())
            assert LAYERS.keys() - answered, "no step went through both kinds of weights"

    run(main, 0)
