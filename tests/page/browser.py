"""A browser at the page, and everything that it complained about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tools.browser import executable

DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 60_000


class Opened:
    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._heard)
        page.on("request", lambda request: self.asked.append(request.url))

    def _heard(self, message: Any) -> None:
        """A refused request is told by the page in its own way; the rest is a bug."""
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    async def say(self, text: str) -> None:
        await self.page.fill("#text", text)
        await self.page.keyboard.press("Enter")

    async def wait(self, selector: str, **options: Any) -> Any:
        return await self.page.wait_for_selector(selector, **options)

    async def count(self, selector: str, number: int) -> None:
        """Wait until there are so many. The page's policy forbids waiting by code of ours."""
        from playwright.async_api import expect

        await expect(self.page.locator(selector)).to_have_count(number, timeout=PATIENCE_MS)

    async def text(self, selector: str) -> str:
        return str(await self.page.inner_text(selector))


@asynccontextmanager
async def opened(url: str, **context: Any) -> AsyncIterator[Opened]:
    """Open the page in a fresh profile. What it complained about fails the test."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable(), args=["--no-sandbox"]
        )
        options = {"viewport": DESKTOP} | context
        page = await (await browser.new_context(**options)).new_page()
        page.set_default_timeout(PATIENCE_MS)
        at = Opened(page)
        try:
            await page.goto(url)
            yield at
        finally:
            await browser.close()
        assert at.complaints == []
