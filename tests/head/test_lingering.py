"""Which ended sessions are offered to whom, without any node."""

from __future__ import annotations

import pytest

from meshnet.core.generation.transcript import Remains
from meshnet.core.protocol.marks import Marks
from meshnet.core.vocabulary import Hop, LayerRange, ModelId, NodeId, Route, SessionId
from meshnet.head.lingering import Lingering, LingeringSessions, PrefixLimits, Standing

IDS = tuple(range(40))
ROUTE = Route(
    ModelId("toy"), (Hop(NodeId("a"), LayerRange(0, 2)),), truncate=True, fingerprint="weights"
)


class Head:
    """What lingers at a head whose nodes compute with `standing`."""

    def __init__(self, limits: PrefixLimits | None = None) -> None:
        self.standing: Standing | None = ("int8",)
        self.gone: list[Lingering] = []
        self.lingering = LingeringSessions(
            limits or PrefixLimits(), standing=lambda _: self.standing, let_go=self.gone.append
        )

    def keep(self, name: str = "s", owner: str | None = "me", **fields: object) -> bool:
        told = {"ids": IDS, "held": 40, "prompt_length": 20, "route": ROUTE} | fields
        remains = Remains(**told)  # type: ignore[arg-type]
        return self.lingering.keep(SessionId(name), owner, remains, 0.0)

    def take(self, owner: str | None = "me", prompt: tuple[int, ...] = (*IDS, 7), now: float = 1.0):
        return self.lingering.take(owner, prompt, now)


def test_a_session_is_taken_once():
    head = Head()
    assert head.keep()

    taken = head.take()

    assert taken is not None
    assert (taken.adoption.session, taken.adoption.length, taken.adoption.held) == ("s", 40, 40)
    assert head.take() is None
    assert head.gone == []


def test_a_session_that_was_not_needed_is_offered_again():
    head = Head()
    head.keep()
    taken = head.take()
    head.lingering.put_back(taken)

    assert head.take() == taken


def test_owner_and_ids_are_compared_each_for_itself():
    """Pit A64. No key is made of both, so none of two owners can stand for the other."""
    head = Head()
    head.keep("s", owner="me=0")

    assert head.take(owner="me") is None
    assert head.take(owner="me", prompt=(0, *IDS, 7)) is None
    assert head.take(owner="me=0") is not None


@pytest.mark.parametrize("standing", [None, ("fp32",)])
def test_a_route_that_is_not_what_it_was_is_not_taken(standing):
    head = Head()
    head.keep()
    head.standing = standing

    assert head.take() is None
    assert [each.session for each in head.gone] == ["s"]


@pytest.mark.parametrize(
    "fields",
    [
        {"owner": None},
        {"ids": IDS[:31], "held": 31},
        {"route": Route(ROUTE.model, ROUTE.hops, kv_cache=False)},
        {"route": Route(ROUTE.model, ROUTE.hops, multi_token=False)},
    ],
)
def test_what_nobody_could_go_on_with_is_not_kept(fields):
    assert not Head().keep(**fields)


def test_nothing_is_kept_where_nothing_is_to_be_kept():
    assert not Head(PrefixLimits(sessions_max=0)).keep()


def test_rejected_guesses_behind_the_ids_have_to_be_cut_off():
    rigid = Route(ROUTE.model, ROUTE.hops, truncate=False)
    for route, taken in ((ROUTE, True), (rigid, False)):
        head = Head()
        head.keep(held=43, route=route)
        assert (head.take() is not None) == taken


RIGID = Route(ROUTE.model, ROUTE.hops, marks=True, fingerprint="weights")
"""Of layers whose states cannot be shortened, only put back."""


@pytest.mark.parametrize(
    ("shared", "length"), [(40, 40), (39, 36), (36, 36), (35, 33), (33, 33), (32, 0)]
)
def test_what_cannot_be_shortened_goes_back_to_its_last_mark(shared, length):
    head = Head()
    head.keep(route=RIGID, marks=Marks((33, 36)))

    taken = head.take(prompt=(*IDS[:shared], 99, 99))

    assert (0 if taken is None else taken.adoption.length) == length
    if taken is not None:
        assert taken.adoption.marks.lengths == tuple(at for at in (33, 36) if at <= length)


def test_marks_are_worth_nothing_where_a_hop_keeps_none():
    head = Head()
    head.keep(route=Route(ROUTE.model, ROUTE.hops), marks=Marks((33, 36)))

    assert head.take(prompt=(*IDS[:36], 99, 99)) is None


def test_a_prompt_asked_again_keeps_its_last_position_to_be_run():
    head = Head()
    head.keep(ids=IDS[:36], held=36, route=RIGID, marks=Marks((33, 36)))

    taken = head.take(prompt=IDS[:36])

    assert taken is not None
    assert taken.adoption.length == 33


@pytest.mark.parametrize(("shared", "taken"), [(31, False), (32, True)])
def test_a_short_prefix_is_not_worth_a_session(shared, taken):
    head = Head()
    head.keep(prompt_length=40)

    assert (head.take(prompt=(*IDS[:shared], 99, 99)) is not None) == taken


def test_too_old_and_too_many_are_let_go():
    head = Head(PrefixLimits(seconds=5.0, sessions_max=2))
    for name in ("a", "b", "c"):
        head.keep(name)
    assert [each.session for each in head.gone] == ["a"]

    assert head.take(now=5.0) is None
    assert [each.session for each in head.gone] == ["a", "b", "c"]


def test_one_that_comes_back_among_too_many_lets_the_oldest_go():
    head = Head(PrefixLimits(sessions_max=2))
    head.keep("a")
    taken = head.take()
    assert taken is not None
    for name in ("b", "c"):
        head.keep(name)

    head.lingering.put_back(taken)

    assert [each.session for each in head.gone] == ["b"]
    assert len(head.lingering) == 2


def test_many_chats_of_one_owner_cost_another_none_of_his():
    head = Head(PrefixLimits(sessions_max=2))
    head.keep("hers", owner="her")

    for name in ("a", "b", "c"):
        head.keep(name)

    assert [each.session for each in head.gone] == ["a"]
    assert head.take(owner="her") is not None


def test_in_all_it_is_whoever_has_the_most_whose_oldest_goes():
    head = Head(PrefixLimits(sessions_max=3, total_max=4))
    head.keep("hers", owner="her")
    for name in ("a", "b", "c"):
        head.keep(name)

    head.keep("his", owner="him")
    head.keep("hers too", owner="her")

    assert [each.session for each in head.gone] == ["a", "hers"]


def test_a_head_that_ends_lets_all_go():
    head = Head()
    head.keep()
    head.lingering.clear()

    assert [each.session for each in head.gone] == ["s"]
    assert head.take() is None
