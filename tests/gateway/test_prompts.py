"""PROMPT: templates, the context rule, and how long an answer may be."""

from __future__ import annotations

import pytest
from tests.gateway.api import USER, Gateway, error, ids_of

from meshnet.simulation.toy_text import BOS, EOS, ToyText, word

HELLO = [*ids_of("Hello"), EOS]


async def test_a_chat_prompt_has_the_template_s_one_bos():
    """Pit A19."""
    gateway = Gateway(HELLO)

    usage = (await gateway.chat()).json()["usage"]

    prompt = gateway.generator.requests[0].prompt
    assert prompt.count(BOS) == 1
    assert prompt[0] == BOS
    assert usage["prompt_tokens"] == len(prompt)


async def test_a_raw_prompt_gets_the_tokenizer_s_bos():
    """Pits A19 and A20."""
    gateway = Gateway(HELLO)

    await gateway.complete(prompt="The")

    assert gateway.generator.requests[0].prompt == (BOS, word("The"))


async def test_token_ids_are_taken_as_they_are():
    """Pit A34: the head's ids are the only ids."""
    gateway = Gateway(HELLO)

    await gateway.complete(prompt=[5, 6, 7])

    assert gateway.generator.requests[0].prompt == (5, 6, 7)


async def test_a_template_that_refuses_says_why():
    """Pit A21."""
    gateway = Gateway(HELLO, text=ToyText(alternating=True))

    response = await gateway.chat(messages=USER + USER)

    assert response.status_code == 400
    assert "must alternate" in error(response)["message"]
    assert (await gateway.chat()).status_code == 200


async def test_two_user_turns_are_fine_where_the_template_takes_them():
    """Pit A21."""
    assert (await Gateway(HELLO).chat(messages=USER + USER)).status_code == 200


SYSTEM = {"role": "system", "content": "be kind"}


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([SYSTEM, *USER], 400),
        ([SYSTEM, SYSTEM, *USER], 400),
        ([*USER, SYSTEM], 400),
        ([{"role": "developer", "content": "be kind"}, *USER], 400),
        (USER, 200),
    ],
)
async def test_a_system_message_without_a_place_is_400_never_500(messages, status):
    """Pit A22."""
    gateway = Gateway(HELLO, text=ToyText(alternating=True))

    assert (await gateway.chat(messages=messages)).status_code == status


async def test_a_developer_message_is_a_system_message():
    """Pit A22."""
    gateway = Gateway(HELLO)

    await gateway.chat(messages=[SYSTEM, *USER])
    await gateway.chat(messages=[SYSTEM | {"role": "developer"}, *USER])

    first, second = gateway.generator.requests
    assert first.prompt == second.prompt


@pytest.mark.parametrize("parts", [["hi"], ["h", "i"]])
async def test_parts_of_text_are_their_joined_text(parts: list[str]):
    """Pit A23."""
    gateway = Gateway(HELLO)
    content = [{"type": "text", "text": part} for part in parts]

    await gateway.chat()
    await gateway.chat(messages=[{"role": "user", "content": content}])

    first, second = gateway.generator.requests
    assert first.prompt == second.prompt


async def test_tool_messages_of_an_earlier_turn_reach_the_template():
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"x": 1}'},
    }
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]

    assert (await Gateway(HELLO).chat(messages=messages)).status_code == 200


async def test_a_model_without_a_template_says_so_and_still_completes():
    """Pit A24."""
    gateway = Gateway(HELLO, text=ToyText(template=False))

    chat = await gateway.chat()
    completion = await gateway.complete()

    assert chat.status_code == 400
    assert "no chat template" in error(chat)["message"]
    assert completion.status_code == 200


@pytest.mark.parametrize("stop_id", [5, 7, 9])
async def test_every_stop_id_of_the_model_ends_an_answer(stop_id: int):
    """Pits A25 and A26: also with overridden defaults."""
    gateway = Gateway([ord("a"), stop_id], text=ToyText(stop_ids=frozenset({5, 7, 9})))

    told = (await gateway.chat(temperature=0.3, max_tokens=9)).json()

    assert told["choices"][0]["finish_reason"] == "stop"
    assert told["usage"]["completion_tokens"] == 2


