"""What `meshnet doctor` asks and tells, of a server that plays gateway and node."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import typer
from tests.cli.answers import QuietHandler, listening
from tests.cli.doctor.described import NODE

from meshnet.cli.doctor.command import examine
from meshnet.cli.settings import Settings
from meshnet.core.protocol.codec import encode_node
from meshnet.core.vocabulary import NodeDescription, NodeId


@contextmanager
def serving(answers: Mapping[str, bytes]) -> Iterator[str]:
    """Answer GET from `answers`, which is read at each, and drop what is posted."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, answers[self.path])

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(204, b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with listening(Handler) as url:
        yield url


@contextmanager
def mesh(node: NodeDescription, *, ready: bool = True) -> Iterator[str]:
    """A gateway whose one node is the same server."""
    answers: dict[str, bytes] = {}
    with serving(answers) as url:
        answers["/node"] = encode_node(replace(node, node=NodeId(url)))
        told: dict[str, Any] = {
            "model": "m", "ready": ready, "detail": "" if ready else "layers 4-8 are missing",
            "nodes": [{"url": url, "layers": [0, 4]}],
        }  # fmt: skip
        answers["/mesh"] = json.dumps(told).encode()
        yield url


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Levels by check, of what was printed as JSON."""
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == all(each["level"] != "bad" for each in told["findings"])
    levels: dict[str, list[str]] = {}
    for each in told["findings"]:
        assert bool(each["advice"]) == (each["level"] != "ok")
        levels.setdefault(each["check"], []).append(each["level"])
    return levels


def test_a_mesh_that_is_well_is_told_so_check_by_check(capsys: pytest.CaptureFixture[str]):
    with mesh(NODE) as url:
        examine(Settings(), url, (), as_json=True)

    assert found(capsys) == {
        "credentials": ["ok"], "gateway": ["ok"], "reach": ["ok"], "versions": ["ok"],
        "models": ["ok"], "memory": ["ok"], "links": ["ok"], "plan": ["warn"],
    }  # fmt: skip


def test_layers_that_nobody_serves_end_it_with_1(capsys: pytest.CaptureFixture[str]):
    with mesh(NODE, ready=False) as url, pytest.raises(typer.Exit) as ended:
        examine(Settings(), url, (), as_json=True)

    assert ended.value.exit_code == 1
    assert found(capsys)["gateway"] == ["bad"]


def test_a_node_that_is_not_there_is_bad_and_the_others_are_still_looked_at(
    capsys: pytest.CaptureFixture[str],
):
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"
    with mesh(NODE) as url, pytest.raises(typer.Exit):
        examine(Settings(), url, (gone,), as_json=True)

    levels = found(capsys)
    assert levels["reach"] == ["bad"]
    assert levels["models"] == ["ok"]


def test_where_nothing_runs_a_free_port_is_no_error_and_a_taken_one_is(
    capsys: pytest.CaptureFixture[str],
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as free:
            nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(typer.Exit):
            examine(Settings(port=port), nobody, (), as_json=True)
    assert found(capsys)["port"] == ["bad"]

    examine(Settings(port=port), nobody, (), as_json=True)
    assert found(capsys)["gateway"] == ["warn"]


def test_people_read_a_line_for_each_and_what_to_do(capsys: pytest.CaptureFixture[str]):
    with mesh(replace(NODE, version="0.0")) as url:
        examine(Settings(), url, (), as_json=False)

    told = capsys.readouterr().out
    assert "warn versions" in told
    assert "-> run one version" in told
    assert told.rstrip().endswith("checks, 0 of them bad")
