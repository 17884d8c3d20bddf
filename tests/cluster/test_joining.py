"""Nodes that join by themselves, over real processes: in any order, and whatever dies meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.certificates import authority, issued
from tests.cluster.api import expected_text, until
from tests.cluster.joining import MESH_TOKEN, free_port, joining_mesh

PROMPT = "Who goes there?"
TOKENS = 12

Members = dict[str, dict[str, Any]]


def layers_of(members: Members) -> list[str]:
    return sorted(member["layers"] for member in members.values() if member["state"] == "ready")


def holder_of(members: Members, layers: str) -> str:
    return next(url for url, member in members.items() if member["layers"] == layers)


def peers_of(node: str, http: httpx2.Client) -> list[str]:
    headers = {"authorization": f"Bearer {MESH_TOKEN}"}
    peers: list[str] = http.get(f"{node}/node", headers=headers).json()["peers"]
    return peers


async def test_nodes_join_in_any_order_and_the_rest_go_on_when_one_leaves(
    tiny_model_dir: Path, tmp_path: Path
):
    """And all of it by mutual TLS."""
    expected = expected_text(tiny_model_dir, PROMPT, TOKENS)
    tls_dir = issued(authority(tmp_path / "certs"), "all")
    with joining_mesh(tiny_model_dir, tmp_path, tls_dir=tls_dir) as mesh:
        early = mesh.node()
        gateway = mesh.serve()
        late = mesh.node()
        for node in (early, late):
            node.wait_ready()
        await until(mesh.ready, "all layers are served")

        members = mesh.members()
        assert set(members) == {early.url, late.url}
        assert early.url.startswith("https://")
        assert layers_of(members) == ["0-2", "2-4"]
        assert mesh.answer(PROMPT, TOKENS) == expected
        first, last = holder_of(members, "0-2"), holder_of(members, "2-4")
        await until(lambda: peers_of(first, mesh.http) == [last], "the first node knows the next")

        late.send(signal.SIGTERM)
        await until(lambda: late.url not in mesh.members(), "it has left")
        await until(lambda: layers_of(mesh.members()) == ["0-4"], "the other holds all layers")

        logs = "".join(line for process in (gateway, early, late) for line in process.told())
        assert "ready" in logs
        assert PROMPT not in logs + mesh.http.get(f"{mesh.url}/metrics").text

        assert late.stop() == 0
        assert peers_of(early.url, mesh.http) == []
        assert mesh.answer(PROMPT, TOKENS) == expected


async def test_a_killed_node_leaves_and_a_spare_is_told_its_layers(
    tiny_model_dir: Path, tmp_path: Path
):
    """Pit A85: nobody asked the dead node to leave."""
    with joining_mesh(tiny_model_dir, tmp_path, nodes_min=3, lease_s=15) as mesh:
        mesh.serve()
        nodes = [mesh.node(), mesh.node()]
        own = mesh.node(0, "--layers", "0-2", "--model", str(tiny_model_dir))
        for node in (*nodes, own):
            node.wait_ready()
        await until(mesh.ready, "all layers are served")
        before = mesh.members()
        assert layers_of(before) == ["0-2", "0-2", "2-4"], "the third doubles, for there is no need"
        assert not before[own.url]["assigned"]

        victim = next(node for node in nodes if node.url == holder_of(before, "2-4"))
        victim.kill()
        await until(lambda: victim.url not in mesh.members(), "the dead node has left")
        await until(lambda: layers_of(mesh.members()) == ["0-2", "2-4"], "the spare took over")

        assert mesh.members()[own.url]["layers"] == "0-2"
        assert mesh.answer(PROMPT, TOKENS) == expected_text(tiny_model_dir, PROMPT, TOKENS)


async def test_a_gateway_that_was_killed_finds_its_nodes_where_they_were(
    tiny_model_dir: Path, tmp_path: Path
):
    """Nobody loads again, a gateway beside it does not notice, and a node that is started again
    at its address is the member it was (pit A85)."""
    expected = expected_text(tiny_model_dir, PROMPT, TOKENS)
    with joining_mesh(tiny_model_dir, tmp_path, lease_s=60) as mesh:
        gateway = mesh.serve()
        ports = [free_port(), free_port()]
        nodes = [mesh.node(port) for port in ports]
        for node in nodes:
            node.wait_ready()
        beside = mesh.serve_beside()
        await until(lambda: mesh.ready(beside.url), "the second gateway serves the same nodes")
        before = {url: (each["epoch"], each["layers"]) for url, each in mesh.members().items()}

        gateway.kill()
        while_away = mesh.answer(PROMPT, TOKENS, beside.url)
        mesh.serve()
        await until(mesh.ready, "the gateway serves again")
        assert while_away == mesh.answer(PROMPT, TOKENS) == expected
        assert {url: (each["epoch"], each["layers"]) for url, each in mesh.members().items()} == (
            before
        )

        nodes[0].kill()
        mesh.node(ports[0]).wait_ready()
        await until(mesh.ready, "all layers are served again")

        after = {url: each["layers"] for url, each in mesh.members().items()}
        assert after == {url: layers for url, (_, layers) in before.items()}
        assert mesh.answer(PROMPT, TOKENS, beside.url) == expected


async def test_without_the_mesh_token_nobody_is_told_of_the_mesh(
    tiny_model_dir: Path, tmp_path: Path
):
    with joining_mesh(tiny_model_dir, tmp_path) as mesh:
        mesh.serve()

        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": f"Bearer {MESH_TOKEN}"}, 200),
        ):
            told = httpx2.get(f"{mesh.url}/registry", headers=headers, timeout=30)
            assert told.status_code == status
        stranger = mesh.node(token="another one")
        with pytest.raises(AssertionError, match="expected the mesh token"):
            stranger.wait_ready()
        assert stranger.stop() == 1