async def test_ignore_eos_bans_the_model_s_stop_ids_and_keeps_the_user_s():
    """Pit A27."""
    gateway = Gateway([ord("a")])

    told = (await gateway.chat(ignore_eos=True, max_tokens=20, stop_token_ids=[7])).json()

    request = gateway.generator.requests[0]
    assert told["choices"][0]["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == 20
    assert request.stop_ids == {7}
    assert set(request.sampling.banned) == gateway.text.stop_ids
    assert request.sampling.banned_until > len(request.prompt) + 20


async def test_min_tokens_bans_every_stop_id_until_then():
    gateway = Gateway(HELLO)

    await gateway.chat(min_tokens=4, stop_token_ids=[7])

    request = gateway.generator.requests[0]
    assert set(request.sampling.banned) == {7} | gateway.text.stop_ids
    assert request.sampling.banned_until == len(request.prompt) + 4


async def test_bans_that_cannot_both_be_kept_are_refused():
    response = await Gateway(HELLO).chat(min_tokens=4, ignore_eos=True, stop_token_ids=[7])

    assert response.status_code == 400
    assert error(response)["param"] == "min_tokens"


async def test_a_prompt_over_the_context_says_so_in_known_words():
    """Pits A28 and A29: refused, not cut, and nothing is generated."""
    gateway = Gateway(HELLO, text=ToyText(context_length=64))

    response = await gateway.complete(prompt=[1] * 65, max_tokens=3)

    told = error(response)
    assert response.status_code == 400
    assert told["code"] == "context_length_exceeded"
    assert told["type"] == "invalid_request_error"
    assert told["message"].startswith(
        "This model's maximum context length is 64 tokens. However, you requested 68 tokens "
        "(65 in the prompt, 3 in the completion)."
    )
    assert gateway.generator.requests == []


@pytest.mark.parametrize(("prompt", "status"), [(63, 200), (64, 400)])
async def test_a_prompt_must_leave_room_for_one_token(prompt: int, status: int):
    gateway = Gateway(HELLO, text=ToyText(context_length=64))

    assert (await gateway.complete(prompt=[1] * prompt)).status_code == status


async def test_without_a_cap_an_answer_ends_where_the_context_does():
    """Pit A30."""
    gateway = Gateway([ord("a")], text=ToyText(context_length=64))

    told = (await gateway.complete(prompt=[1] * 60)).json()

    assert told["choices"][0]["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == 4


async def test_asking_for_the_whole_context_is_refused_and_its_size_is_told():
    """Pit A105."""
    gateway = Gateway(HELLO, text=ToyText(context_length=64))

    response = await gateway.chat(max_tokens=64)
    models = (await gateway.send("GET", "/v1/models")).json()

    assert error(response)["code"] == "context_length_exceeded"
    assert models["data"][0]["max_model_len"] == 64
    assert models["data"][0]["context_length"] == 64


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 5}, 3),
        ({"max_completion_tokens": None, "max_tokens": 5}, 5),
    ],
)
async def test_both_names_of_the_cap_work_and_the_newer_wins(fields: dict, tokens: int):
    """Pit A31."""
    told = (await Gateway([ord("a")]).chat(**fields)).json()

    assert told["usage"]["completion_tokens"] == tokens


async def test_template_switches_reach_the_template():
    gateway = Gateway(HELLO)

    await gateway.chat(chat_template_kwargs={"enable_thinking": True})

    assert gateway.generator.requests[0].prompt[-1] == word("<|think|>")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("The", [(BOS, word("The"))]),
        (["The", "ing"], [(BOS, word("The")), (BOS, word("ing"))]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
async def test_all_four_forms_of_a_prompt(prompt, prompts):
    gateway = Gateway(HELLO)

    told = (await gateway.complete(prompt=prompt)).json()

    assert [request.prompt for request in gateway.generator.requests] == prompts
    assert [choice["index"] for choice in told["choices"]] == list(range(len(prompts)))
    assert told["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert told["usage"]["completion_tokens"] == len(HELLO) * len(prompts)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ([], "prompt"),
        (7, "prompt"),
        ({}, "prompt"),
        ([[]], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([-1], "prompt[0]"),
        ([10**6], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        ([[1], [10**6]], "prompt[1][0]"),
        (["a"] * 17, "prompt"),
    ],
)
async def test_a_wrong_prompt_is_named(prompt: object, param: str):
    response = await Gateway(HELLO).complete(prompt=prompt)

    assert response.status_code == 400
    assert error(response)["param"] == param


class Trimmed(ToyText):
    """A tokenizer with more ids than its model has rows, as Gemma 3's."""

    @property
    def vocab_size(self) -> int:
        return EOS


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_with_ids_that_the_model_does_not_have_is_refused(stream: bool):
    gateway = Gateway(HELLO, text=Trimmed())

    chat = await gateway.chat(stream=stream)
    completion = await gateway.complete(stream=stream)

    assert chat.status_code == completion.status_code == 400
    assert error(chat)["param"] == "messages"
    assert error(completion)["param"] == "prompt"
    assert not gateway.generator.requests


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 1}])
async def test_stop_ids_that_the_model_does_not_have_need_not_be_banned(fields: dict[str, object]):
    gateway = Gateway(HELLO, text=Trimmed(stop_ids=frozenset({1, EOS})))

    await gateway.complete(prompt=[5, 6], max_tokens=2, **fields)

    assert gateway.generator.requests[0].sampling.banned == (1,)
