"""What the documentation claims is there, and the founding document is as it was given."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOUNDING_SHA256 = "101164ecdeb6f3e28ab019d8d747904852559200943a126d988c91b9a1f986e7"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """`tools/docs.py`, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("meshnet_tools_docs", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh_and_every_claim_holds(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Every pit is proven or later; every sentence has its tests; every link leads somewhere."""
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])

    code = tool.main()

    assert code == 0, capsys.readouterr().err


def test_the_founding_document_is_word_for_word():
    text = (ROOT / "docs" / "adr" / "0022-sharded-kv-cache.md").read_bytes()

    assert hashlib.sha256(text).hexdigest() == FOUNDING_SHA256


def test_what_is_left_for_later_is_told_to_users():
    """Every pit with a `later` is listed on the page of limits."""
    import tomllib

    pits = tomllib.loads((ROOT / "docs" / "pits.toml").read_text(encoding="utf-8"))
    limits = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    listed = {word.strip(".,:;()") for word in limits.split()}

    later = {pit for pit, facts in pits.items() if "later" in facts}

    assert later - listed == set()
