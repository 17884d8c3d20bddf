"""Processes of a peer: started, watched, spoken to, and gone afterwards."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import psutil
import pytest

from meshnet.cli.bench.peers import LlamaSide
from meshnet.cli.bench.peers_build import (
    MARKER,
    PROGRAMS,
    PeerError,
    Programs,
    peers_dir,
    programs,
    provenance,
)
from meshnet.cli.bench.peers_setup import PeerSetup


@pytest.fixture
def pretended(tmp_path: Path) -> Programs:
    """Both programs are our pretended one."""
    script = Path(__file__).with_name("pretended_llama.py")
    path = tmp_path / "pretended"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    path.chmod(0o755)
    return Programs(path, path)


def side(
    pretended: Programs, tmp_path: Path, *, nodes: int = 1, model: str = "ok", start_s: float = 60.0
) -> LlamaSide:
    setup = PeerSetup(Path(f"{model}.gguf"), nodes, 1)
    return LlamaSide(setup, pretended, tmp_path / "logs", start_s=start_s)


async def test_a_split_peer_is_three_processes_and_none_afterwards(
    pretended: Programs, tmp_path: Path
) -> None:
    peer = side(pretended, tmp_path, nodes=2)
    await peer.start()
    pids = list(peer.pids())

    assert len(pids) == 3
    assert sorted(peer.split.values()) == [11, 11]
    assert all(psutil.pid_exists(pid) for pid in pids)
    await peer.stop()

    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert peer.pids() == []
    assert "KV buffer" in peer.log("server").read_text()
    await peer.stop()


async def test_each_token_is_told_with_its_id_as_it_arrives(
    pretended: Programs, tmp_path: Path
) -> None:
    peer = side(pretended, tmp_path)
    heard: list[int] = []
    await peer.start()
    try:
        stream = await peer.decode([1, 100], 5, lambda: heard.append(1))
    finally:
        await peer.stop()

    assert stream.token_ids == (101, 102, 103, 104, 105)
    assert len(stream.at_s) == len(heard) == 5
    assert list(stream.at_s) == sorted(stream.at_s)
    assert stream.text == "xxxxx"


async def test_where_the_processor_refuses_its_widest_instructions_a_peer_does_without(
    pretended: Programs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = side(pretended, tmp_path, model="repacks")

    await peer.start()
    await peer.stop()

    assert peer.name.endswith("no repack")
    assert "no repack: the processor refused" in capsys.readouterr().err


async def test_a_peer_that_needs_refused_instructions_anyhow_is_an_error(
    pretended: Programs, tmp_path: Path
) -> None:
    with pytest.raises(PeerError, match="no repack: server ended with code -4"):
        await side(pretended, tmp_path, model="refused").start()


@pytest.mark.parametrize("tokens", [5, 6])
async def test_a_token_within_a_character_costs_ids_but_no_count(
    pretended: Programs, tmp_path: Path, tokens: int
) -> None:
    """The end of the answer is then an arrival as well, so that rates span all tokens."""
    peer = side(pretended, tmp_path)
    await peer.start()
    try:
        stream = await peer.decode([3, 100], tokens)
    finally:
        await peer.stop()

    assert (stream.tokens, stream.token_ids) == (tokens, ())
    assert len(stream.at_s) == 5


async def test_an_answer_of_another_length_is_no_measurement(
    pretended: Programs, tmp_path: Path
) -> None:
    peer = side(pretended, tmp_path)
    await peer.start()
    try:
        with pytest.raises(PeerError, match="expected"):
            await peer.decode([4, 100], 5)
    finally:
        await peer.stop()


@pytest.mark.parametrize(
    ("model", "nodes", "complaint"),
    [("crash", 1, "no such model"), ("keeps", 2, "expected 2 RPC servers")],
)
async def test_a_peer_that_does_not_do_as_told_is_ended_and_told_of(
    pretended: Programs, tmp_path: Path, model: str, nodes: int, complaint: str
) -> None:
    peer = side(pretended, tmp_path, model=model, nodes=nodes)

    with pytest.raises(PeerError, match=complaint):
        await peer.start()

    assert peer.pids() == []


async def test_a_peer_that_never_serves_is_given_up(pretended: Programs, tmp_path: Path) -> None:
    pretended.server.write_text("#!/bin/sh\necho still loading\nexec sleep 600\n")
    peer = side(pretended, tmp_path, start_s=0.3)

    with pytest.raises(PeerError, match="not ready"):
        await peer.start()

    assert peer.pids() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
async def test_no_peer_outlives_a_killed_benchmark(pretended: Programs, tmp_path: Path) -> None:
    script = f"""
import asyncio
from pathlib import Path
from meshnet.cli.bench.peers import LlamaSide
from meshnet.cli.bench.peers_build import Programs
from meshnet.cli.bench.peers_setup import PeerSetup

async def main():
    program = Path({str(pretended.server)!r})
    setup = PeerSetup(Path("ok.gguf"), 2, 1)
    peer = LlamaSide(setup, Programs(program, program), Path({str(tmp_path / "logs")!r}))
    await peer.start()
    print(*peer.pids(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    bench = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=PIPE)
    assert bench.stdout is not None
    peers = [psutil.Process(int(pid)) for pid in (await bench.stdout.readline()).split()]

    bench.kill()
    await bench.wait()

    assert len(peers) == 3
    gone, alive = await asyncio.to_thread(psutil.wait_procs, peers, timeout=20)
    for peer in alive:
        peer.kill()
    assert (len(gone), alive) == (3, [])


async def test_a_side_that_was_not_started_says_so(pretended: Programs, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="not started"):
        await side(pretended, tmp_path).decode([1], 1)


def test_programs_of_another_build_do_not_count(tmp_path: Path) -> None:
    folder = peers_dir(tmp_path)
    folder.mkdir(parents=True)
    with pytest.raises(PeerError, match="make peers"):
        programs(tmp_path)
    for name in PROGRAMS:
        (folder / name).touch()
    (folder / MARKER).write_text(json.dumps(provenance()))

    assert programs(tmp_path).server == folder / "llama-server"

    (folder / MARKER).write_text(json.dumps({**provenance(), "flags": []}))
    with pytest.raises(PeerError, match="make peers"):
        programs(tmp_path)
