"""The API's own description names what is served, no more and no less."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.api import USER, Gateway
from tests.gateway.speaking_text import SpeakingText

from meshnet.gateway import openapi_fields as openapi
from meshnet.gateway.fields import Fields
from meshnet.gateway.requests import read_chat, read_completion
from meshnet.gateway.settings import ApiLimits
from meshnet.simulation.toy_text import EOS, VOCABULARY


async def test_every_endpoint_is_described():
    described = (await Gateway().send("GET", "/openapi.json")).json()

    assert set(described["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/tokenize",
        "/v1/detokenize",
        "/v1/models",
        "/v1/models/{model}",
        "/health",
        "/ready",
    }
    responses = described["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert "422" not in responses
    assert {"200", "400", "401", "404", "413", "503"} <= set(responses)


@pytest.mark.parametrize(
    ("fields", "read", "body"),
    [
        (openapi.chat_fields, read_chat, {"messages": USER}),
        (openapi.completion_fields, read_completion, {"prompt": "a"}),
    ],
)
def test_every_described_field_is_served(fields, read, body):
    described = fields(ApiLimits())
    silent = dict.fromkeys(described, None) | {"model": "default"} | body

    asked = read(silent, ApiLimits(), VOCABULARY)

    assert asked.ignored == ()


@pytest.mark.parametrize(
    ("fields", "read", "body"),
    [
        (openapi.chat_fields, read_chat, {"messages": USER}),
        (openapi.completion_fields, read_completion, {"prompt": "a"}),
    ],
)
def test_every_field_read_is_described_or_refused(fields, read, body, monkeypatch):
    readers: list[Fields] = []
    plain = Fields.__init__

    def remembered(self: Fields, values: dict, *, prefix: str = "") -> None:
        plain(self, values, prefix=prefix)
        if not prefix:
            readers.append(self)

    monkeypatch.setattr(Fields, "__init__", remembered)
    read({"model": "default"} | body, ApiLimits(), VOCABULARY)

    assert readers[0].known - readers[0].refusable == set(fields(ApiLimits()))


WHOLE: dict[str, Any] = {
    "model": "default",
    "max_tokens": 8,
    "messages": USER,
    "tools": [{"name": "look", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled"},
}


@pytest.mark.parametrize("field", ["messages", "tools", "tool_choice", "thinking"])
async def test_what_is_described_as_required_of_anthropics_fields_is_required(field):
    gateway = Gateway((0, EOS), text=SpeakingText())
    described = (await gateway.send("GET", "/openapi.json")).json()
    body = described["paths"]["/v1/messages"]["post"]["requestBody"]["content"]
    schema = body["application/json"]["schema"]["properties"][field]
    is_list = isinstance(WHOLE[field], list)
    whole = WHOLE[field][0] if is_list else WHOLE[field]
    required = (schema["items"] if is_list else schema)["required"]

    def without(name: str) -> dict[str, Any]:
        rest = {key: value for key, value in whole.items() if key != name}
        return WHOLE | {field: [rest] if is_list else rest}

    complete = await gateway.send("POST", "/v1/messages", json=WHOLE)
    cut = [await gateway.send("POST", "/v1/messages", json=without(name)) for name in whole]

    assert complete.status_code == 200, complete.text
    assert set(required) == set(whole)
    assert [answer.status_code for answer in cut] == [400] * len(whole)
