"""The chat of the page, in a browser, over a generator that says what a test wrote down."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.api import Gateway, ids_of
from tests.gateway.scripted import Gate
from tests.gateway.speaking_text import SpeakingText
from tests.page.browser import opened

from meshnet.gateway.settings import GatewaySettings
from meshnet.simulation.toy_text import EOS

pytestmark = pytest.mark.page

ANSWER = (
    "# Title\n\nSome **bold** words.\n\n```python\nprint('hi')\n```\n\n"
    "| a | b |\n| --- | --- |\n| 1 | 2 |"
)


def saying(*texts: str) -> Gateway:
    """A gateway that gives these answers, one after the other."""
    left = list(texts)
    return Gateway(lambda request: [*ids_of(left.pop(0)), EOS])


async def test_an_answer_is_shown_as_markdown_with_its_speed():
    async with saying(ANSWER).served() as url, opened(url) as at:
        await at.say("hello")
        await at.wait(".message.assistant .stats")

        assert await at.text(".assistant h1") == "Title"
        assert await at.text(".assistant strong") == "bold"
        assert "print('hi')" in await at.text(".assistant pre code")
        assert await at.text(".assistant td >> nth=1") == "2"
        assert "tokens" in await at.text(".assistant .stats")
        assert await at.text(".user .body") == "hello"


async def test_thoughts_are_folded_away_from_the_answer():
    said = (*ids_of("<think>Hm.</think>Sure."), EOS)
    async with Gateway(said, text=SpeakingText()).served() as url, opened(url) as at:
        await at.say("hello")
        await at.wait(".assistant .stats")

        assert await at.text(".assistant .body") == "Sure."
        await at.page.click(".thought summary")
        assert await at.text(".thought p") == "Hm."


async def test_stopping_ends_the_generation_and_keeps_what_was_said():
    gateway = Gateway([*ids_of("A word"), Gate(), EOS])
    async with gateway.served() as url, opened(url) as at:
        await at.say("go on")
        await at.wait("#send[aria-label='Stop the answer']")
        await at.wait(".assistant .body >> text=A word")
        await at.page.keyboard.press("Escape")
        await at.wait(".assistant .stats >> text=stopped")
        async with asyncio.timeout(30):
            await gateway.generator.over.wait()

        assert gateway.generator.closed_early == 1
        assert (await at.text(".assistant .body")).startswith("A word")
        assert await at.page.get_attribute("#send", "aria-label") == "Send"


async def test_a_model_can_neither_run_nor_fetch_anything():
    """Its text is text: no element of its own, no address but the web's, no image."""
    evil = (
        "<script>document.title = 'owned'</script>\n\n"
        "<img src=x onerror=\"document.title='owned'\">\n\n[go](javascript:document.title='owned') ![pixel](http://127.0.0.1:1/pixel.png)\n\n"
        '<a href="x" style="position:fixed">x</a>'
    )
    async with saying(evil).served() as url, opened(url) as at:
        await at.say("hello")
        await at.wait(".message.assistant .stats")

        assert await at.page.title() == "meshnet"
        assert await at.page.locator(".assistant .body :is(img, script, [style])").count() == 0
        hrefs = await at.page.eval_on_selector_all(
            ".assistant .body a", "links => links.map((link) => link.getAttribute('href'))"
        )
        assert hrefs == [None, "http://127.0.0.1:1/pixel.png"]
        assert "onerror" in await at.text(".assistant .body")
        assert [each for each in at.asked if not each.startswith(url)] == []


async def test_a_question_can_be_asked_again_and_in_other_words():
    gateway = saying("first", "second", "third")
    async with gateway.served() as url, opened(url) as at:
        await at.say("question")
        await at.wait(".assistant .body >> text=first")
        await at.page.click(".assistant button[aria-label='Answer again']")
        await at.wait(".assistant .body >> text=second")
        await at.page.hover(".message.user")
        await at.page.click(".user button[aria-label^='Edit']")
        await at.page.fill(".edit textarea", "other words")
        await at.page.keyboard.press("Enter")
        await at.wait(".assistant .body >> text=third")

        assert await at.page.locator(".message").count() == 2
        assert await at.text(".user .body") == "other words"


async def test_chats_are_kept_and_a_deleted_one_can_be_had_back():
    async with saying("one", "two").served() as url, opened(url) as at:
        await at.say("the first chat")
        await at.wait(".assistant .stats")
        await at.page.click("#new")
        await at.say("the second chat")
        await at.wait(".assistant .stats")
        await at.page.reload()
        await at.page.click("#chats .chat >> text=the first chat")
        assert await at.text(".assistant .body") == "one"

        await at.page.click("#chats button[aria-label='Delete the chat the first chat']")
        await at.count("#chats li", 1)
        await at.page.click("#toast button")
        await at.count("#chats li", 2)
        assert await at.text(".assistant .body") == "one"


async def test_a_key_is_asked_for_and_forgotten_with_the_tab():
    gateway = Gateway([*ids_of("hello"), EOS], settings=GatewaySettings(api_keys=("right",)))
    async with gateway.served() as url, opened(url) as at:
        await at.wait("#key[open]")
        await at.page.fill("#key-text", "wrong")
        await at.page.keyboard.press("Enter")
        await at.wait("#key-wrong:visible")
        await at.page.fill("#key-text", "right")
        await at.page.keyboard.press("Enter")
        await at.count("#key[open]", 0)
        await at.say("hi")
        await at.wait(".assistant .stats")

        stored = await at.page.evaluate("JSON.stringify(localStorage)")
        assert "right" not in stored
        assert await at.page.evaluate("sessionStorage.getItem('meshnet.key')") == "right"


async def test_an_error_is_told_and_can_be_tried_again():
    from meshnet.head import FailureCode, GenerationFailed

    failure = GenerationFailed(FailureCode.NO_ROUTE, "nobody serves layers 4-8", None)
    scripts = [[failure], [*ids_of("better"), EOS]]
    gateway = Gateway(lambda request: scripts.pop(0))
    async with gateway.served() as url, opened(url) as at:
        await at.say("hi")
        assert "layers 4-8" in await at.text(".assistant .failed")

        await at.page.click(".failed button")
        await at.wait(".assistant .body >> text=better")


async def test_parameters_reach_the_generator():
    gateway = saying("ok")
    async with gateway.served() as url, opened(url) as at:
        await at.page.click("#tune")
        await at.page.fill("#p-temperature", "0.25")
        await at.page.fill("#p-max_tokens", "7")
        await at.page.fill("#p-seed", "5")
        await at.page.fill("#p-system", "Be brief.")
        await at.page.click("#settings .primary")
        await at.say("hi")
        await at.wait(".assistant .stats")

        (request,) = gateway.generator.requests
        assert (request.sampling.temperature, request.tokens_max) == (0.25, 7)
        assert request.sampling.seed == 5
        assert "Be brief." in gateway.text.decode(request.prompt, skip_special=True)


async def test_what_was_said_stays_on_the_screen_while_more_is_drawn():
    """Blocks that are complete keep their elements, so that a selection in them lives on."""
    gate = Gate()
    gateway = Gateway([*ids_of("One.\n\nTwo"), gate, *ids_of(" three."), EOS])
    async with gateway.served() as url, opened(url) as at:
        await at.say("hi")
        first = await at.wait(".assistant .body p")
        await at.wait(".assistant .body p >> text=Two")
        assert await at.page.get_attribute(".message.assistant", "aria-busy") == "true"
        gate.opened.set()
        await at.wait(".assistant .stats")

        assert await first.evaluate("element => element.isConnected")
        assert await at.text(".assistant .body") == "One.\n\nTwo three."
