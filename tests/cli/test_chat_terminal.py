"""`meshnet chat` on a terminal, with a gateway whose answer ends when the test says so."""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.api import Gateway
from tests.gateway.scripted import Gate
from tests.terminals import terminal

from meshnet.cli.chat import Conversation


async def test_ctrl_c_stops_the_answer_and_not_the_chat(tmp_path: Path):
    gate = Gate()
    gateway = Gateway([ord("a"), gate])

    async with gateway.served() as url:
        with terminal("chat", "--url", url, "--max-tokens", "8", cwd=tmp_path) as chat:
            await chat.shows("> ")
            chat.type("hello there\n")
            await gate.reached.wait()
            chat.type("\x03")
            await chat.shows("[stopped]")
            await gateway.generator.over.wait()
            await chat.shows("> ")
            chat.type("/quit\n")
            code = await asyncio.to_thread(chat.process.wait, 60)

    assert code == 0
    assert gateway.generator.closed_early == 1


class InterruptedAtEveryWrite(io.StringIO):
    """A screen on which Ctrl-C is pressed whenever something appears."""

    def write(self, text: str) -> int:
        if text:
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


@pytest.fixture
def interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_ends_no_chat_whenever_it_is_pressed(monkeypatch: pytest.MonkeyPatch):
    """Between the last token and the prompt nobody listened for it."""
    screen = InterruptedAtEveryWrite()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))

    Conversation(Answering(), {}, None).run()  # type: ignore[arg-type]

    assert screen.getvalue().count("[stopped]") == 2
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler


class Answering:
    """A gateway that says one word."""

    url = "http://here"

    def stream_chat(self, messages: object, options: object) -> Iterator[str]:
        yield "word"
