"""Build the docs as a site under site/, with every warning an error.

    python -m tools.docs_site

Pages link to each other and to what lies beside docs/. So the site is made of a copy, build/pages/,
of the pages of the repository, and of every file that they link to. What came out is read again:
each link and picture leads somewhere, and nothing is loaded from other hosts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "site"
FIRST = ("README.md", "CONTRIBUTING.md")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
FRONT = re.compile(r"\]\(((?:\.\./)*)README\.md")


def linked(root: Path) -> Iterator[Path]:
    """Yield the pages of a repository and the files that they link to, directly or by others."""
    waiting = [root / name for name in FIRST]
    waiting += [path for path in sorted((root / "docs").rglob("*")) if path.is_file()]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        yield path
        if path.suffix == ".md":
            targets = LINK.findall(path.read_text(encoding="utf-8"))
            found = [(path.parent / unquote(t)).resolve() for t in targets if "://" not in t]
            waiting += [target for target in found if target.is_file()]


def stage(root: Path, pages: Path) -> None:
    """Copy them to `pages`; the README becomes the first page."""
    shutil.rmtree(pages, ignore_errors=True)
    for path in linked(root):
        relative = path.relative_to(root)
        target = pages / ("index.md" if relative == Path("README.md") else relative)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, target)
            continue
        text = path.read_text(encoding="utf-8")
        if path.parent != root / "docs" / "adr":
            text = FRONT.sub(r"](\1index.md", text)
        target.write_text(text, encoding="utf-8")


class Page(HTMLParser):
    """What one page of the site refers to, and what may be referred to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.refers: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.refers.append(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "preconnect", "icon"):
            self.loads.append(values["href"])
        elif "src" in values:
            self.loads.append(values["src"])


def problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with a built site."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield "no page was built"
    for path, page in pages.items():
        here = path.relative_to(site)
        yield from (f"{here}: loads {load}" for load in page.loads if urlsplit(load).netloc)
        for reference in (*page.refers, *page.loads):
            url = urlsplit(reference)
            if url.scheme or url.netloc:
                continue
            base = site if url.path.startswith("/") else path.parent
            target = (base / unquote(url.path).lstrip("/")).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{here}: leads nowhere: {reference}"
            elif (
                url.fragment
                and target in pages
                and unquote(url.fragment) not in (pages[target].names)
            ):
                yield f"{here}: no such place: {reference}"


def main() -> int:
    stage(ROOT, PAGES)
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=ROOT, timeout=300, check=False)
    found = list(problems(SITE))
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"site: {len(list(SITE.rglob('*.html')))} pages, {len(found)} problems")
    return 1 if found or built.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
