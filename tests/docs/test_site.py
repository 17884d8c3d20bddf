"""What goes into the site, and what is found wrong with one. `make site` builds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.documented import ROOT
from tools.docs_site import LINK, problems, stage

NAVIGATION = re.compile(r": (\S+\.md)$", re.MULTILINE)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pages = tmp_path_factory.mktemp("site") / "pages"
    stage(ROOT, pages)
    return pages


def links(page: Path) -> list[Path]:
    """Where a page's links within the repository lead."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / target).resolve() for target in targets if "://" not in target]


def test_every_page_of_the_docs_can_be_found_and_no_other_is_promised(staged: Path):
    promised = NAVIGATION.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    assert [name for name in promised if not (staged / name).is_file()] == []
    found = {staged / name for name in promised}
    found |= {target for page in staged.rglob("*.md") for target in links(page)}
    assert set((staged / "docs").glob("*.md")) - found == set()


def test_what_pages_link_to_goes_with_them(staged: Path):
    led = [target for page in staged.rglob("*.md") for target in links(page)]

    assert [target for target in led if not target.is_file()] == []


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('<a href="b.html">', "a.html: leads nowhere: b.html"),
        ('<a href="#there">', "a.html: no such place: #there"),
        ('<script src="https://cdn.example/x.js">', "a.html: loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "a.html: loads //fonts.example"),
        ('<img src="gone.png">', "a.html: leads nowhere: gone.png"),
    ],
)
def test_a_site_is_told_what_is_wrong_with_it(written: str, told: str, tmp_path: Path):
    (tmp_path / "a.html").write_text(f'<p id="here"><a href="#here">{written}', encoding="utf-8")

    (problem,) = problems(tmp_path)

    assert problem.startswith(told)


def test_a_site_without_pages_is_none(tmp_path: Path):
    assert list(problems(tmp_path)) == ["no page was built"]
