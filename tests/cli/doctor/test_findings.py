"""What the doctor makes of what nodes tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import SecretStr
from tests.cli.doctor.described import GB, NODE, SHARD, A, B

from meshnet.cli.doctor import nodes
from meshnet.cli.doctor.findings import Finding, Level, credentials
from meshnet.cli.settings import Settings
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Capabilities,
    HopLost,
    Link,
    NodeDescription,
)


def worst(found: list[Finding]) -> list[tuple[str, Level]]:
    """What is not well."""
    return [(each.check, each.level) for each in found if each.level is not Level.OK]


def all_of(*told: NodeDescription) -> list[Finding]:
    known = dict(zip((A, B), told, strict=False))
    return [
        *nodes.reached(known),
        *nodes.versions(known),
        *nodes.models(known),
        *nodes.memory(known),
    ]


def with_shard(**other: object) -> NodeDescription:
    return replace(NODE, shards=(replace(SHARD, **other),))


def test_nodes_that_agree_are_well_in_every_respect():
    found = all_of(NODE, NODE)

    assert worst(found) == []
    assert {each.check for each in found} == {"reach", "versions", "models", "memory"}


@pytest.mark.parametrize(
    ("other", "check", "level"),
    [
        (replace(NODE, wire=WIRE_VERSION + 1), "versions", Level.BAD),
        (replace(NODE, wire=0), "versions", Level.WARN),
        (replace(NODE, version=""), "versions", Level.WARN),
        (replace(NODE, ready=False), "reach", Level.WARN),
        (replace(NODE, draining=True), "reach", Level.WARN),
        (with_shard(fingerprint="f2"), "models", Level.BAD),
        (with_shard(arithmetic="a2"), "models", Level.WARN),
        (with_shard(capabilities=Capabilities(False, True)), "models", Level.WARN),
        (with_shard(weight_bytes=3 * GB), "memory", Level.WARN),
        (replace(NODE, kv_bytes=2 * GB - 1), "memory", Level.WARN),
        (replace(NODE, kv_bytes_max=1000 * 1024 - 1), "memory", Level.WARN),
    ],
)
def test_whatever_is_amiss_with_one_node_is_found_once(
    other: NodeDescription, check: str, level: Level
):
    found = all_of(NODE, other)

    assert worst(found) == [(check, level)]


def test_a_cache_that_holds_exactly_the_context_is_enough():
    assert worst(all_of(replace(NODE, kv_bytes_max=1000 * 1024))) == []


def test_who_differs_is_named():
    (found,) = nodes.models({A: NODE, B: with_shard(fingerprint="f2")})

    assert "10.0.0.2:9001: f1; 10.0.0.3:9001: f2" in found.text


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("HTTP 401 for its description", "MESHNET_MESH_TOKEN"),
        ("unreadable description: x", "something else"),
        ("no answer within 10 s", "firewall"),
    ],
)
def test_a_node_that_cannot_be_asked_comes_with_what_to_look_at(error: str, advice: str):
    (found,) = nodes.reached({A: HopLost(f"{A}: {error}")})

    assert found.level is Level.BAD
    assert advice in found.advice


@pytest.mark.parametrize(
    ("link", "level"),
    [
        (Link(A, 0.0005, 1e8), Level.OK),
        (Link(A, 0.1, 1e8), Level.WARN),
        (Link(A, 0.0005, 1e5), Level.WARN),
    ],
)
def test_a_way_is_judged_by_its_round_trip_and_its_bandwidth(link: Link, level: Level):
    (found,) = nodes.links([("here", link)])

    assert found.level is level
    assert found.text.startswith("here to 10.0.0.2:9001: ")


def test_a_node_whose_way_was_not_measured_is_told():
    assert worst(nodes.links([], [B])) == [("links", Level.WARN)]


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, []),
        ({"host": "0.0.0.0"}, [Level.BAD, Level.BAD]),
        ({"host": "0.0.0.0", "mesh_token": "x" * 32}, [Level.BAD]),
        ({"host": "0.0.0.0", "mesh_token": "x" * 32, "api_keys": ("k",)}, []),
        ({"mesh_token": "short"}, [Level.WARN]),
    ],
)
def test_what_is_open_to_others_needs_its_secrets(settings: dict, level: list[Level]):
    found = credentials(Settings(**settings), [])

    assert [each.level for each in found if each.level is not Level.OK] == level


def test_a_token_that_goes_over_a_network_in_the_clear_is_told_and_never_shown():
    settings = Settings(mesh_token=SecretStr("x" * 32))

    assert worst(credentials(settings, [A])) == [("credentials", Level.WARN)]
    assert worst(credentials(settings, ["http://127.0.0.1:9001", "https://10.0.0.2:1"])) == []
    assert "xxxx" not in "".join(each.text for each in credentials(settings, [A]))
