"""When `meshnet drain` says that a node has left, from a server that plays the gateway."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.cli.answers import Answer, answering

from meshnet.cli.api_client import ApiError
from meshnet.cli.drain_command import drain_node
from meshnet.cli.settings import Settings

SERVING = (200, b'{"sessions": 2}')
LOST = (502, b'{"error": {"message": "it does not answer", "code": "node_lost"}}')
UNKNOWN = (404, b'{"error": {"message": "knows no node", "code": "node_not_found"}}')
NODE = "http://10.0.0.1:9001"


@pytest.mark.parametrize(
    "answers", [(SERVING, SERVING, LOST), (SERVING, UNKNOWN)], ids=["named", "joined"]
)
def test_a_node_that_drains_has_left_when_it_is_gone_or_no_member_any_more(
    answers: Sequence[Answer], capsys: pytest.CaptureFixture[str]
):
    """A node that joined leaves the mesh as it ends, so its gateway knows it no longer."""
    with answering(*answers) as url:
        drain_node(Settings(), NODE, url, undo=False)

    assert f"{NODE} has left" in capsys.readouterr().err


def test_a_node_that_nobody_knew_is_an_error():
    with answering(UNKNOWN) as url, pytest.raises(ApiError, match="knows no node"):
        drain_node(Settings(), NODE, url, undo=False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8000", "http://[::1"])
def test_a_gateway_that_cannot_be_asked_is_named_by_the_command_s_own_option(url: str):
    with pytest.raises(ApiError, match="--gateway"):
        drain_node(Settings(), NODE, url, undo=False)
