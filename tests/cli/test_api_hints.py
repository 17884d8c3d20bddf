"""What the terminal client adds to a refusal, so that the next try succeeds."""

from __future__ import annotations

import json

import pytest
from tests.cli.answers import answering

from meshnet.cli.api_client import ApiClient, ApiError


def told(status: int, body: object) -> str:
    with (
        answering((status, json.dumps(body).encode())) as url,
        ApiClient(url, None) as client,
        pytest.raises(ApiError) as error,
    ):
        client.mesh()
    return str(error.value)


def test_a_conversation_that_became_too_long_can_be_shortened():
    """A model of a small context refuses the very first line at the default --max-tokens."""
    error = {"message": "too long", "code": "context_length_exceeded"}

    assert "/reset" in told(400, {"error": error})
    assert "--max-tokens" in told(400, {"error": error})


def test_a_node_is_told_apart_from_a_gateway():
    assert "is that a node?" in told(404, {"error": "not_found", "message": "no such path: /mesh"})


def test_a_key_that_is_wanted_is_named():
    assert "MESHNET_API_KEYS" in told(401, {"error": {"message": "No API key provided."}})


@pytest.mark.parametrize("url", ["localhost:8000", "foo", "ftp://127.0.0.1:1"])
def test_what_is_no_url_is_told_by_an_example(url: str):
    with (
        pytest.raises(ApiError, match=r"--url: expected a URL such as http://127.0.0.1:8000"),
        ApiClient(url, None) as client,
    ):
        client.mesh()
