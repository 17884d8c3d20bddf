"""From what a client asks to what is generated: defaults, stop ids, and the context rule.

absent max tokens          -> all the room the context leaves
prompt + max tokens > room -> refused; nothing is ever cut
min_tokens                 -> stop ids cannot be drawn before that many tokens
ignore_eos                 -> the model's own stop ids cannot be drawn at all
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from meshnet.core.vocabulary import (
    POSITIONS_MAX,
    GrammarError,
    SamplingParams,
    TextTooLong,
    TraceContext,
)
from meshnet.gateway.errors import ApiError, context_exceeded, invalid, unsupported
from meshnet.gateway.ports import TextModel
from meshnet.gateway.requests import SamplingFields
from meshnet.head import GenerationRequest

T = TypeVar("T")

GREEDY_BELOW = 1e-5
"""Dividing logits by a smaller temperature overflows; the limit is the largest one."""
EVERYBODY = ""
"""Whose chats go on where no keys are configured: then all clients are one owner."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One generation and where its text ends."""

    prompt: tuple[int, ...]
    request: GenerationRequest | None
    """None: nothing is to be drawn, the answer is an echo alone."""
    stops: tuple[str, ...]
    echo: bool = False
    """The answer begins with its prompt."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def forced(self) -> tuple[int, ...]:
        """The ids of the prompt whose log probabilities are drawn with the answer."""
        return () if self.request is None else self.request.sampling.forced

    def seeded(self, seed: int) -> Plan:
        if self.request is None:
            return self
        sampling = replace(self.request.sampling, seed=seed)
        return replace(self, request=replace(self.request, sampling=sampling))


@dataclass(frozen=True, slots=True)
class Choices:
    """What is the same for every prompt of a request."""

    sampling: SamplingFields
    tokens_max: int | None
    seed: int
    deadline_s: float
    trace: str
    """The request id, which the logs of all hops repeat."""
    owner: str | None
    """The tag of the API key, by which nodes let owners take turns."""
    where: str
    """The field that holds the prompt: `messages` or `prompt`."""
    count: int = 1
    """Answers to each prompt."""
    echo: bool = False
    required: tuple[dict[str, Any], ...] = ()
    """Tools of which the answer has to call one."""
    traceparent: TraceContext | None = None
    """The span of the request."""

    @property
    def scores(self) -> bool:
        """Whether log probabilities of the prompt are wanted."""
        return self.echo and self.sampling.logprobs is not None


def plan(prompt: list[int], text: TextModel, choices: Choices) -> Plan:
    """Decide one generation. Raises ApiError where it does not fit the context."""
    if not prompt:
        raise invalid(choices.where, "expected at least one token")
    if max(prompt) >= text.vocab_size:  # some tokenizers know more ids than their model
        raise invalid(choices.where, f"the model has no token {max(prompt)}")
    tokens_max = _tokens_max(len(prompt), text.context_length, choices)
    fields = choices.sampling
    if fields.min_tokens > tokens_max:
        raise invalid("min_tokens", f"expected at most {tokens_max}, the most tokens allowed")
    stop_ids = frozenset(fields.stop_token_ids)
    if not fields.ignore_eos:
        stop_ids |= text.stop_ids
    sampling = _sampling(len(prompt), stop_ids, text, choices)
    if fields.schema is not None or choices.required:
        sampling = replace(sampling, grammar=_grammar(prompt, text, choices))
    given = tuple(prompt)
    if choices.scores:  # all of the prompt but its first id is drawn, as it is told to be
        sampling = replace(sampling, forced=given[1:])
        tokens_max += len(sampling.forced)
    if tokens_max == 0:
        return Plan(given, None, fields.stops, choices.echo)
    request = GenerationRequest(
        prompt=given[: len(given) - len(sampling.forced)],
        tokens_max=tokens_max,
        sampling=sampling,
        stop_ids=stop_ids,
        deadline_s=choices.deadline_s,
        trace=choices.trace,
        traceparent=choices.traceparent,
        owner=choices.owner,
        prefix_owner=None if sampling.forced else choices.owner or EVERYBODY,
    )
    return Plan(given, request, fields.stops, choices.echo)


def plans(prompt: list[int], text: TextModel, choices: Choices) -> tuple[Plan, ...]:
    """One plan for each answer to a prompt; each draws by a seed of its own.

    They run one after the other, so that each goes on from the prompt that the nodes hold.
    """
    first = plan(prompt, text, choices)
    return tuple(first.seeded((choices.seed + nth) % 2**64) for nth in range(choices.count))


def _grammar(prompt: list[int], text: TextModel, choices: Choices) -> str:
    """An answer ends exactly where it is complete: so no id may be kept from that, or end it."""
    fields, schema = choices.sampling, choices.sampling.schema
    for name in ("ignore_eos", "min_tokens", "stop_token_ids"):
        if getattr(fields, name):
            what = "a forced tool call" if schema is None else "response_format"
            raise unsupported(name, f"not together with {what}")
    try:
        if schema is not None:
            return text.grammar_of(schema)
        return text.grammar_of_call(prompt, choices.required)
    except GrammarError as error:
        where = "tool_choice" if schema is None else "response_format"
        raise invalid(where, f"no answer can be kept to this: {error}") from None


def too_long(error: TextTooLong, text: TextModel, tokens_max: int | None, where: str) -> ApiError:
    """The refusal of a prompt whose ids were not all counted."""
    return context_exceeded(
        limit=text.context_length,
        prompt=error.tokens_at_least,
        completion=tokens_max or 1,
        where=where,
        counted=False,
    )


def _tokens_max(prompt_tokens: int, context_length: int, choices: Choices) -> int:
    room = context_length - prompt_tokens
    wanted = choices.tokens_max if choices.tokens_max is not None else max(room, 1)
    if wanted > room:
        raise context_exceeded(
            limit=context_length,
            prompt=prompt_tokens,
            completion=wanted,
            where=choices.where,
        )
    return wanted


def _sampling(
    prompt_tokens: int, stop_ids: frozenset[int], text: TextModel, choices: Choices
) -> SamplingParams:
    fields = choices.sampling
    banned, banned_until = _banned(prompt_tokens, stop_ids, text, fields)
    banned = tuple(token_id for token_id in banned if token_id < text.vocab_size)
    temperature, top_p, top_k = _recommended(text)
    return SamplingParams(
        temperature=_temperature(fields.temperature, temperature),
        top_k=_first(fields.top_k, top_k, 0),
        top_p=_first(fields.top_p, top_p, 1.0),
        min_p=fields.min_p,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=fields.logit_bias,
        seed=choices.seed % 2**64,
        logprobs=fields.logprobs,
        prompt_length=prompt_tokens,
        banned=banned,
        banned_until=banned_until,
    )


def _recommended(text: TextModel) -> tuple[float | None, float | None, int | None]:
    defaults = text.generation_defaults
    if defaults is None:
        return None, None, None
    return defaults.temperature, defaults.top_p, defaults.top_k


def _banned(
    prompt_tokens: int, stop_ids: frozenset[int], text: TextModel, fields: SamplingFields
) -> tuple[tuple[int, ...], int]:
    if fields.ignore_eos:
        if fields.min_tokens and fields.stop_token_ids:
            raise unsupported("min_tokens", "not together with both ignore_eos and stop_token_ids")
        wanted = text.stop_ids - stop_ids
        return tuple(sorted(wanted)), POSITIONS_MAX if wanted else 0
    if fields.min_tokens and stop_ids:
        return tuple(sorted(stop_ids)), prompt_tokens + fields.min_tokens
    return (), 0


def _temperature(asked: float | None, recommended: float | None) -> float:
    temperature = _first(asked, recommended, 1.0)
    return 0.0 if temperature < GREEDY_BELOW else temperature


def _first(asked: T | None, recommended: T | None, otherwise: T) -> T:
    if asked is not None:
        return asked
    return otherwise if recommended is None else recommended
