"""What a node refuses to run, before it allocates anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.node.bench import (
    LAYERS,
    PROMPT,
    SESSION,
    Bench,
    BenchThread,
    ShardWithHook,
    decode,
    hidden,
    prefill,
    refused,
    rows,
)

from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    ReserveRequest,
    TokenReply,
)
from meshnet.core.vocabulary import (
    Capabilities,
    DType,
    LayerRange,
    ShardDescription,
)
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_drawing import VOCABULARY
from meshnet.simulation.toy_shard import HIDDEN_SIZE, ROW_BYTES


async def test_a_raw_body_that_is_no_whole_number_of_rows_is_refused(middle: Bench) -> None:
    raw = bytes(rows(3).data)[:-1]

    refused(await middle.ask(ForwardRequest(Mode.STATELESS, raw=raw)), Code.BAD_REQUEST)


BAD_ACTIVATIONS = {
    "rank": hidden(DType.FP32, 3, HIDDEN_SIZE),
    "batch": hidden(DType.FP32, 2, 3, HIDDEN_SIZE),
    "hidden size": hidden(DType.FP32, 1, 3, HIDDEN_SIZE + 1),
    "more ids than positions": hidden(DType.FP32, 1, 2, HIDDEN_SIZE),
}


@pytest.mark.parametrize("what", BAD_ACTIVATIONS)
async def test_an_activation_that_does_not_fit_the_shard_is_refused_unrun(
    middle: Bench, what: str
) -> None:
    request = replace(prefill(), activation=BAD_ACTIVATIONS[what])

    refused(await middle.ask(request), Code.BAD_REQUEST)

    assert middle.shard.steps == []
    assert middle.service.describe().kv_bytes == 0


BAD_REQUESTS = {
    "no ids": prefill(()),
    "id beyond the vocabulary": prefill((VOCABULARY,)),
    "id below zero": prefill((-1,)),
    "an activation for layer 0": replace(prefill(), activation=rows(3)),
    "a raw body for layer 0": replace(prefill(), raw=bytes(ROW_BYTES)),
    "past length of a prefill": replace(prefill(), past_length=1),
    "past length below zero": decode(-1, 1),
    "positions beyond the context": decode(4095, 1, 2),
    "no session": ForwardRequest(Mode.PREFILL, tokens=PROMPT),
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
async def test_a_wrong_field_is_refused_before_anything_is_allocated(
    whole: Bench, what: str
) -> None:
    refused(await whole.ask(BAD_REQUESTS[what]), Code.BAD_REQUEST)

    assert whole.shard.steps == []
    assert whole.service.session(SESSION) is None


async def test_a_hop_that_embeds_nothing_needs_an_activation(middle: Bench) -> None:
    refused(await middle.ask(prefill()), Code.BAD_REQUEST)


async def test_several_positions_decode_only_where_the_self_test_passed(whole: Bench) -> None:
    """Pit C6."""
    await whole.prefilled()
    whole.shard.capabilities = Capabilities(kv_cache=True, multi_token=False)

    refused(await whole.ask(decode(3, 5, 6)), Code.BAD_REQUEST)
    single = await whole.ask(decode(3, 5))

    assert isinstance(single, TokenReply)
    assert single.cached == 4


async def test_layers_that_are_not_here_are_not_found(middle: Bench) -> None:
    request = replace(prefill(), layers=LayerRange(2, 4), activation=rows(3))

    refused(await middle.ask(request), Code.NOT_FOUND)


async def test_other_weights_under_the_same_model_id_are_not_found(whole: Bench) -> None:
    held = whole.shard.description.fingerprint

    same = await whole.ask(replace(prefill(), fingerprint=held))
    other = await whole.ask(replace(prefill(), fingerprint="of other weights"))

    assert isinstance(same, TokenReply)
    refused(other, Code.NOT_FOUND)
    assert whole.service.session(SESSION) is not None


async def test_layers_that_share_state_cannot_be_cut_apart(thread: BenchThread) -> None:
    class Sharing(ShardWithHook):
        @property
        def description(self) -> ShardDescription:
            return replace(super().description, inseparable=(LayerRange(1, 3),))

    bench = Bench(thread, LayerRange(0, LAYERS))
    bench.shard = Sharing(LayerRange(0, LAYERS))
    bench.service = bench.serve(NodeLimits(kv_bytes_max=2**20))

    cut = await bench.ask(replace(prefill(), layers=LayerRange(0, 2)))
    before = await bench.ask(replace(prefill(), layers=LayerRange(0, 1)))

    refused(cut, Code.NOT_FOUND)
    assert isinstance(before, ActivationReply)


async def test_a_spent_step_is_dropped_unrun(whole: Bench) -> None:
    refused(await whole.prefilled(deadline_ms=0), Code.DEADLINE)

    assert whole.shard.steps == []


async def test_a_node_that_is_not_ready_says_so(whole: Bench) -> None:
    whole.service.ready = False

    refused(await whole.prefilled(), Code.NOT_READY)
    refused(await whole.service.reserve(ReserveRequest(SESSION, 10)), Code.NOT_READY)
    assert whole.service.describe().ready is False
