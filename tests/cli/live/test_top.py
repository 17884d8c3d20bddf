"""`meshnet top`: what it draws, and that it obeys its keys."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.gateway.api import Gateway
from tests.page.meshes import STEP, THREE, mesh, node, with_feed
from tests.processes import command
from tests.terminals import terminal

from meshnet.cli.api_client import ApiError
from meshnet.cli.live.feed import Happening
from meshnet.cli.live.picture import Picture
from meshnet.cli.live.top import _take

DIED = {"what": "died", "level": "bad", "text": "node-2 died", "node": "node-2", "ago_s": 0.0}
NOTHING = {"mesh": None, "steps": [], "missed": 0, "happenings": []}


def drawn(picture: Picture, *, height: int = 30, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(picture.drawn(width=width, height=height, url="http://x"))
    return out.getvalue()


def test_nodes_layers_figures_and_the_way_of_a_token_are_drawn():
    picture = Picture(unicode=True)
    picture.take(NOTHING | {"mesh": mesh(*THREE)})
    picture.take(NOTHING | {"steps": [STEP]})

    shown = drawn(picture)

    assert "org/toy at http://x: ready" in shown
    assert "40.0 tokens/s" in shown
    assert "node-2  " + "░" * 10 + "█" * 10 + "░" * 10 + "  10-20  4.0 ms  5.0 MB" in shown
    assert "a token: 14.0 ms (node-1 4.0, node-2 4.0, node-3 4.0, way and waiting 2.0)" in shown


def test_a_node_that_is_gone_and_what_happened_are_drawn_latest_first():
    picture = Picture(unicode=False)
    dead = node(2, 10, 20, state="silent")
    missing = mesh(THREE[0], dead, ready=False, detail="nobody serves layers 10-30")
    picture.take(NOTHING | {"mesh": missing, "happenings": [DIED | {"text": "node-2 runs"}, DIED]})

    shown = drawn(picture)

    assert "nobody serves layers 10-30" in shown
    assert "not answering" in shown
    assert shown.index("node-2 died") < shown.index("node-2 runs")
    assert shown.isascii()


def test_it_is_never_higher_than_the_terminal():
    picture = Picture(unicode=True)
    picture.take(NOTHING | {"mesh": mesh(*THREE), "happenings": [DIED] * 60, "steps": [STEP]})

    for height in (16, 24, 50):
        assert len(drawn(picture, height=height).splitlines()) <= height


def test_every_figure_of_a_node_fits_into_a_narrow_terminal():
    picture = Picture(unicode=True)
    picture.take(
        NOTHING | {"mesh": mesh(*(each | {"name": "http://10.0.0.1:9001"} for each in THREE))}
    )

    for width in (80, 100, 120):
        shown = drawn(picture, width=width)
        for figure in ("10-20", "4.0 ms", "5.0 MB", "int8", "sessions"):
            assert figure in shown, width
        assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("height", [12, 24, 50])
def test_of_many_nodes_it_says_how_many_are_not_shown(height: int):
    nodes = [node(number, 0, 30) for number in range(99)]
    picture = Picture(unicode=True)
    picture.take(NOTHING | {"mesh": mesh(*nodes, node(99, 0, 30, state="silent"))})
    picture.take(NOTHING | {"happenings": [DIED] * 60, "steps": [STEP]})

    lines = drawn(picture, height=height).splitlines()

    assert len(lines) <= height
    assert lines[-1].startswith("q quits")
    shown = sum(line.startswith("node-") for line in lines) - sum("died" in line for line in lines)
    assert f"+{100 - shown} more, 1 not answering" in "\n".join(lines)


@pytest.mark.parametrize("width", [20, 60, 120])
def test_a_line_is_a_line_and_no_markup_whatever_others_say(width: int):
    """Also its last one, which names the keys, stays on the screen."""
    picture = Picture(unicode=True)
    odd = "[/x] two\nlines\r\x1b[2J" + "long " * 50
    nodes = [each | {"name": odd, "weights": odd} for each in THREE]
    picture.take(NOTHING | {"mesh": mesh(*nodes, model=odd, ready=False, detail=odd)})
    picture.take(NOTHING | {"happenings": [DIED | {"text": odd}] * 60, "steps": [STEP]})
    picture.trouble = odd

    shown = drawn(picture, height=24, width=width)

    assert len(shown.splitlines()) <= 24
    assert shown.splitlines()[-1].startswith("q quits")
    assert "[/x] two lines" in drawn(picture, width=200)
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "odd",
    [
        [], {"model": "m"}, mesh(*THREE, nodes=[{}]), mesh(*THREE, nodes=[1]),
        mesh(*THREE, route=[{}]), mesh(*THREE, layers="30"),
        mesh(node(1, 0, 10, layers=[3])), mesh(node(1, 0, 10, step_ms="")),
        mesh(*THREE, tokens_per_s=float("inf")), mesh(*THREE, tokens_per_s=-99),
    ],
)  # fmt: skip
def test_a_mesh_in_another_versions_form_is_told_and_the_last_one_stays(odd: object):
    picture = Picture(unicode=True)
    picture.take(NOTHING | {"mesh": mesh(*THREE)})
    before = drawn(picture)

    for batch in (NOTHING | {"mesh": odd}, NOTHING | {"happenings": [odd]}):
        with pytest.raises(ApiError, match="a form this version does not read"):
            _take(picture, batch, "http://x")

    assert drawn(picture) == before


async def test_it_shows_what_happens_and_q_ends_it(tmp_path: Path):
    gateway = Gateway()
    feed = with_feed(gateway)
    feed.mesh(mesh(*THREE))
    async with gateway.served() as url:
        with terminal("top", "--url", url, cwd=tmp_path) as top:
            await top.shows("q quits")
            feed.happened(Happening("died", "bad", "node-2 died", "node-2"))
            await top.shows("node-2 died")
            top.type("q")
            code = await asyncio.to_thread(top.process.wait, 60)

    assert code == 0


async def test_where_nobody_watches_it_prints_once(tmp_path: Path):
    gateway = Gateway()
    feed = with_feed(gateway)
    feed.mesh(mesh(*THREE))
    async with gateway.served() as url:
        told = await asyncio.to_thread(command, "top", "--url", url, cwd=tmp_path)

    assert told.returncode == 0, told.stderr
    assert "node-3" in told.stdout


def test_without_a_gateway_it_says_what_to_do(tmp_path: Path):
    told = command("top", "--url", "http://127.0.0.1:1", cwd=tmp_path)

    assert told.returncode == 1
    assert "Start a mesh with `meshnet up`" in told.stderr
