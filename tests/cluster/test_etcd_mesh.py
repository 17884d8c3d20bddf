"""A mesh over three etcds: whoever of etcd, gateways and nodes dies, the streams are right."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.cluster.api import expected_text, streamed, until
from tests.cluster.etcd_mesh import etcd_mesh
from tests.cluster.joining import MESH_TOKEN
from tests.cluster.test_joining import holder_of, layers_of
from tests.processes import MeshnetProcess, command

pytestmark = pytest.mark.etcd

PROMPTS = ("Who goes there?", "Nobody, it seems.")
TOKENS = 200


def has_left(gateway: MeshnetProcess, node: str) -> bool:
    return any("left" in line and node in line for line in gateway.told())


async def test_nobody_notices_that_the_leader_of_etcd_is_killed_while_streams_run(
    tiny_model_dir: Path, tmp_path: Path
):
    with etcd_mesh(tiny_model_dir, tmp_path) as mesh:
        gateway = mesh.serve()
        nodes = [mesh.node(), mesh.node()]
        for node in nodes:
            node.wait_ready()
        await until(mesh.ready, "all layers are served")
        before = mesh.members()
        assert layers_of(before) == ["0-2", "2-4"]

        def kill_the_leader(count: int) -> None:
            if count == 5:
                mesh.etcd.kill(mesh.etcd.leader())

        async with asyncio.TaskGroup() as group:
            streams = [
                group.create_task(streamed(mesh.url, prompt, TOKENS, seen=seen))
                for prompt, seen in zip(PROMPTS, (kill_the_leader, lambda _: None), strict=True)
            ]
        await until(lambda: mesh.seen()["registry"]["trouble"] == "", "etcd answers again")

        for prompt, stream in zip(PROMPTS, streams, strict=True):
            told = stream.result()
            assert (told.text, told.errors) == (expected_text(tiny_model_dir, prompt, TOKENS), [])
        assert {url: m["epoch"] for url, m in mesh.members().items()} == {
            url: m["epoch"] for url, m in before.items()
        }
        assert not any(has_left(gateway, node) for node in before)
        assert mesh.answer(PROMPTS[0], 12) == expected_text(tiny_model_dir, PROMPTS[0], 12)


async def test_when_the_gateway_that_places_is_killed_another_one_does(
    tiny_model_dir: Path, tmp_path: Path
):
    expected = expected_text(tiny_model_dir, PROMPTS[0], 12)
    with etcd_mesh(tiny_model_dir, tmp_path, members=1, lease_s=4) as mesh:
        first = mesh.serve()
        nodes = [mesh.node(), mesh.node()]
        for node in nodes:
            node.wait_ready()
        await until(mesh.ready, "all layers are served")
        beside = mesh.serve_beside()
        await until(lambda: mesh.ready(beside.url), "the second gateway serves the same nodes")

        first.kill()
        dead = next(n for n in nodes if n.url == holder_of(mesh.members(beside.url), "2-4"))
        dead.kill()
        await until(
            lambda: layers_of(mesh.members(beside.url)) == ["0-4"],
            "the other node was told all layers",
        )
        await until(lambda: mesh.ready(beside.url), "all layers are served again")

        assert has_left(beside, dead.url)
        assert mesh.answer(PROMPTS[0], 12, beside.url) == expected


async def test_etcd_itself_tells_who_is_there_and_a_member_drains_without_a_gateway(
    tiny_model_dir: Path, tmp_path: Path
):
    with etcd_mesh(tiny_model_dir, tmp_path, members=1) as mesh:
        gateway = mesh.serve()
        nodes = [mesh.node(), mesh.node()]
        for node in nodes:
            node.wait_ready()
        await until(mesh.ready, "all layers are served")
        gateway.kill()

        asks = ("--registry", mesh.etcd.url)
        told = command("status", *asks, "--json", cwd=tmp_path)
        shown = command("status", *asks, cwd=tmp_path)
        drained = command("drain", nodes[0].url, *asks, cwd=tmp_path, MESHNET_MESH_TOKEN=MESH_TOKEN)
        after = json.loads(command("status", *asks, "--json", cwd=tmp_path).stdout)

        status = json.loads(told.stdout)
        assert status["model"] == tiny_model_dir.name
        assert {member["node"] for member in status["members"]} == {node.url for node in nodes}
        assert "2 members" in shown.stdout
        assert drained.returncode == 0, drained.stderr
        assert nodes[0].ended() == 0
        assert [member["node"] for member in after["members"]] == [nodes[1].url]
