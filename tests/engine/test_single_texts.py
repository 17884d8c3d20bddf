"""Texts of tokens kept as one string: every one is found again, and none beyond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshnet.engine.single_texts import SingleTexts


@given(st.lists(st.text(max_size=5)))
def test_every_text_is_found_by_its_id(texts: list[str]):
    told = SingleTexts(iter(texts))

    assert [told(at) for at in range(len(texts))] == texts


@given(st.lists(st.text(max_size=5)), st.integers(0, 3))
def test_ids_beyond_have_no_text(texts: list[str], beyond: int):
    told = SingleTexts(texts)

    assert told(len(texts) + beyond) == ""
    assert told(-1 - beyond) == ""
