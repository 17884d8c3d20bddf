"""JSON output: what is asked, what is refused before anything runs, and what is never shown."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.tokenizers import saved
from tests.gateway.api import Gateway, error, finish_reasons, streamed_text
from tests.models import byte_level_tokenizer

from meshnet.engine.text import HFText

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def wanted(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> HFText:
    path = tmp_path_factory.mktemp("text")
    return saved(byte_level_tokenizer(), path, max_position_embeddings=512)


def gateway(text: HFText, said: str) -> Gateway:
    return Gateway((*text.encode(said, special=False), min(text.stop_ids)), text=text)


async def test_an_answer_of_the_schema_is_shown_as_it_is(text: HFText):
    made = gateway(text, '{"a": 12}')

    whole = (await made.chat(response_format=wanted(SCHEMA))).json()["choices"][0]
    streamed = await made.chat(response_format=wanted(SCHEMA), stream=True)
    completed = (await made.complete(response_format=wanted(SCHEMA))).json()["choices"][0]

    assert whole["message"]["content"] == '{"a": 12}'
    assert whole["finish_reason"] == "stop"
    assert streamed_text(streamed) == completed["text"] == '{"a": 12}'
    assert finish_reasons(streamed) == ["stop"]
    assert len({request.sampling.grammar for request in made.generator.requests}) == 1


async def test_an_object_of_any_form_is_one(text: HFText):
    made = gateway(text, '{"x": [1, null]}')

    answer = await made.chat(response_format={"type": "json_object"})

    assert answer.json()["choices"][0]["message"]["content"] == '{"x": [1, null]}'


async def test_an_answer_cut_by_the_limit_ends_by_length(text: HFText):
    """Pit A54: partial JSON is never called complete."""
    answer = await gateway(text, '{"a": 12}').chat(response_format=wanted(SCHEMA), max_tokens=2)

    assert answer.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("said", ["Sure: {", '{"b"', '{"a": 1', ""])
async def test_a_token_that_the_schema_forbids_is_an_error_and_never_an_answer(
    text: HFText, said: str
):
    answer = await gateway(text, said).chat(response_format=wanted(SCHEMA))

    assert answer.status_code == 502
    assert error(answer)["code"] == "upstream_error"


async def test_without_a_format_no_grammar_is_asked_for(text: HFText):
    made = gateway(text, "a")

    await made.chat(response_format={"type": "text"})

    assert made.generator.requests[0].sampling.grammar == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "what"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": wanted({"type": "notatype"})}, "response_format"),
        ({"response_format": wanted({"properties": {"foo": "bar"}})}, "response_format"),
        ({"response_format": wanted({"enum": ["x" * 10**6]})}, "response_format"),
        ({"response_format": wanted(SCHEMA), "ignore_eos": True}, "ignore_eos"),
        ({"response_format": wanted(SCHEMA), "min_tokens": 1}, "min_tokens"),
        ({"response_format": wanted(SCHEMA), "stop_token_ids": [3]}, "stop_token_ids"),
        (
            {
                "response_format": wanted(SCHEMA),
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
            "response_format",
        ),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_name(
    text: HFText, fields: dict[str, Any], param: str
):
    """Pits A52, A53 and A55."""
    made = gateway(text, "a")

    response = await made.chat(**fields)

    assert response.status_code == 400
    assert error(response)["param"] == param
    assert made.generator.requests == []


async def test_a_model_that_keeps_to_no_grammar_refuses_formats():
    response = await Gateway().chat(response_format={"type": "json_object"})

    assert response.status_code == 400
    assert error(response)["param"] == "response_format"
