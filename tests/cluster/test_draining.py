"""Nodes leave under load: chats move with their cache, nobody fails and no token changes."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.cluster.api import Told, counted, expected_text, streamed, until
from tests.cluster.joining import joining_mesh
from tests.processes import MeshnetProcess, command, gateway

from meshnet.cli.local_nodes import free_ports

TOKENS = 300
PROMPTS = [f"Chat {name}: tell me of the fox and the lazy dog." for name in ("A", "B", "C", "D")]
SPARE = ("0-1", "1-3", "3-4", "1-3")
"""Three nodes, and one that can stand for the middle one."""
TWICE = ("0-2", "2-4", "0-2", "2-4")
TOKEN = "secret of the mesh"
CREDENTIAL = {"Authorization": f"Bearer {TOKEN}"}


def started(model: Path, layers: str, port: int, peers: Sequence[str]) -> MeshnetProcess:
    return MeshnetProcess(
        ["node", "--model", str(model), "--layers", layers, "--port", str(port), "--json-ready"],
        {
            "MESHNET_PEERS": ",".join(peers),
            "MESHNET_WEIGHTS": "fp32",
            "MESHNET_MESH_TOKEN": TOKEN,
        },
    )


class Mesh:
    """Node processes that know each other, and a gateway over them."""

    def __init__(
        self, model: Path, ranges: Sequence[str], api: MeshnetProcess, ports: Sequence[int]
    ) -> None:
        self.model, self.ranges, self.api, self.ports = model, ranges, api, ports
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.nodes: list[MeshnetProcess] = []

    def sessions(self, place: int) -> int:
        described = httpx2.get(f"{self.urls[place]}/node", headers=CREDENTIAL).json()
        return int(described["sessions"])

    def drain(self, place: int) -> None:
        answer = httpx2.post(
            f"{self.api.url}/mesh/drain",
            json={"node": self.urls[place]},
            headers=CREDENTIAL,
        )
        assert answer.status_code == 200, answer.text


@contextmanager
def mesh_of(model: Path, ranges: Sequence[str]) -> Iterator[Mesh]:
    ports = free_ports(len(ranges))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        nodes = [
            started(model, layers, port, urls) for layers, port in zip(ranges, ports, strict=True)
        ]
        for node in nodes:
            stack.callback(node.stop)
        for node in nodes:
            node.wait_ready()
        api = stack.enter_context(gateway(model, urls, MESHNET_MESH_TOKEN=TOKEN))
        mesh = Mesh(model, ranges, api, ports)
        mesh.nodes = nodes
        stack.callback(lambda: [node.stop() for node in mesh.nodes])
        yield mesh


def check(model: Path, told: Sequence[Told]) -> None:
    for prompt, each in zip(PROMPTS, told, strict=True):
        assert each.errors == []
        assert each.text == expected_text(model, prompt, TOKENS)
        assert (each.finishes, each.ended) == (["length"], 1)


async def test_four_chats_move_from_a_node_that_drains_and_it_leaves(tiny_model_dir: Path):
    with mesh_of(tiny_model_dir, SPARE) as mesh:
        left: list[int] = []

        def drain(count: int) -> None:
            if count == 30:
                left.append(max((1, 3), key=mesh.sessions))
                mesh.drain(left[0])

        told = await asyncio.gather(
            streamed(mesh.api.url, PROMPTS[0], TOKENS, seen=drain),
            *(streamed(mesh.api.url, prompt, TOKENS) for prompt in PROMPTS[1:]),
        )
        moves = counted(mesh.api.url, "meshnet_moves_total").total()

        check(tiny_model_dir, told)
        assert counted(mesh.api.url, "meshnet_refills_total", "reason").total() == 0
        assert 1 <= moves <= len(PROMPTS)
        (victim,) = left
        assert mesh.nodes[victim].ended() == 0

        def taken() -> list[str]:
            return [line for line in mesh.nodes[4 - victim].told() if "session_taken" in line]

        await until(lambda: len(taken()) == moves, "the log tells of every move")
        for line in taken():
            print(re.sub(r"\x1b\[[0-9;]*m", "", line).strip())
        print(f"worst gap between two tokens: {max(each.worst_gap_s for each in told):.3f} s")


def test_a_node_is_drained_by_its_address_and_told_to_go_on(tiny_model_dir: Path, tmp_path: Path):
    with mesh_of(tiny_model_dir, TWICE) as mesh:
        url, gate = mesh.urls[3], ("--gateway", mesh.api.url)

        stranger = command("drain", url, *gate, cwd=tmp_path)
        unknown = command("drain", "nobody", *gate, cwd=tmp_path, MESHNET_MESH_TOKEN=TOKEN)
        address = url.removeprefix("http://")
        left = command("drain", address, *gate, cwd=tmp_path, MESHNET_MESH_TOKEN=TOKEN)
        assert mesh.nodes[3].ended() == 0

        assert (stranger.returncode, unknown.returncode, left.returncode) == (1, 1, 0)
        assert "MESHNET_MESH_TOKEN" in stranger.stderr
        assert "nobody" in unknown.stderr
        assert "has left" in left.stderr


@pytest.mark.slow
async def test_every_node_is_restarted_under_load_and_no_token_changes(
    tiny_model_dir: Path, tmp_path: Path
):
    """SIGTERM is enough for nodes that joined: they drain first."""
    with joining_mesh(tiny_model_dir, tmp_path, nodes_min=1) as mesh:

        def start(layers: str) -> MeshnetProcess:
            return mesh.node(0, "--model", str(tiny_model_dir), "--layers", layers)

        mesh.serve()
        nodes = [start(layers) for layers in TWICE]
        for node in nodes:
            node.wait_ready()
        await until(mesh.ready, "all layers are served")
        right, rolling = 0, True

        async def chat(prompt: str) -> None:
            nonlocal right
            while rolling:
                told = await streamed(mesh.url, prompt, TOKENS)
                assert told.errors == []
                assert told.text == expected_text(tiny_model_dir, prompt, TOKENS)
                right += 1

        async with asyncio.TaskGroup() as group:
            for prompt in PROMPTS:
                group.create_task(chat(prompt))
            for place, layers in enumerate(TWICE):
                nodes[place].send(signal.SIGTERM)
                assert await asyncio.to_thread(nodes[place].ended) == 0
                nodes[place] = await asyncio.to_thread(start(layers).wait_ready)
                url = nodes[place].url
                await until(lambda url=url: url in mesh.members(), "it is known again")
            rolling = False

        refills = counted(mesh.url, "meshnet_refills_total", "reason")
        moves = counted(mesh.url, "meshnet_moves_total").total()
        print(f"{right} chats right; {moves} moves, refills by reason: {dict(refills)}")
        assert moves > 0
