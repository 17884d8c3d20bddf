"""Session ids: minted once per generation, unguessable, ranked by age on every node."""

import asyncio
import time
from unittest.mock import patch

import pytest

from meshnet.cli.composition import SESSION_ID_BYTES, head_limits, measuring, new_session_id
from meshnet.cli.head_cost import HeadCost
from meshnet.cli.settings import Settings
from meshnet.core.protocol.headers import session_id
from meshnet.core.vocabulary import NodeId
from meshnet.wire.links import LinkBook


def test_a_session_id_of_a_later_millisecond_sorts_after_an_earlier_one():
    """Nodes preempt by this order; if it followed chance, old sessions would give way to new."""
    ids = []
    for milliseconds in (1_000, 1_001, 1_700_000_000_000, 1_700_000_000_001):
        with patch("meshnet.cli.composition.time.time_ns", return_value=milliseconds * 1_000_000):
            ids.append(new_session_id())

    assert ids == sorted(ids)


def test_session_ids_of_one_millisecond_differ_in_all_their_random_bits():
    """Pit C7."""
    with patch("meshnet.cli.composition.time.time_ns", return_value=0):
        ids = {new_session_id() for _ in range(100)}

    assert len(ids) == 100
    assert {len(each) for each in ids} == {12 + 2 * SESSION_ID_BYTES}
    assert all(session_id(each) == each for each in ids)


@pytest.mark.parametrize(("setting", "drafts"), [("auto", None), ("off", 0), ("5", 5)])
def test_the_head_is_told_how_many_tokens_to_guess(setting: str, drafts: int | None):
    assert head_limits(Settings(drafts=setting), 1.0).generation.drafts == drafts


async def test_a_head_measures_its_part_once_a_node_has_measured_itself():
    """Earlier nobody can plan with it, and many gateways never have such a node."""
    cost, links = HeadCost(), LinkBook(dict, token=None, clock=time.monotonic)
    asked: list[float] = []

    def known() -> list[NodeId]:
        asked.append(cost.token_s)
        return [NodeId("measured")] if len(asked) > 1 else []

    with patch("meshnet.cli.composition.KNOWN_LOOK_S", 0):
        async with asyncio.timeout(120), measuring(cost, links, known):
            while not cost.token_s:  # noqa: ASYNC110  # it is a figure, and tells nobody
                await asyncio.sleep(0)

    assert asked == [0.0, 0.0]
