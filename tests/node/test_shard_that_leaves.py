"""A shard that is dropped takes its sessions with it; a step that runs there counts for nothing."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from tests.node.bench import Bench, decode, missed, prefill, refused

from meshnet.core.protocol.messages import Code
from meshnet.core.vocabulary import LayerRange, MissReason, WrongShard
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import TOY_MODEL, ToyShard


async def test_its_bytes_are_free_for_the_next_shard(whole: Bench) -> None:
    await whole.prefilled()
    held = whole.service.describe().kv_bytes

    whole.service.remove(TOY_MODEL)

    assert held > 0
    described = whole.service.describe()
    assert (described.kv_bytes, described.sessions, described.shards) == (0, 0, ())


async def test_who_asks_for_it_is_told_that_it_is_not_here(whole: Bench) -> None:
    await whole.prefilled()
    whole.service.remove(TOY_MODEL)

    asked = replace(decode(3, 1), model=TOY_MODEL)

    assert refused(await whole.ask(asked), Code.NOT_FOUND)
    with pytest.raises(WrongShard):
        whole.service.remove(TOY_MODEL)


async def test_a_session_of_the_old_layers_is_a_miss_on_the_new_ones(whole: Bench) -> None:
    await whole.prefilled()
    whole.service.remove(TOY_MODEL)
    whole.service.add(ToyShard(LayerRange(0, 4), layers_total=4))

    assert missed(await whole.ask(decode(3, 1))) is MissReason.UNKNOWN_SESSION
    whole.service.check_integrity()


async def test_a_step_that_ran_while_its_shard_left_is_discarded(whole: Bench) -> None:
    loop, began, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hold(*_: object) -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(10)

    whole.shard.hook = hold
    asked = asyncio.ensure_future(whole.ask(prefill()))
    await began.wait()
    whole.service.remove(TOY_MODEL)
    go_on.set()

    assert refused(await asked, Code.NO_ROOM)
    assert whole.service.describe().kv_bytes == 0


async def test_a_node_of_one_place_takes_another_shard_once_the_first_has_left(
    whole: Bench,
) -> None:
    service = whole.serve(NodeLimits(kv_bytes_max=2**20, shards_max=1))
    other = ToyShard(LayerRange(2, 4), layers_total=4)
    with pytest.raises(ValueError, match="holds a shard of it already"):
        service.add(other)

    service.remove(TOY_MODEL)
    service.add(other)

    assert [shard.layers for shard in service.describe().shards] == [LayerRange(2, 4)]
