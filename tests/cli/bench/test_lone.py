"""The baselines answer the question that a mesh is asked: same ids, a time for each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshnet.cli.bench.lone import LoneEngine, Transformers
from meshnet.cli.settings import load_settings

QUESTION = {"prompt": [5, 9, 14, 200, 31], "tokens": 12}


@pytest.fixture(scope="module")
def answers(tiny_model_dir: Path) -> list[dict[str, Any]]:
    settings = load_settings({"model": str(tiny_model_dir), "weights": "fp32", "threads": 1})
    return [kind.loaded(settings).answer(QUESTION) for kind in (LoneEngine, Transformers)]


def test_the_lone_engine_and_transformers_draw_the_same_ids(answers: list[dict[str, Any]]):
    engine, transformers = answers

    assert engine["ids"] == transformers["ids"]
    assert len(set(engine["ids"])) > 3


def test_each_token_has_a_time_and_times_rise(answers: list[dict[str, Any]]):
    for answer in answers:
        assert len(answer["at_s"]) == len(answer["ids"]) == QUESTION["tokens"]
        assert answer["at_s"] == sorted(answer["at_s"])
        assert answer["at_s"][0] > 0


def test_no_stop_id_ends_a_baseline_early(tiny_model_dir: Path, answers: list[dict[str, Any]]):
    """Both of the tiny model's stop ids are banned, as a mesh bans them for `ignore_eos`."""
    for answer in answers:
        assert {1, 3}.isdisjoint(answer["ids"])
