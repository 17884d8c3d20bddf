"""The page's files: who may have them, and what a browser is told to forbid them."""

from __future__ import annotations

import re

import pytest
from tests.gateway.api import Gateway, error

from meshnet.gateway.page import page_files
from meshnet.gateway.settings import GatewaySettings

LOCKED = GatewaySettings(api_keys=("key",))


@pytest.mark.parametrize("path", sorted(page_files()))
async def test_the_page_needs_no_key_and_lets_a_browser_run_nothing_else(path: str):
    response = await Gateway(settings=LOCKED).send("GET", path)

    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_file_that_did_not_change_is_not_sent_again():
    gateway = Gateway()
    tag = (await gateway.send("GET", "/")).headers["etag"]

    again = await gateway.send("GET", "/", headers={"if-none-match": tag})

    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/page", "/page/../app.py", "/page/vendor/marked.LICENSE", "/page/%2e%2e/app.py"]
)
async def test_nothing_but_the_page_is_served(path: str):
    assert (await Gateway().send("GET", path)).status_code == 404
    assert (await Gateway(settings=LOCKED).send("GET", path)).status_code == 401


async def test_without_a_key_the_page_answers_to_names_of_this_machine_only():
    response = await Gateway().send("GET", "/", headers={"host": "evil.example"})

    assert response.status_code == 403
    assert error(response)["code"] == "host_not_allowed"


def test_every_file_that_the_page_names_is_there_and_nothing_comes_from_elsewhere():
    files = page_files()
    named = set()
    for path, file in files.items():
        if not file.kind.startswith("text/") or "/vendor/" in path:
            continue
        text = file.data.decode()
        named |= set(re.findall(r"/page/[\w./-]+", text))
        named |= {f"/page/{name}" for name in re.findall(r'from "\./([\w./-]+)"', text)}
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)[\w.]+", text) == []
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=\"", text)

    assert named
    assert named <= files.keys()
