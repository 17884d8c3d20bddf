"""The rule of thumb of ADR-0022, and the page that computes by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshnet.core.planning import Attention
from meshnet.core.vocabulary import BadField

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sizing.md"
ROW = re.compile(
    r"^\| ([^|]+) \| (\d+) × (\d+) × (\d+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|$", re.M
)
SESSIONS, TOKENS = 4, 8192


def test_the_rule_is_the_example_of_the_operations_page():
    a_third = Attention(layers=10, kv_heads=3, head_dim=64, element_bytes=4)

    assert a_third.token_bytes == 15_360
    assert a_third.kv_bytes(tokens=2048, sessions=8) == 251_658_240


def test_positions_are_allocated_in_whole_cells():
    one = Attention(layers=1, kv_heads=1, head_dim=1, element_bytes=1)

    assert [one.kv_bytes(tokens=n) for n in (1, 256, 257)] == [512, 512, 1024]


@pytest.mark.parametrize("name", ["layers", "kv_heads", "head_dim", "element_bytes"])
def test_a_figure_below_one_is_refused_by_name(name: str):
    given = {"layers": 1, "kv_heads": 1, "head_dim": 1, "element_bytes": 1, name: 0}

    with pytest.raises(BadField, match=f"{name}: expected at least 1, got 0"):
        Attention(**given)


@pytest.mark.parametrize("name", ["tokens", "sessions"])
def test_no_sessions_take_nothing_that_can_be_told(name: str):
    attention = Attention(layers=1, kv_heads=1, head_dim=1, element_bytes=1)

    with pytest.raises(BadField, match=f"{name}: expected at least 1, got 0"):
        attention.kv_bytes(**{"tokens": 1, "sessions": 1, name: 0})


def test_every_row_of_the_page_is_what_the_rule_says():
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))

    assert len(rows) >= 5
    for model, layers, kv_heads, head_dim, token_bytes, wide, narrow in rows:
        fp32, bf16 = (
            Attention(layers=int(layers), kv_heads=int(kv_heads), head_dim=int(head_dim),
                      element_bytes=size)
            for size in (4, 2)
        )  # fmt: skip
        taken = [each.kv_bytes(tokens=TOKENS, sessions=SESSIONS) / 1e9 for each in (fp32, bf16)]
        assert (token_bytes, wide, narrow) == (
            f"{fp32.token_bytes:,}", f"{taken[0]:.2f}", f"{taken[1]:.2f}"
        ), model  # fmt: skip
