"""What the failure guide quotes is what meshnet says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from tests.documented import ROOT

PAGE = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
QUOTED = re.compile(r"`([^`]+)`")


def said() -> Iterator[str]:
    """Yield the texts of the program, those parts of them that are fixed."""
    for path in sorted((ROOT / "src" / "meshnet").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def quotes() -> list[str]:
    """The fixed parts of what the first column quotes."""
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", PAGE, re.MULTILINE)
    whole = [quote for cell in cells for quote in QUOTED.findall(cell)]
    return sorted({part.strip() for quote in whole for part in quote.split("…")} - {""})


@pytest.fixture(scope="module")
def texts() -> str:
    return "\n".join(said())


def test_there_is_much_to_quote():
    assert len(quotes()) > 30


@pytest.mark.parametrize("quote", quotes())
def test_a_message_of_the_guide_is_one_of_the_program(quote: str, texts: str):
    # A value that follows a name in a row (`meshnet_kv_cache_enabled 0`) is not of the message.
    assert re.sub(r" \d+$", "", quote) in texts
