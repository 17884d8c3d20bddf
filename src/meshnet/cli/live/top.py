"""`meshnet top`: the mesh, live, in a terminal, until `q`.

    a thread: GET /mesh/live ──▶ Picture ──▶ the screen, four times a second: this thread, with keys

Where the output is no terminal, it is printed once.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from meshnet.cli.api_client import ApiClient, ApiError
from meshnet.cli.credentials import api_client
from meshnet.cli.interrupts import raise_interrupts
from meshnet.cli.live.picture import Picture
from meshnet.cli.settings import Settings
from meshnet.cli.streams import carries_unicode

try:
    import termios
    import tty
except ImportError:  # not POSIX
    termios = None  # type: ignore[assignment]

EVERY_S = 0.25
AGAIN_S = 2.0


def show_top(settings: Settings, url: str) -> None:
    """Show the mesh behind `url`. Raises ApiError if it cannot be seen at all."""
    picture = Picture(unicode=carries_unicode())
    with api_client(settings, url) as client:
        console = Console()
        if not console.is_terminal:
            _once(client, picture, console)
            return
        raise_interrupts()
        _until_known(client, picture)
        ended = threading.Event()
        watching = threading.Thread(target=_follow, args=(client, picture, ended), daemon=True)
        watching.start()
        try:
            _show(client, picture, console)
        except KeyboardInterrupt:
            pass
        finally:
            ended.set()


def _once(client: ApiClient, picture: Picture, console: Console) -> None:
    _until_known(client, picture)
    console.print(picture.drawn(width=console.width, height=console.height, url=client.url))


def _until_known(client: ApiClient, picture: Picture) -> None:
    """Wait for the first picture. Raises ApiError."""
    for batch in client.live():
        _take(picture, batch, client.url)
        if picture.is_known:
            return
    raise ApiError(f"{client.url} is ending")


def _follow(client: ApiClient, picture: Picture, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            picture.begin()
            for batch in client.live():
                _take(picture, batch, client.url)
            picture.trouble = "the gateway ended"
        except ApiError as error:
            picture.trouble = str(error)
        ended.wait(AGAIN_S)


def _take(picture: Picture, batch: dict[str, object], url: str) -> None:
    try:
        picture.take(batch)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise ApiError(f"{url} tells of its mesh in a form this version does not read") from None


def _show(client: ApiClient, picture: Picture, console: Console) -> None:
    paused = False
    with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if not paused:
                drawn = picture.drawn(width=console.width, height=console.height, url=client.url)
                live.update(drawn, refresh=True)
            match key():
                case "q":
                    return
                case "p":
                    paused = not paused
                    drawn = picture.drawn(
                        width=console.width, height=console.height, url=client.url, paused=paused
                    )
                    live.update(drawn, refresh=True)


class _Typed:
    """The next key, or nothing after a moment."""

    def __call__(self) -> str:
        readable, _, _ = select.select([sys.stdin], [], [], EVERY_S)
        return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") if readable else ""


class _Nothing:
    """Keys cannot be read here; Ctrl-C ends it."""

    def __call__(self) -> str:
        threading.Event().wait(EVERY_S)
        return ""


@contextmanager
def _keys() -> Iterator[_Typed | _Nothing]:
    """Read keys as they are typed, and leave the terminal as it was."""
    if termios is None or not sys.stdin.isatty():
        yield _Nothing()
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _Typed()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
