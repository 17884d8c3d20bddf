"""From a checked request to a response: the one path that chat and completions share.

    body --(thread: parse, template, tokenise, plan)--> Job --> stream of chunks | one body

Invariants
    * everything that can be refused is refused before the first byte of an answer;
    * streamed or not, the same pieces are shown: only their packing differs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from meshnet.core.vocabulary import TraceContext
from meshnet.gateway.allowance import Allowance
from meshnet.gateway.assembly import Piece, pieces
from meshnet.gateway.auth import ALLOWANCE, OWNER
from meshnet.gateway.bodies import body_too_slow, read_body
from meshnet.gateway.delivery import EventStream, unless_gone
from meshnet.gateway.dialects import OPENAI, Dialect
from meshnet.gateway.errors import ApiError, json_response, of_failure
from meshnet.gateway.planning import Choices, Plan
from meshnet.gateway.ports import Ambient, Generator, TextModel
from meshnet.gateway.requests import ChatRequest, CompletionRequest, Delivery
from meshnet.gateway.settings import GatewaySettings
from meshnet.gateway.speaking import Parting, parted
from meshnet.head import GenerationFailed

DEFAULT_MODEL = "default"
CLIENT_GONE = 499
REQUEST_ID = "meshnet.request_id"
"""Where the boundary leaves the request id in the ASGI scope."""
TRACE = "meshnet.trace"
"""And the span of the request, or None."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_IGNORED_MAX = 32


@dataclass(frozen=True, slots=True)
class Asker:
    """Whose request it is: its id in the logs, and the tag of its API key where there are keys."""

    trace: str
    owner: str | None = None
    traceparent: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """What every endpoint needs."""

    generator: Generator
    text: TextModel
    settings: GatewaySettings
    ambient: Ambient
    fingerprint: Callable[[], str]

    def check_model(self, model: str) -> None:
        """Accept the served model's id and its alias. Raises ApiError."""
        if model not in (DEFAULT_MODEL, self.text.model):
            raise unknown_model(model)

    def choices(
        self, asked: ChatRequest | CompletionRequest, asker: Asker, *, where: str
    ) -> Choices:
        """What every prompt of the request is generated with; `where` names their field."""
        seed = asked.sampling.seed
        return Choices(
            sampling=asked.sampling,
            tokens_max=asked.tokens_max,
            seed=self.ambient.new_seed() if seed is None else seed,
            deadline_s=self.settings.deadline_s,
            trace=asker.trace,
            traceparent=asker.traceparent,
            owner=asker.owner,
            where=where,
            count=asked.choices,
            echo=isinstance(asked, CompletionRequest) and asked.echo,
            required=asked.tools.required if isinstance(asked, ChatRequest) else (),
        )


def unknown_model(model: str) -> ApiError:
    shown = model if _NAME.fullmatch(model.replace("/", "-")) else "asked for"
    return ApiError(
        404, f"The model {shown} does not exist.", code="model_not_found", param="model"
    )


