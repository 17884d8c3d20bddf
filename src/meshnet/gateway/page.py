"""The page at `/`: static files of this package, and what a browser is told to forbid them.

Nothing in them is secret, so they need no key: the page asks for one where one is needed, and
every request that it makes is answered as anybody's.

Invariants
    * only files that were there at the start are served, by their exact names;
    * no script runs but those files, and nothing is fetched from elsewhere: not even an image that
      a model's answer names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

BELOW = "/page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""Files of other kinds, licences among them, are not served."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "font-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)


@dataclass(frozen=True, slots=True)
class PageFile:
    kind: str
    data: bytes
    tag: str


def page_files() -> Mapping[str, PageFile]:
    """Return every file of the page by the path that it is served at."""
    below = {f"{BELOW}/{name}": file for name, file in _below(files(__package__) / "page", "")}
    return {"/": below[f"{BELOW}/index.html"], **below}


def _below(directory: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    found = []
    for each in directory.iterdir():
        if each.is_dir():
            found += _below(each, f"{prefix}{each.name}/")
            continue
        kind = KINDS.get(each.name[each.name.rfind(".") :])
        if kind is not None:
            data = each.read_bytes()
            tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
            found.append((prefix + each.name, PageFile(kind, data, tag)))
    return found


def add_page(app: FastAPI, page: Mapping[str, PageFile]) -> None:
    """Serve the page's files."""

    async def answer(request: Request) -> Response:
        file = page[request.scope["path"]]
        headers = {
            "content-security-policy": POLICY,
            "cross-origin-opener-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
            "etag": file.tag,
        }
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, media_type=file.kind, headers=headers)

    for path in page:
        app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)
