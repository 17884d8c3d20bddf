"""What a client asks for, as frozen values: every field checked, nothing computed yet.

Invariants
    * a field that would change the answer is served or refused, never ignored;
    * an unknown field is ignored and named in `ignored`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshnet.core.vocabulary import TOKEN_ID_MAX
from meshnet.gateway.errors import invalid, unsupported
from meshnet.gateway.fields import (
    Fields,
    as_array,
    as_number,
    as_object,
    as_text,
    as_token_id,
    kind,
    token_id_of_key,
)
from meshnet.gateway.formats import read_schema
from meshnet.gateway.messages import read_messages
from meshnet.gateway.refused import REFUSED, REFUSED_IN_CHAT, REFUSED_IN_COMPLETIONS, refuse
from meshnet.gateway.settings import ApiLimits
from meshnet.gateway.tools import Tools, read_tools

INTEGER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """How to draw, as far as the client says; None leaves it to the model's defaults."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    """How many alternatives of each token to tell; None: no logprobs at all."""
    schema: dict[str, Any] | None = None
    """The JSON schema that the answer is kept to."""


@dataclass(frozen=True, slots=True)
class Delivery:
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str
    messages: tuple[dict[str, Any], ...]
    template_kwargs: Mapping[str, Any]
    tools: Tools
    thoughts: bool
    """Thoughts are told apart from the answer."""
    sampling: SamplingFields
    tokens_max: int | None
    choices: int
    """Answers to each prompt."""
    delivery: Delivery
    ignored: tuple[str, ...]


Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingFields
    tokens_max: int | None
    choices: int
    echo: bool
    delivery: Delivery
    ignored: tuple[str, ...]


_TEMPLATE_KWARGS = ("enable_thinking", "reasoning_effort")


def read_chat(values: dict[str, Any], limits: ApiLimits, vocab_size: int) -> ChatRequest:
    """Check a body of POST /v1/chat/completions. Raises ApiError."""
    fields = Fields(values)
    model = as_text("model", fields.require("model"))
    refuse(fields, REFUSED, REFUSED_IN_CHAT)
    messages = read_messages(fields, limits)
    template_kwargs = read_template_kwargs(fields)
    wanted = fields.integer("max_completion_tokens", 1, INTEGER_MAX)
    older = fields.integer("max_tokens", 1, INTEGER_MAX)
    sampling = _sampling(fields, limits, vocab_size, logprobs=_chat_logprobs(fields, limits))
    tools = read_tools(fields, limits)
    if tools.listed and sampling.schema is not None:
        raise unsupported("response_format", "not together with tools that may be called")
    return ChatRequest(
        model=model,
        messages=messages,
        template_kwargs=template_kwargs,
        tools=tools,
        thoughts=fields.take("separate_reasoning") is None or fields.boolean("separate_reasoning"),
        sampling=sampling,
        tokens_max=wanted if wanted is not None else older,
        choices=fields.integer("n", 1, limits.choices) or 1,
        delivery=_delivery(fields),
        ignored=fields.ignored,
    )


def read_completion(
    values: dict[str, Any], limits: ApiLimits, vocab_size: int
) -> CompletionRequest:
    """Check a body of POST /v1/completions. Raises ApiError."""
    fields = Fields(values)
    model = as_text("model", fields.require("model"))
    refuse(fields, REFUSED, REFUSED_IN_COMPLETIONS)
    prompts = _prompts(fields.require("prompt"), limits, vocab_size)
    echo = fields.boolean("echo")
    least = 0 if echo else 1
    wanted = fields.integer("max_completion_tokens", least, INTEGER_MAX)
    older = fields.integer("max_tokens", least, INTEGER_MAX)
    logprobs = fields.integer("logprobs", 0, limits.completion_logprobs)
    return CompletionRequest(
        model=model,
        prompts=prompts,
        sampling=_sampling(fields, limits, vocab_size, logprobs=logprobs),
        tokens_max=wanted if wanted is not None else older,
        choices=fields.integer("n", 1, limits.choices) or 1,
        echo=echo,
        delivery=_delivery(fields),
        ignored=fields.ignored,
    )


def _sampling(
    fields: Fields, limits: ApiLimits, vocab_size: int, *, logprobs: int | None
) -> SamplingFields:
    repetition = fields.number("repetition_penalty", 1e-3, 100.0)
    return SamplingFields(
        temperature=fields.number("temperature", 0.0, 2.0),
        top_p=fields.number("top_p", 0.0, 1.0),
        top_k=_top_k(fields),
        min_p=fields.number("min_p", 0.0, 1.0) or 0.0,
        presence_penalty=fields.number("presence_penalty", -2.0, 2.0) or 0.0,
        frequency_penalty=fields.number("frequency_penalty", -2.0, 2.0) or 0.0,
        repetition_penalty=1.0 if repetition is None else repetition,
        logit_bias=_logit_bias(fields, limits, vocab_size),
        seed=fields.integer("seed", -(2**63), 2**64 - 1),
        min_tokens=fields.integer("min_tokens", 0, INTEGER_MAX) or 0,
        ignore_eos=fields.boolean("ignore_eos"),
        stop_token_ids=_token_ids(fields, limits, vocab_size),
        stops=_stops(fields, limits),
        logprobs=logprobs,
        schema=read_schema(fields),
    )