class Form(Protocol):
    """How pieces are written: the shapes of one endpoint."""

    def chunks(self, choice: int, piece: Piece, *, first: bool) -> Iterator[dict[str, Any]]: ...

    def end(self, usage: Usage) -> Iterator[dict[str, Any]]:
        """What follows the last piece of a stream."""
        ...

    def whole(self, answers: Sequence[Piece], usage: Usage) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A request that will be served: for each prompt, one plan per choice.

    `parting`: how the answers' text is parted; None: it is told as it is.
    """

    plans: tuple[tuple[Plan, ...], ...]
    form: Form
    delivery: Delivery
    ignored: tuple[str, ...]
    parting: Parting | None = None
    dialect: Dialect = OPENAI
    spend: Callable[[int], None] | None = None
    """Told how many tokens were read or written, where somebody counts them."""


def envelope(service: Service, prefix: str) -> dict[str, Any]:
    """What is equal in all chunks of an answer, but for their usage."""
    return {
        "id": f"{prefix}-{service.ambient.new_id()}",
        "created": int(service.ambient.now()),
        "model": str(service.text.model),
        "system_fingerprint": service.fingerprint(),
    }


async def answer(
    service: Service, request: Request, prepare: Callable[[Service, bytes, Asker], Job]
) -> Response:
    """Serve one POST that generates. Raises ApiError for whatever is wrong with it."""
    body = await _body(service, request)
    if body is None:
        return Response(status_code=CLIENT_GONE)
    scope = request.scope
    asker = Asker(scope[REQUEST_ID], scope.get(OWNER), scope.get(TRACE))
    job = await asyncio.to_thread(prepare, service, body, asker)
    allowance: Allowance | None = request.scope.get(ALLOWANCE)
    if allowance is not None:
        job = replace(job, spend=allowance.spend_tokens)
    if job.delivery.stream:
        return EventStream(
            _chunks(service, job),
            keepalive_s=service.settings.keepalive_s,
            grace_s=service.settings.grace_s,
            stall_s=service.settings.stall_s,
            headers=_headers(job),
            dialect=job.dialect,
        )
    told = await unless_gone(request.receive, _whole(service, job))
    if told is None:
        return Response(status_code=CLIENT_GONE)
    if isinstance(told, ApiError):
        raise told
    return json_response(told, headers=_headers(job))


async def answer_at_once(
    service: Service, request: Request, answered: Callable[[Service, bytes], dict[str, Any]]
) -> Response:
    """Serve one POST that generates nothing. Raises ApiError."""
    body = await _body(service, request)
    if body is None:
        return Response(status_code=CLIENT_GONE)
    return json_response(await asyncio.to_thread(answered, service, body))


async def _body(service: Service, request: Request) -> bytes | None:
    """The whole body, or None if the client went. Raises ApiError."""
    try:
        async with asyncio.timeout(service.settings.body_s):
            return await read_body(request, service.settings.limits.body_bytes)
    except ClientDisconnect:
        return None
    except TimeoutError:
        raise body_too_slow(service.settings.body_s) from None


async def _chunks(service: Service, job: Job) -> AsyncGenerator[Mapping[str, Any], None]:
    usage = Usage()
    for choice, plan in enumerate(chain(*job.plans)):
        first = True
        async with aclosing(_pieces(service, job, plan)) as parts:
            async for piece in parts:
                for chunk in job.form.chunks(choice, piece, first=first):
                    yield chunk
                first = False
        usage.add(plan, piece, shared=choice % len(job.plans[0]) > 0)
    for chunk in job.form.end(usage):
        yield chunk


async def _whole(service: Service, job: Job) -> dict[str, Any] | ApiError:
    answers: list[Piece] = []
    usage = Usage()
    try:
        for choice, plan in enumerate(chain(*job.plans)):
            parts = [piece async for piece in _pieces(service, job, plan)]
            answers.append(_joined(parts))
            usage.add(plan, parts[-1], shared=choice % len(job.plans[0]) > 0)
    except GenerationFailed as failure:
        return of_failure(failure)
    return job.form.whole(answers, usage)


def _pieces(service: Service, job: Job, plan: Plan) -> AsyncGenerator[Piece, None]:
    plain = job.parting is None
    told = pieces(service.generator, service.text, plan, skip_special=plain)
    told = told if job.parting is None else parted(told, job.parting)
    return told if job.spend is None else _paid(job, plan, job.spend, told)


async def _paid(
    job: Job, plan: Plan, spend: Callable[[int], None], told: AsyncGenerator[Piece, None]
) -> AsyncGenerator[Piece, None]:
    """Pay for tokens as they are there: who leaves halfway has paid for what was computed."""
    if any(plan is plans[0] for plans in job.plans):
        spend(plan.prompt_tokens)
    paid = 0
    async with aclosing(told) as parts:
        async for piece in parts:
            spend(piece.completion_tokens - paid)
            paid = piece.completion_tokens
            yield piece


def _joined(parts: Sequence[Piece]) -> Piece:
    return replace(
        parts[-1],
        text="".join(piece.text for piece in parts),
        thought="".join(piece.thought for piece in parts),
        calls=tuple(call for piece in parts for call in piece.calls),
        tokens=tuple(placed for piece in parts for placed in piece.tokens),
    )


class Usage:
    """Tokens of a whole request: each prompt counts once, every answer counts."""

    def __init__(self) -> None:
        self.prompt_tokens = self.completion_tokens = 0
        self.cached_tokens = self.thought_tokens = 0

    def add(self, plan: Plan, last: Piece, *, shared: bool) -> None:
        """Count an answer that ended with `last`; `shared`: not the first of its prompt."""
        self.completion_tokens += last.completion_tokens
        self.thought_tokens += last.thought_tokens
        if not shared:
            self.prompt_tokens += plan.prompt_tokens
            self.cached_tokens += last.cached_tokens

    def told(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.thought_tokens},
        }


def _headers(job: Job) -> dict[str, str]:
    """Names come from the client: only plain ones are repeated, and not many."""
    names = [name for name in job.ignored if _NAME.fullmatch(name)][:_IGNORED_MAX]
    return {"x-meshnet-ignored": ",".join(names)} if names else {}
