"""The ids of a text or a chat, and back: exactly those that a generation would be given."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.api import USER, Gateway, error

from meshnet.core.vocabulary import TextTooLong
from meshnet.simulation.toy_text import ToyText


async def post(gateway: Gateway, path: str, **fields: Any) -> Any:
    return await gateway.send("POST", path, json=fields)


async def tokens(gateway: Gateway, **fields: Any) -> list[int]:
    return (await post(gateway, "/tokenize", **fields)).json()["tokens"]


async def test_a_text_has_the_ids_that_a_completion_of_it_has():
    gateway = Gateway()
    await gateway.complete(prompt="The quick fox")

    told = (await post(gateway, "/v1/tokenize", model="default", prompt="The quick fox")).json()

    assert told["tokens"] == list(gateway.generator.requests[0].prompt)
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == gateway.text.context_length
    assert told["token_strs"] is None


async def test_a_chat_has_the_ids_that_its_answer_follows():
    gateway = Gateway()
    fields = {"messages": USER, "chat_template_kwargs": {"enable_thinking": True}}
    await gateway.chat(**fields)

    assert await tokens(gateway, **fields) == list(gateway.generator.requests[0].prompt)


async def test_special_tokens_are_added_unless_they_are_not_wanted():
    gateway = Gateway()

    bare = await tokens(gateway, prompt="hi", add_special_tokens=False)

    assert bare == ToyText().encode("hi", special=False)
    assert await tokens(gateway, prompt="hi") == ToyText().encode("hi", special=True) != bare


async def test_the_text_of_each_id_comes_on_demand():
    told = await post(Gateway(), "/tokenize", prompt="The fox", return_token_strs=True)

    assert told.json()["token_strs"] == ["<|bos|>", "The", " fox"]


async def test_ids_give_back_the_text_special_tokens_and_all():
    gateway = Gateway()
    ids = await tokens(gateway, prompt="你好 fox")

    told = await post(gateway, "/v1/detokenize", tokens=ids)

    assert told.json() == {"prompt": "<|bos|>你好 fox"}
    assert (await post(gateway, "/detokenize", tokens=[])).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": USER, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": USER, "add_generation_prompt": False}, "add_generation_prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, 10**6]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_what_is_wrong_is_named(path: str, fields: dict[str, Any], param: str):
    response = await post(Gateway(), path, **fields)

    assert response.status_code in (400, 404)
    assert error(response)["param"] == param


async def test_a_model_without_a_template_has_no_ids_of_a_chat():
    response = await post(Gateway(text=ToyText(template=False)), "/tokenize", messages=USER)

    assert error(response)["code"] == "no_chat_template"


async def test_an_endless_text_is_refused_before_all_of_it_is_counted():
    class Hopeless(ToyText):
        def encode(self, text: str, *, special: bool) -> list[int]:
            raise TextTooLong(10_000, self.context_length)

    response = await post(Gateway(text=Hopeless()), "/tokenize", prompt="x")

    assert error(response)["code"] == "context_length_exceeded"
