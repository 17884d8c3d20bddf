"""Under which name a node joins, and what it calls the model that it is told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from meshnet.cli.joining import Joining, advertised
from meshnet.cli.machine import address_towards
from meshnet.cli.obeying import source_for
from meshnet.cli.settings import Settings, SettingsError
from meshnet.core.vocabulary import Assignment, LayerRange, ModelId

GATEWAY = "http://127.0.0.1:8000"
TOLD = Assignment(ModelId("tiny"), "/theirs/tiny", "int8", LayerRange(0, 2), 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_node_is_known_by_the_address_that_its_gateway_reaches(host: str):
    with socket.create_server((host, 0)) as listener:
        node = advertised(Joining(GATEWAY), Settings(host=host), listener)

        assert node == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_operator_may_say_another_address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = Joining(GATEWAY, "https://node.example:443")

        assert advertised(told, Settings(), listener) == "https://node.example:443"
        with pytest.raises(SettingsError, match="--advertise: expected a URL such as"):
            advertised(Joining(GATEWAY, "node.example"), Settings(), listener)


def test_the_way_to_an_address_of_this_machine_is_this_machine():
    assert address_towards("http://127.0.0.1:1") == "127.0.0.1"


def test_a_model_that_has_another_path_here_is_found_by_its_own_model(tmp_path: Path):
    own = tmp_path / "tiny"
    own.mkdir()
    file = tmp_path / "tiny.gguf"
    file.touch()

    assert source_for(TOLD, str(own)) == str(own)
    assert source_for(TOLD, str(file)) == str(file)
    assert source_for(TOLD, "smollm2-135m") == "/theirs/tiny"
    assert source_for(TOLD, str(tmp_path)) == "/theirs/tiny"
