"""`meshnet chat` on a terminal, with a gateway whose answer ends when the test says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.gateway.api import Gateway
from tests.gateway.scripted import Gate
from tests.terminals import terminal


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
