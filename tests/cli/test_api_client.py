"""What the terminal client makes of a gateway's answers, from a server that plays each part."""

import json

import pytest
from tests.cli.answers import answering

from meshnet.cli.api_client import ApiClient, ApiError


def events(*chunks: object) -> bytes:
    frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return (": keep-alive\n\n" + "".join(frames) + "data: [DONE]\n\n").encode()


def delta(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def chat(url: str) -> list[str]:
    with ApiClient(url, None) as client:
        return list(client.stream_chat([{"role": "user", "content": "x"}], {"model": "default"}))


def test_a_stream_yields_the_text_of_its_chunks():
    body = events({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, delta("a"),
                  delta("b\n"), {"choices": [], "usage": {}})  # fmt: skip

    with answering((200, body), kind="text/event-stream") as url:
        assert chat(f"{url}/v1/") == ["a", "b\n"]


def test_an_error_inside_a_stream_is_an_error():
    body = events(delta("a"), {"error": {"message": "no route to layer 3"}})

    with (
        answering((200, body), kind="text/event-stream") as url,
        pytest.raises(ApiError, match="layer 3"),
    ):
        chat(url)


def test_a_refusal_is_told_in_the_gateways_words():
    body = json.dumps({"error": {"message": "Incorrect API key provided."}}).encode()

    with (
        answering((401, body)) as url,
        pytest.raises(ApiError, match=r"401: Incorrect API key.*MESHNET_API_KEYS"),
    ):
        chat(url)


@pytest.mark.parametrize("body", [b"<html>", b"[1, 2]"])
def test_somebody_elses_server_is_told_apart(body: bytes):
    with (
        answering((200, body)) as url,
        ApiClient(url, None) as client,
        pytest.raises(ApiError, match="is it a meshnet"),
    ):
        client.mesh()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[::1"])
def test_an_address_where_nobody_answers_is_an_error_of_ours(url: str):
    with pytest.raises(ApiError), ApiClient(url, None) as client:
        client.mesh()
