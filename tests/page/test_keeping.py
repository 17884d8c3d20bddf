"""What the page keeps in its browser: forbidden, unsendable, and shared with other tabs."""

from __future__ import annotations

import pytest
from tests.gateway.api import Gateway, ids_of
from tests.page.browser import Opened, opened
from tests.page.test_chat import saying

from meshnet.gateway.settings import GatewaySettings
from meshnet.simulation.toy_text import EOS

pytestmark = pytest.mark.page

FORBIDDEN = """
for (const name of ["localStorage", "sessionStorage"]) {
  const get = () => { throw new DOMException("forbidden", "SecurityError"); };
  Object.defineProperty(window, name, { get });
}
"""
BRIGHT = "document.documentElement.dataset.theme"


async def second_tab(at: Opened, url: str) -> Opened:
    tab = Opened(await at.page.context.new_page())
    await tab.page.goto(url)
    await tab.wait("#chats", state="attached")
    return tab


async def talk(at: Opened, text: str, answers: int = 1) -> None:
    await at.say(text)
    await at.count(".assistant .stats", answers)


async def test_where_storage_is_forbidden_the_page_lives_until_it_is_closed():
    settings = GatewaySettings(api_keys=("right",))
    gateway = Gateway([*ids_of("hello"), EOS], settings=settings)
    async with gateway.served() as url, opened(url) as at:
        await at.page.add_init_script(FORBIDDEN)
        await at.page.reload()
        await at.wait("#key[open]")
        await at.page.fill("#key-text", "right")
        await at.page.keyboard.press("Enter")
        await at.count("#key[open]", 0)
        shown = []
        for _ in range(3):
            await at.page.click("#theme")
            shown.append(await at.page.evaluate(BRIGHT))
        await at.page.click("#tune")
        await at.page.fill("#p-seed", "5")
        await at.page.click("#settings .primary")
        await talk(at, "hi")

        assert set(shown) == {"light", "dark"}
        assert gateway.generator.requests[0].sampling.seed == 5
        await at.count("#chats li", 1)


async def test_a_key_that_no_header_can_carry_is_asked_for_again():
    gateway = Gateway([*ids_of("hello"), EOS], settings=GatewaySettings(api_keys=("right",)))
    async with gateway.served() as url, opened(url) as at:
        await at.wait("#key[open]")
        for odd in ("schlüssel-“quoted”", "κλειδί"):
            await at.page.fill("#key-text", odd)
            await at.page.keyboard.press("Enter")
            await at.wait("#key[open] #key-wrong:visible")
            await at.wait("#key[open] #key-text:invalid")
        await at.page.fill("#key-text", "right")
        await at.page.keyboard.press("Enter")
        await at.count("#key[open]", 0)
        await talk(at, "hi")


async def test_two_tabs_keep_each_others_chats_and_what_was_deleted_in_one_stays_so():
    async with saying("one", "two", "three").served() as url, opened(url) as at:
        other = await second_tab(at, url)
        await talk(at, "the first chat")
        await other.count("#chats li", 1)
        await talk(other, "the second chat")
        await at.count("#chats li", 2)
        await at.page.click("#chats button[aria-label='Delete the chat the second chat']")
        await other.count("#chats li", 1)
        await other.page.click("#new")
        await talk(other, "the third chat")
        await at.page.reload()

        await at.count("#chats li", 2)
        assert "second" not in await at.text("#chats")
        assert other.complaints == []


async def test_a_chat_that_goes_on_in_another_tab_goes_on_where_it_is_open():
    async with saying("one", "two", "three").served() as url, opened(url) as at:
        await talk(at, "question")
        other = await second_tab(at, url)
        await other.page.click("#chats .chat >> text=question")
        await talk(other, "again", 2)
        await at.count(".assistant .stats", 2)
        await talk(at, "more", 3)
        await other.count(".assistant .stats", 3)
        await at.page.reload()
        await at.page.click("#chats .chat >> text=question")

        await at.count(".message", 6)
        assert other.complaints == []
