"""How far other nodes are, by questions over real loopback HTTP and a timer of the test's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

import pytest
from tests.wire.echoing import EchoService, answering, http_answer, serving, spoken, stranger

from meshnet.core.protocol.limits import LINK_BYTES_MAX
from meshnet.core.vocabulary import Link, NodeId
from meshnet.wire.links import QUESTIONS, REFRESH_S, SMALL_BYTES, LinkBook

NODE = NodeId("http://node")
OWN_S, QUESTION_S = 0.25, 0.75
EMPTY = QUESTIONS + 1
ON_LOOPBACK = [OWN_S] * EMPTY
EMPTY_QUESTIONS = [QUESTION_S] * EMPTY


class Timer:
    """Each question takes the next of `costs`."""

    def __init__(self, costs: list[float]) -> None:
        self.costs, self._now, self._calls = deque(costs), 0.0, 0

    def __call__(self) -> float:
        self._calls += 1
        if self._calls % 2 == 0:
            self._now += self.costs.popleft()
        return self._now


def book(
    urls: Mapping[NodeId, str],
    *,
    token: str | None = None,
    timer: Callable[[], float] = time.perf_counter,
    clock: Callable[[], float] = lambda: 0.0,
) -> LinkBook:
    return LinkBook(lambda: urls, token=token, clock=clock, timer=timer)


async def test_a_link_is_what_the_way_adds_to_a_question_within_the_process():
    timer = Timer([*ON_LOOPBACK, *EMPTY_QUESTIONS, 0.76, 9.0, QUESTION_S + 0.5])

    async with serving(EchoService()) as url:
        links = book({NODE: url}, timer=timer)
        await links.round()

    assert links.links == (Link(NODE, QUESTION_S - OWN_S, LINK_BYTES_MAX / 0.5),)
    assert not timer.costs


async def test_a_slow_link_is_spared_the_large_bodies():
    timer = Timer([*ON_LOOPBACK, *EMPTY_QUESTIONS, QUESTION_S + 0.5])

    async with serving(EchoService()) as url:
        links = book({NODE: url}, timer=timer)
        await links.round()

    assert links.links == (Link(NODE, QUESTION_S - OWN_S, SMALL_BYTES / 0.5),)
    assert not timer.costs


async def test_a_node_nearer_than_loopback_is_no_less_than_at_hand():
    timer = Timer([*[0.75] * EMPTY, *[0.25] * EMPTY, 0.26, 0.5, 0.5])

    async with serving(EchoService()) as url:
        links = book({NODE: url}, timer=timer)
        await links.round()

    assert links.links[0].round_trip_s == 0.0


async def test_a_link_is_measured_again_when_it_is_old_and_not_before():
    costs = [*EMPTY_QUESTIONS, QUESTION_S + 0.5]
    timer, now = Timer([*ON_LOOPBACK, *costs, *costs]), [100.0]

    async with serving(EchoService()) as url:
        links = book({NODE: url}, timer=timer, clock=lambda: now[0])
        await links.round()
        await links.round()
        young = len(timer.costs)
        now[0] += REFRESH_S
        await links.round()

    assert (young, len(timer.costs)) == (len(costs), 0)


async def test_a_node_that_does_not_know_the_question_has_no_link():
    async with stranger(answering(http_answer("404 Not Found"))) as url:
        links = book({NODE: url})
        await links.round()

    assert links.links == ()


async def test_a_node_that_is_not_there_has_no_link_and_the_others_have():
    async with serving(EchoService()) as url:
        links = book({NodeId("gone"): "http://127.0.0.1:9", NODE: url})
        await links.round()

    assert [link.node for link in links.links] == [NODE]


async def test_links_of_nodes_that_left_are_not_told():
    urls: dict[NodeId, str] = {}
    async with serving(EchoService()) as url:
        urls[NODE] = url
        links = book(urls)
        await links.round()
        del urls[NODE]

    assert links.links == ()


@pytest.mark.parametrize(("token", "known"), [("secret", 1), ("wrong", 0), (None, 0)])
async def test_only_with_the_mesh_token_a_node_can_be_measured(token, known):
    async with serving(EchoService(), token="secret") as url:
        links = book({NODE: url}, token=token)
        await links.round()

    assert len(links.links) == known


async def test_a_longer_body_than_a_link_is_measured_by_is_refused():
    async with serving(EchoService()) as url:
        head = f"POST /link HTTP/1.1\r\nHost: x\r\nContent-Length: {LINK_BYTES_MAX + 1}\r\n\r\n"
        answer = await spoken(url, head.encode())

    assert answer is not None
    assert answer.status == 413
