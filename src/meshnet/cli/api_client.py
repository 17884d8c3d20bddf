"""A gateway as `meshnet chat` and `meshnet status` see it: the same HTTP API as everybody's.

Every failure becomes an ApiError whose message says what to do; no exception of the HTTP
library leaves this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2

from meshnet.core.vocabulary import MeshnetError
from meshnet.wire.tls import MeshTls, PlainRefused

CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 120.0
"""The gateway sends a comment at least every 15 s, so this much silence is a dead one."""


class ApiError(MeshnetError):
    """The gateway could not be reached, or refused; `code` is what it calls its reason."""

    def __init__(self, message: str, code: object = None) -> None:
        super().__init__(message)
        self.code = code


class NothingThere(ApiError):
    """Nobody listens at that address."""


class ApiClient:
    """One gateway; use as a context manager. Raises ApiError for a URL that is none.

    `option` is what the command calls the URL.
    """

    def __init__(
        self, url: str, key: str | None, *, option: str = "--url", tls: MeshTls | None = None
    ) -> None:
        self._option = option
        self.url = url.rstrip("/").removesuffix("/v1")
        with self._told():
            self._http = httpx2.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx2.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                trust_env=False,
                verify=True if tls is None else tls.towards(self.url),
            )

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def mesh(self) -> dict[str, Any]:
        """Return `GET /mesh`: what the gateway knows of its nodes. Raises ApiError."""
        with self._told():
            response = self._http.get("/mesh")
            _check(response)
            values = response.json()
        if not isinstance(values, dict):
            raise ApiError(f"{self.url} does not answer /mesh with an object: is it a meshnet?")
        return values

    def drain(self, node: str, *, undo: bool = False) -> int:
        """Ask a node to take no new sessions, or again; return how many it has. Raises ApiError."""
        with self._told():
            response = self._http.post("/mesh/drain", json={"node": node, "undo": undo})
            _check(response)
            values = response.json()
        if not isinstance(values, dict) or not isinstance(values.get("sessions"), int):
            raise ApiError(f"{self.url} does not say how many sessions {node} has")
        return int(values["sessions"])

    def live(self) -> Iterator[dict[str, Any]]:
        """Yield what `GET /mesh/live` tells, batch by batch. Raises ApiError."""
        with self._told(), self._http.stream("GET", "/mesh/live") as response:
            _check(response)
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))

    def stream_chat(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, object]
    ) -> Iterator[str]:
        """Yield the answer's text as it comes; closing the iterator cancels. Raises ApiError."""
        body = {"messages": list(messages), "stream": True, **options}
        with (
            self._told(),
            self._http.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            _check(response)
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                yield from _text_of(json.loads(line.removeprefix("data: ")))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except httpx2.ConnectError as error:
            if "SSL" in str(error):
                raise ApiError(f"{self.url}: {error}") from None
            raise NothingThere(
                f"nothing answers at {self.url}. Start a mesh with `meshnet up`, "
                f"or name its gateway by {self._option}."
            ) from None
        except httpx2.UnsupportedProtocol:
            raise ApiError(
                f"{self._option}: expected a URL such as http://127.0.0.1:8000, got {self.url!r}"
            ) from None
        except httpx2.HTTPError as error:
            raise ApiError(f"{self.url}: {type(error).__name__}: {error}") from None
        except (httpx2.InvalidURL, PlainRefused) as error:
            raise ApiError(
                f"{self._option}: expected a URL such as http://127.0.0.1:8000: {error}"
            ) from None
        except json.JSONDecodeError:
            raise ApiError(f"{self.url} sent something else than JSON: is it a meshnet?") from None


def _text_of(chunk: dict[str, Any]) -> Iterator[str]:
    if "error" in chunk:
        raise ApiError(str(chunk["error"].get("message", "the stream broke")))
    for choice in chunk.get("choices", ()):
        if text := choice.get("delta", {}).get("content"):
            yield text


def _check(response: httpx2.Response) -> None:
    if response.status_code < 400:
        return
    response.read()
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = None
    if isinstance(error, str):
        raise ApiError(f"no gateway answers at {response.url}: is that a node?")
    message = error.get("message") if isinstance(error, dict) else response.text[:200]
    code = error.get("code") if isinstance(error, dict) else None
    hint = _hint(response.status_code, code)
    raise ApiError(f"the gateway answered {response.status_code}: {message}{hint}", code)


def _hint(status: int, code: object) -> str:
    if code == "invalid_mesh_token":
        return " Set MESHNET_MESH_TOKEN to the secret of the mesh."
    if status == 401:
        return " Set MESHNET_API_KEYS to a key it knows."
    if code == "context_length_exceeded":
        return " In a chat /reset forgets the conversation, and --max-tokens shortens the answers."
    return ""
