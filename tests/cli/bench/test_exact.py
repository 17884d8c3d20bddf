"""When answers count as the same: every id and every bit of every number."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshnet.cli.bench.digests import agree, digest, told_of, whole
from meshnet.cli.bench.exact import VARIANTS, Variant, exact_report
from meshnet.cli.settings import load_settings
from meshnet.core.vocabulary import SampledToken, TokenLogprob

TOKENS = (
    SampledToken(7, -0.25, (TokenLogprob(7, -0.25), TokenLogprob(3, -2.5))),
    SampledToken(9, -0.5, (TokenLogprob(9, -0.5), TokenLogprob(1, -1.5))),
)
NEXT = math.nextafter(-2.5, 0.0)


def test_equal_answers_have_one_digest():
    assert digest(TOKENS) == digest([replace(token) for token in TOKENS])


@pytest.mark.parametrize(
    "other",
    [
        TOKENS[:1],
        TOKENS[::-1],
        (replace(TOKENS[0], token_id=8), TOKENS[1]),
        (replace(TOKENS[0], logprob=math.nextafter(-0.25, 0.0)), TOKENS[1]),
        (replace(TOKENS[0], top=(TOKENS[0].top[0], TokenLogprob(3, NEXT))), TOKENS[1]),
        (replace(TOKENS[0], logprob=None), TOKENS[1]),
    ],
    ids=["shorter", "order", "id", "last bit", "last bit of a rival", "no number"],
)
def test_whatever_differs_changes_the_digest(other: tuple[SampledToken, ...]):
    assert digest(other) != digest(TOKENS)


def test_one_answer_that_differs_is_enough():
    assert agree({"a": ["x"], "b": ["x", "x"]})
    assert not agree({"a": ["x"], "b": ["x", "y"]})
    assert not agree({})


def test_ids_are_told_apart_from_numbers():
    nudged = (replace(TOKENS[0], logprob=math.nextafter(-0.25, 0.0)), TOKENS[1])

    assert told_of(nudged).ids == told_of(TOKENS).ids
    assert told_of(nudged).bits != told_of(TOKENS).bits
    assert told_of(TOKENS[:1]).ids != told_of(TOKENS).ids


def test_the_whole_counts_equal_answers_once_and_sees_every_other():
    def of(*ways: str, ids: tuple[str, ...] = ("i",)) -> str:
        return whole({"mesh": {str(at): [w] for at, w in enumerate(ways)}}, set(ids))

    assert of("x") == of("x", "x", "x")
    assert len({of("x"), of("y"), of("x", "y"), of("x", ids=("i", "j"))}) == 4


def test_the_page_does_not_hide_a_difference():
    result = {
        "model": "toy", "dtype": "int8", "tokens": 4, "prompt_tokens": 8, "kills": 2,
        "engine": {"1 shard": ["a" * 64]},
        "mesh": {"1 node": ["b" * 64], "killed": ["b" * 64, "c" * 64]},
        "equal": False, "ids": ["i"], "sha256": "d" * 64,
    }  # fmt: skip

    page = "\n".join(exact_report(result).sections)

    assert "All equal: NO." in page
    assert f"| killed | 2 | `{'b' * 16}, {'c' * 16}` |" in page


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_is_made_of_settings_that_exist(variant: Variant):
    settings = load_settings({}, assigned=dict(variant.settings))

    assert set(dict(variant.settings)) <= settings.model_fields_set


def test_nodes_die_and_batches_form_in_some_variant():
    assert any(variant.killed for variant in VARIANTS)
    assert any(variant.others >= 7 for variant in VARIANTS)
    assert {1, 2, 3} <= {variant.nodes for variant in VARIANTS}
