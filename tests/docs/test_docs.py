"""What the documentation claims is there, and the founding document is as it was given."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest
from tools.protocol_page import READERS

from meshnet.core.protocol import headers
from meshnet.core.protocol.messages import Code
from meshnet.core.vocabulary import MissReason
from tools import docs

ROOT = Path(__file__).resolve().parents[2]
FOUNDING_SHA256 = "101164ecdeb6f3e28ab019d8d747904852559200943a126d988c91b9a1f986e7"


def test_generated_pages_are_fresh_and_every_claim_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Every pit is proven or later; every sentence has its tests; every link leads somewhere."""
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])

    code = docs.main()

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


def test_every_name_of_the_protocol_is_explained_on_the_page_of_the_wire():
    """The reference lists what the code has; what it is for, people write."""
    wire = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
    names = [code.wire_name for code in Code] + [reason.value for reason in MissReason]

    assert [name for name in names if f"`{name}`" not in wire] == []
    ours = [name.removeprefix("X-Meshnet") for name in headers.FIELDS]
    assert [name for name in ours if not re.search(f"`(X-Meshnet)?{name}[`:]", wire)] == []


def test_every_header_that_is_no_number_has_its_reader_in_the_reference():
    numbers = {headers.PAST_LEN, headers.WIRE, headers.DEADLINE_MS, headers.META, headers.ATTEMPT,
               headers.CACHED, headers.COMPUTE_US, headers.STAGES}  # fmt: skip

    assert set(headers.FIELDS) - set(READERS) == numbers
