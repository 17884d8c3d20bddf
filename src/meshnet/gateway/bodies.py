"""The body of a request, read up to its cap and not beyond.

Invariants
    * a declared length over the cap is refused before a byte is read;
    * an undeclared one is refused at the first byte too many.
"""

from __future__ import annotations

from starlette.requests import Request

from meshnet.gateway.errors import ApiError

_FORM_TYPES = ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded")


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Read the whole body. Raises ApiError, or starlette's ClientDisconnect."""
    _check_type(request)
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > bytes_max:
        raise _too_large(bytes_max)
    body = bytearray()
    async for part in request.stream():
        if len(body) + len(part) > bytes_max:
            raise _too_large(bytes_max)
        body += part
    return bytes(body)


def body_too_slow(seconds: float) -> ApiError:
    return ApiError(
        408,
        f"The body did not arrive within {seconds:g} s.",
        code="request_timeout",
        headers={"connection": "close"},
    )


def _check_type(request: Request) -> None:
    """A web page may send forms to any origin unasked, so they are no way in."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type in _FORM_TYPES:
        raise ApiError(
            415,
            "The body must be JSON: send it with the header content-type: application/json.",
            code="unsupported_media_type",
        )


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {bytes_max} bytes.",
        code="request_too_large",
        headers={"connection": "close"},
    )
