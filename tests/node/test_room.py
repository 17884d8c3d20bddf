"""Places and bytes of a node: reservations, and models that share a device."""

from __future__ import annotations

import pytest
from tests.node.bench import (
    LAYERS,
    PROMPT,
    SESSION,
    Bench,
    refused,
)

from meshnet.core.protocol.messages import (
    Code,
    Reserved,
    ReserveRequest,
    TokenReply,
)
from meshnet.core.vocabulary import (
    Capabilities,
    LayerRange,
    ModelId,
    SamplingParams,
    SessionId,
)
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import (
    LAYER_BYTES_PER_TOKEN,
    ToyShard,
    oracle,
)


async def test_a_reservation_takes_bytes_and_a_release_gives_them_back(whole: Bench) -> None:
    reserved = await whole.service.reserve(ReserveRequest(SESSION, 10))
    taken = whole.service.describe()

    whole.service.release(SESSION, ModelId("unknown"))
    kept = whole.service.describe()
    whole.service.release(SESSION)

    assert reserved == Reserved(SESSION, 10)
    assert (taken.sessions, taken.kv_bytes) == (1, 10 * LAYERS * LAYER_BYTES_PER_TOKEN)
    assert kept.sessions == 1
    assert whole.service.describe().kv_bytes == 0


async def test_a_reservation_never_asks_for_more_than_the_context(whole: Bench) -> None:
    whole.service = whole.serve(NodeLimits(kv_bytes_max=4096 * LAYERS * LAYER_BYTES_PER_TOKEN))

    assert isinstance(await whole.service.reserve(ReserveRequest(SESSION, 9999)), Reserved)


async def test_reservations_beyond_the_places_are_told_to_come_again(whole: Bench) -> None:
    whole.service = whole.serve(NodeLimits(kv_bytes_max=2**20, sessions_max=1))
    await whole.service.reserve(ReserveRequest(SESSION, 10))

    reply = await whole.service.reserve(ReserveRequest(SessionId("t"), 10))

    wait_s = refused(reply, Code.NO_ROOM).retry_after_s
    assert wait_s is not None
    assert wait_s > 0


async def test_a_session_that_can_never_fit_is_too_large(whole: Bench) -> None:
    whole.service = whole.serve(NodeLimits(kv_bytes_max=10))

    refused(await whole.service.reserve(ReserveRequest(SESSION, 10)), Code.TOO_LARGE)
    refused(await whole.prefilled(), Code.TOO_LARGE)


async def test_a_reservation_of_nothing_is_a_wrong_field(whole: Bench) -> None:
    refused(await whole.service.reserve(ReserveRequest(SESSION, 0)), Code.BAD_REQUEST)


async def test_a_shard_that_does_not_cache_reserves_nothing(whole: Bench) -> None:
    whole.shard.capabilities = Capabilities(kv_cache=False, multi_token=False)

    assert isinstance(await whole.service.reserve(ReserveRequest(SESSION, 10)), Reserved)

    assert whole.service.describe().sessions == 0


def second_model() -> ToyShard:
    return ToyShard(LayerRange(0, 1), layers_total=1, model=ModelId("other"))


async def test_a_node_with_two_models_needs_to_be_told_which(whole: Bench) -> None:
    limits = NodeLimits(kv_bytes_max=2**20, shards_max=2)
    whole.service = whole.serve(limits, second_model())

    refused(await whole.prefilled(), Code.BAD_REQUEST)
    refused(await whole.prefilled(model=ModelId("third")), Code.NOT_FOUND)
    reply = await whole.prefilled(model=ModelId("other"))

    assert isinstance(reply, TokenReply)
    assert reply.drawn is not None
    assert reply.drawn.ids == oracle(PROMPT, SamplingParams(), 1, 1)
    assert whole.service.session(SESSION) is not None
    whole.service.release(SESSION, ModelId("other"))
    assert whole.service.session(SESSION) is None


def test_a_node_loads_no_more_shards_than_it_may(whole: Bench) -> None:
    with pytest.raises(ValueError, match="max_loaded_shards"):
        whole.service.add(second_model())


def test_a_node_holds_one_shard_of_a_model(whole: Bench) -> None:
    with pytest.raises(ValueError, match="already"):
        whole.service.add(whole.shard)


async def test_two_models_share_the_bytes_of_their_device(whole: Bench) -> None:
    per_token = LAYERS * LAYER_BYTES_PER_TOKEN
    limits = NodeLimits(kv_bytes_max=10 * per_token, shards_max=2)
    whole.service = whole.serve(limits, second_model())
    model = whole.shard.description.model
    await whole.service.reserve(ReserveRequest(SESSION, 10, model=model))

    full = await whole.service.reserve(ReserveRequest(SessionId("t"), 1, ModelId("other")))
    whole.clock.now += 5.0
    room = await whole.service.reserve(ReserveRequest(SessionId("t"), 1, ModelId("other")))

    refused(full, Code.NO_ROOM)
    assert isinstance(room, Reserved)


async def test_a_session_whose_stream_is_open_keeps_its_place_until_the_stream_closes(
    whole: Bench,
) -> None:
    whole.service = whole.serve(NodeLimits(kv_bytes_max=2**20, sessions_max=1))
    whole.service.pin(SESSION)
    await whole.prefilled()
    whole.clock.now += 60.0

    refused(await whole.service.reserve(ReserveRequest(SessionId("t"), 10)), Code.NO_ROOM)
    whole.service.unpin(SESSION)

    assert whole.service.session(SESSION) is not None
    assert isinstance(await whole.service.reserve(ReserveRequest(SessionId("t"), 10)), Reserved)
