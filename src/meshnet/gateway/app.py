"""The ASGI application: which path is answered by what, and how errors look.

    boundary -> authentication -> routes -> endpoints

Every endpoint also answers without `/v1`; double and trailing slashes do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from meshnet.gateway import openapi
from meshnet.gateway.ambient import machine_ambient
from meshnet.gateway.answering import Service, answer, answer_at_once
from meshnet.gateway.anthropic import count_tokens, prepare_messages
from meshnet.gateway.auth import Authenticated, KeyRing
from meshnet.gateway.boundary import Boundary
from meshnet.gateway.chat import prepare_chat
from meshnet.gateway.completions import prepare_completion
from meshnet.gateway.dialects import dialect_of
from meshnet.gateway.errors import ApiError, json_response
from meshnet.gateway.models import find_model, model_list
from meshnet.gateway.page import add_page, page_files
from meshnet.gateway.ports import Ambient, Generator, Metrics, Readiness, TextModel
from meshnet.gateway.settings import GatewaySettings
from meshnet.gateway.tokenizing import detokenize, tokenize
from meshnet.telemetry.events import Event


def gateway_app(
    generator: Generator,
    text: TextModel,
    ready: Callable[[], Readiness],
    settings: GatewaySettings,
    *,
    fingerprint: Callable[[], str],
    record: Callable[[Event], None],
    metrics: Metrics | None = None,
    ambient: Ambient | None = None,
) -> FastAPI:
    """Build the API over one generator and the text side of the model it serves.

    Args:
        ready: asked for each GET /ready.
        fingerprint: `system_fingerprint` of an answer that begins now.
        record: where events go; no event carries a prompt or a text.
        metrics: what GET /metrics answers; without it there is no such path.
    """
    ambient = ambient or machine_ambient()
    secret = ambient.new_seed().to_bytes(8, "little") + ambient.new_seed().to_bytes(8, "little")
    service = Service(generator, text, settings, ambient, fingerprint)
    app = FastAPI(
        title="meshnet",
        description="One language model over several machines, behind the OpenAI API.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    _add_generation(app, service)
    _add_tokens(app, service)
    _add_models(app, text, created=int(ambient.now()))
    _add_probes(app, ready, metrics)
    page = page_files()
    add_page(app, page)
    keys = KeyRing(
        settings.api_keys, secret=secret, stored=settings.stored_keys, clock=ambient.clock
    )
    app.add_middleware(Authenticated, keys=keys, public=frozenset(page))
    app.add_middleware(Boundary, ambient=ambient, record=record, trace_ratio=settings.trace_ratio)
    return app


def _add_generation(app: FastAPI, service: Service) -> None:
    async def chat_completions(request: Request) -> Response:
        return await answer(service, request, prepare_chat)

    async def completions(request: Request) -> Response:
        return await answer(service, request, prepare_completion)

    async def messages(request: Request) -> Response:
        return await answer(service, request, prepare_messages)

    limits = service.settings.limits
    _add(app, "/messages", messages, "POST", openapi.MESSAGES)
    _add(app, "/chat/completions", chat_completions, "POST", openapi.chat(limits))
    _add(app, "/completions", completions, "POST", openapi.completions(limits))


def _add_tokens(app: FastAPI, service: Service) -> None:
    async def to_tokens(request: Request) -> Response:
        return await answer_at_once(service, request, tokenize)

    async def to_text(request: Request) -> Response:
        return await answer_at_once(service, request, detokenize)

    async def counted(request: Request) -> Response:
        return await answer_at_once(service, request, count_tokens)

    limits = service.settings.limits
    _add(app, "/messages/count_tokens", counted, "POST", openapi.COUNT_TOKENS)
    _add(app, "/tokenize", to_tokens, "POST", openapi.tokenize(limits))
    _add(app, "/detokenize", to_text, "POST", openapi.DETOKENIZE)


def _add_models(app: FastAPI, text: TextModel, *, created: int) -> None:
    async def models(request: Request) -> Response:
        return json_response(model_list(text, created))

    async def model(request: Request) -> Response:
        return json_response(find_model(text, request.path_params["model"], created))

    _add(app, "/models", models, "GET", openapi.MODELS)
    _add(app, "/models/{model:path}", model, "GET", openapi.MODEL)


def _add_probes(app: FastAPI, ready: Callable[[], Readiness], metrics: Metrics | None) -> None:
    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def readiness(request: Request) -> Response:
        state = ready()
        body = {"status": "ready" if state.ready else "not ready", "detail": state.detail}
        return json_response(body, status=200 if state.ready else 503)

    _add_route(app, "/health", health, "GET", openapi.HEALTH)
    _add_route(app, "/ready", readiness, "GET", openapi.READY)
    if metrics is None:
        return

    async def measured(request: Request) -> Response:
        return Response(metrics.render(), media_type=metrics.content_type)

    _add_route(app, "/metrics", measured, "GET", openapi.METRICS)


Endpoint = Callable[[Request], Any]


def _add(
    app: FastAPI, path: str, endpoint: Endpoint, method: str, described: dict[str, Any]
) -> None:
    _add_route(app, f"/v1{path}", endpoint, method, described)
    app.add_api_route(path, endpoint, methods=[method], include_in_schema=False)
    if method == "GET":
        _answer_head(app, path, endpoint)


def _add_route(
    app: FastAPI, path: str, endpoint: Endpoint, method: str, described: dict[str, Any]
) -> None:
    app.add_api_route(
        path, endpoint, methods=[method], openapi_extra=described, response_class=Response
    )
    if method == "GET":
        _answer_head(app, path, endpoint)


def _answer_head(app: FastAPI, path: str, endpoint: Endpoint) -> None:
    """What may be got may be asked about: load balancers probe with HEAD."""
    app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return dialect_of(request.scope["path"]).refusal(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:200]
    message = f"There is no {request.method} {path}."
    refused = ApiError(error.status_code, message, headers=error.headers)
    return dialect_of(path).refusal(refused)
