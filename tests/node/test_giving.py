"""Layers of a session that another node asks for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.node.bench import LAYERS, PROMPT, SESSION, Bench, Gate, other_session, refused

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import Code
from meshnet.core.protocol.moving import LayerReply, LayerRequest, TakeRequest
from meshnet.core.vocabulary import (
    LayerRange,
    MissReason,
    ModelId,
    NodeId,
    SamplingParams,
    SessionId,
)
from meshnet.node import moving
from meshnet.simulation.toy_shard import TOY_MODEL, ToyShard


def asked(layer: int = 0, tokens: tuple[int, ...] = PROMPT, **fields: object) -> LayerRequest:
    request = LayerRequest(
        SESSION, layer, len(tokens), PrefixDigest.of(tokens).hex, 1, TOY_MODEL, "toy"
    )
    return replace(request, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prefix": "0" * 16}, MissReason.PREFIX),
        ({"length": 99}, MissReason.PAST_LENGTH),
        ({"session": SessionId("unknown")}, MissReason.UNKNOWN_SESSION),
        ({"attempt": 0}, MissReason.ATTEMPT),
    ],
)
async def test_a_giver_gives_exactly_what_is_meant(
    whole: Bench, fields: dict[str, object], reason: MissReason
) -> None:
    await whole.prefilled()

    assert refused(await whole.service.moves.give(asked(**fields)), Code.CACHE_MISS).reason is (
        reason
    )
    assert whole.service.describe().sessions == 1


async def test_a_giver_gives_nothing_of_other_weights_or_layers(whole: Bench) -> None:
    await whole.prefilled()
    give = whole.service.moves.give

    refused(await give(asked(fingerprint="other")), Code.NOT_FOUND)
    refused(await give(asked(model=ModelId("other"))), Code.NOT_FOUND)
    refused(await give(asked(layer=LAYERS)), Code.BAD_REQUEST)


async def test_layers_that_are_asked_for_at_once_are_bounded_in_number_and_in_time(
    whole: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole.prefilled()
    give, gate = whole.service.moves.give, Gate(whole)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(whole.ask(other_session("other")))
        await gate.entered.wait()
        first = tasks.create_task(give(asked()))
        await asyncio.sleep(0)
        monkeypatch.setattr(moving, "GIVE_S", 0)

        refused(await give(asked(1)), Code.DEADLINE)
        monkeypatch.setattr(moving, "WAITING_MAX", 1)
        refused(await give(asked(1)), Code.NO_ROOM)
        gate.open()

    assert isinstance(first.result(), LayerReply)
    assert isinstance(await give(asked(1)), LayerReply)


@pytest.mark.parametrize("side", ["give", "take"])
async def test_a_timeout_inside_is_not_taken_for_the_deadline(
    whole: Bench, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a shard that fails would be told as one that is slow, and never be looked into."""
    await whole.prefilled()

    def late(*_: object) -> None:
        raise TimeoutError("of a device")

    monkeypatch.setattr(ToyShard, "export_layer", late)
    monkeypatch.setattr(ToyShard, "new_state", late)
    moves = whole.service.moves
    taken = TakeRequest(
        SessionId("t"), NodeId("giver"), LayerRange(0, LAYERS), 1, PROMPT, TOY_MODEL, "toy",
        SamplingParams(), deadline_ms=60_000,
    )  # fmt: skip

    with pytest.raises(TimeoutError, match="of a device"):
        await (moves.give(asked()) if side == "give" else moves.take(taken))