def _top_k(fields: Fields) -> int | None:
    """-1 and 0 both mean: all tokens."""
    value = fields.integer("top_k", -1, TOKEN_ID_MAX)
    return None if value is None else min(max(value, 0), 1_000_000)


def _logit_bias(
    fields: Fields, limits: ApiLimits, vocab_size: int
) -> tuple[tuple[int, float], ...]:
    value = fields.take("logit_bias")
    if value is None:
        return ()
    biases = as_object("logit_bias", value)
    if len(biases) > limits.logit_bias:
        raise invalid("logit_bias", f"expected at most {limits.logit_bias} keys, got {len(biases)}")
    by_id: dict[int, float] = {}
    for key, bias in biases.items():
        token_id = token_id_of_key("logit_bias", key, vocab_size)
        if token_id in by_id:
            raise invalid("logit_bias", f"token {token_id} is there twice")
        by_id[token_id] = as_number("logit_bias", bias, -100.0, 100.0)
    return tuple(by_id.items())


def _token_ids(fields: Fields, limits: ApiLimits, vocab_size: int) -> tuple[int, ...]:
    value = fields.take("stop_token_ids")
    if value is None:
        return ()
    ids = as_array("stop_token_ids", value, limits.stop_token_ids)
    return tuple(
        as_token_id(f"stop_token_ids[{index}]", token_id, vocab_size)
        for index, token_id in enumerate(ids)
    )


def _stops(fields: Fields, limits: ApiLimits) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (_stop("stop", value, limits),)
    if not isinstance(value, list):
        raise invalid(
            "stop",
            f"expected a string or an array of strings, got {kind(value)}",
            code="invalid_type",
        )
    stops = as_array("stop", value, limits.stops)
    return tuple(_stop(f"stop[{index}]", stop, limits) for index, stop in enumerate(stops))


def _stop(param: str, value: object, limits: ApiLimits) -> str:
    stop = as_text(param, value)
    if not 1 <= len(stop) <= limits.stop_characters:
        raise invalid(param, f"expected 1 to {limits.stop_characters} characters, got {len(stop)}")
    return stop


def _chat_logprobs(fields: Fields, limits: ApiLimits) -> int | None:
    logprobs = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, limits.top_logprobs)
    if logprobs:
        return top or 0
    if top is not None:
        raise invalid("top_logprobs", "expected logprobs to be true with it")
    return None


def read_template_kwargs(fields: Fields) -> Mapping[str, Any]:
    """Read what a request hands to the chat template. Raises ApiError."""
    value = fields.take("chat_template_kwargs")
    given = {} if value is None else as_object("chat_template_kwargs", value)
    kwargs = {name: given[name] for name in _TEMPLATE_KWARGS if given.get(name) is not None}
    for name in given:
        if name not in _TEMPLATE_KWARGS:
            raise invalid(
                f"chat_template_kwargs.{name}" if name.isidentifier() else "chat_template_kwargs",
                f"expected only {' and '.join(_TEMPLATE_KWARGS)}",
                code="unsupported_parameter",
            )
    for name, argument in kwargs.items():
        if not isinstance(argument, bool | str):
            raise invalid(
                f"chat_template_kwargs.{name}", f"expected a string or a bool, got {kind(argument)}"
            )
        if isinstance(argument, str):
            as_text(f"chat_template_kwargs.{name}", argument)
    effort = fields.text("reasoning_effort")
    return kwargs if effort is None else {"reasoning_effort": effort} | kwargs


def _delivery(fields: Fields) -> Delivery:
    stream = fields.boolean("stream")
    value = fields.take("stream_options")
    if value is None:
        return Delivery(stream=stream, include_usage=False)
    if not stream:
        raise invalid("stream_options", "only allowed when stream is true")
    options = fields.inside("stream_options", value)
    return Delivery(stream=True, include_usage=options.boolean("include_usage"))


def _prompts(value: object, limits: ApiLimits, vocab_size: int) -> tuple[Prompt, ...]:
    """A text, a list of texts, a list of token ids, or a list of those."""
    if isinstance(value, str):
        return (as_text("prompt", value),)
    if not isinstance(value, list):
        raise invalid(
            "prompt", f"expected a string or an array, got {kind(value)}", code="invalid_type"
        )
    if not value:
        raise invalid("prompt", "expected at least one prompt")
    if not isinstance(value[0], str | list):
        return (prompt_ids("prompt", value, vocab_size),)
    as_array("prompt", value, limits.prompts)
    if isinstance(value[0], str):
        return tuple(as_text(f"prompt[{index}]", text) for index, text in enumerate(value))
    return tuple(prompt_ids(f"prompt[{index}]", ids, vocab_size) for index, ids in enumerate(value))


def prompt_ids(param: str, value: object, vocab_size: int) -> tuple[int, ...]:
    """Check token ids, at least one. Raises ApiError."""
    ids = as_array(param, value, INTEGER_MAX)
    if not ids:
        raise invalid(param, "expected at least one token id")
    wrong = (
        index
        for index, token_id in enumerate(ids)
        if type(token_id) is not int or not 0 <= token_id < vocab_size
    )
    if (index := next(wrong, None)) is not None:
        as_token_id(f"{param}[{index}]", ids[index], vocab_size)
    return tuple(ids)
