"""The mesh on the page: what the feed tells is seen, as it happens."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx2
import pytest
from tests.gateway.api import Gateway
from tests.page.browser import DESKTOP, PHONE, opened
from tests.page.meshes import STEP, THREE, mesh, node, with_feed
from tests.processes import meshnet

from meshnet.cli.live.feed import Happening

pytestmark = pytest.mark.page


async def test_nodes_are_lanes_with_their_layers_and_what_they_hold():
    gateway = Gateway()
    feed = with_feed(gateway)
    async with gateway.served() as url, opened(url) as at:
        feed.mesh(mesh(*reversed(THREE)))
        await at.wait("#lanes li >> nth=2")
        feed.step(STEP)
        feed.mesh(mesh(*THREE))
        await at.wait("#anatomy .stack")

        assert await at.page.eval_on_selector_all(
            "#lanes strong", "names => names.map((name) => name.textContent)"
        ) == ["node-1", "node-2", "node-3"]
        assert "layers 10–19" in await at.text("#lanes li >> nth=1")
        assert "5.0 MB of 500 MB" in await at.text("#lanes li >> nth=1")
        assert "way and waiting 2.0 ms" in await at.text("#anatomy")
        assert "40.0" in await at.text("#figures")
        feed.close()


async def test_a_death_and_a_return_are_shown_as_they_happen():
    gateway = Gateway()
    feed = with_feed(gateway)
    async with gateway.served() as url, opened(url) as at:
        feed.mesh(mesh(*THREE))
        await at.wait("#lanes li >> nth=2")
        dead = node(2, 10, 20, state="silent")
        feed.happened(Happening("silent", "bad", "node-2 does not answer", "node-2"))
        feed.mesh(mesh(THREE[0], dead, THREE[2], ready=False, detail="nobody serves layers 10-20"))
        await at.wait("#lanes li[data-state=silent]")

        assert "not answering" in await at.text("#lanes li >> nth=1")
        assert "nobody serves layers 10-20" in await at.text("#model")
        assert "node-2 does not answer" in await at.text("#log")
        assert await at.text("#said") == "node-2 does not answer"

        feed.mesh(mesh(*THREE))
        await at.wait("#lanes li.back")
        feed.mesh(mesh(THREE[0], THREE[2]))
        await at.count("#lanes li", 2)
        feed.close()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_nothing_is_wider_than_the_screen_and_every_button_has_a_name(size):
    gateway = Gateway()
    feed = with_feed(gateway)
    async with gateway.served() as url, opened(url, viewport=size) as at:
        feed.mesh(mesh(*THREE))
        await at.wait("#lanes li >> nth=2", state="attached")
        if size is PHONE:
            await at.page.click("#tabs [data-to=mesh]")
        await at.wait("#lanes li >> nth=2")

        wide = await at.page.evaluate("document.documentElement.scrollWidth")
        nameless = await at.page.eval_on_selector_all(
            "button, input, textarea",
            "all => all.filter((one) => !(one.ariaLabel || one.labels?.[0]?.textContent"
            " || one.textContent.trim())).map((one) => one.id)",
        )
        assert wide <= size["width"]
        assert nameless == []
        feed.close()


async def test_the_first_key_leads_to_the_message_field():
    async with Gateway().served() as url, opened(url, viewport=PHONE) as at:
        await at.page.keyboard.press("Tab")
        assert await at.page.evaluate("document.activeElement.className") == "skip"

        await at.page.keyboard.press("Enter")
        assert await at.page.evaluate("location.hash") == "#text"


async def test_a_killed_node_is_seen_and_the_answer_goes_on(tiny_model_dir: Path):
    arguments = ("up", "--model", str(tiny_model_dir), "--nodes", "2", "--port", "0")
    with meshnet(*arguments, "--json-ready", MESHNET_DRAFTS="off") as mesh_process:
        async with opened(mesh_process.url) as at:
            await at.wait("#lanes li[data-state=ready] >> nth=1")
            await at.say("hello")
            await at.wait(".assistant .body > *")
            nodes = httpx2.get(f"{mesh_process.url}/mesh").json()["nodes"]
            os.kill(nodes[1]["pid"], signal.SIGKILL)
            await at.wait("#log .is-bad >> text=node-2 died")
            await at.wait("#log .is-good >> text=/node-2 runs/ >> nth=1")
            await at.wait(".assistant .stats")
            await at.wait("#lanes li[data-state=ready] >> nth=1")

            assert await at.page.locator(".failed").count() == 0
