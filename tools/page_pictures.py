"""Take the pictures of the page that the docs show, of a mesh that runs.

    meshnet up --nodes 3
    python -m tools.page_pictures http://127.0.0.1:8000

The mesh loses a node on the dark picture: run it on this machine, on a mesh of your own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

from tools.browser import executable

OUT = Path(__file__).resolve().parents[1] / "docs" / "images"
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
QUESTION = (
    "Write a Python function that counts the words of a text, "
    "then explain it step by step in a numbered list."
)
GREEDY = """localStorage.setItem("meshnet.parameters", '{"temperature": 0}')"""
FLOW_MS = 2500
"""Until the figures of the last second are there."""


def take(browser: Any, url: str, theme: str, size: dict[str, int], *, kill: bool = False) -> None:
    """Ask, and take the page while it answers; a phone's mesh as well."""
    is_phone = size is PHONE
    name = f"page-{'phone' if is_phone else 'desktop'}-{theme}"
    context = browser.new_context(
        viewport=size, color_scheme=theme, device_scale_factor=2 if is_phone else 1
    )
    context.add_init_script(GREEDY)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(".lane .meter", state="attached")
    page.fill("#text", QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant .body > pre")
    page.wait_for_timeout(FLOW_MS)
    if kill:
        _kill_the_second(url)
        page.wait_for_selector("#lanes [data-state=silent]")
    page.screenshot(path=OUT / f"{name}.png")
    if is_phone:
        page.click("#tabs [data-to=mesh]")
        page.wait_for_timeout(FLOW_MS)
        page.screenshot(path=OUT / f"{name}-mesh.png")
        page.click("#tabs [data-to=chat]")
    page.keyboard.press("Escape")
    page.wait_for_selector(".assistant .tools button")
    context.close()


def _kill_the_second(url: str) -> None:
    with urllib.request.urlopen(f"{url}/mesh", timeout=30) as answer:
        nodes = json.load(answer)["nodes"]
    os.kill(nodes[1]["pid"], signal.SIGKILL)


def main() -> None:
    """Take all of them."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="the page of a mesh on this machine")
    url = parser.parse_args().url.rstrip("/")
    OUT.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        take(browser, url, "light", DESKTOP)
        take(browser, url, "light", PHONE)
        take(browser, url, "dark", PHONE)
        take(browser, url, "dark", DESKTOP, kill=True)
        browser.close()


if __name__ == "__main__":
    main()
