"""What delay alone must cost, and how much more a token costs than that."""

from __future__ import annotations

import pytest

from meshnet.cli.bench.latency import VARIANTS, Turn, Variant, latency_report, latency_rows
from meshnet.cli.bench.paired import Sample
from meshnet.cli.settings import load_settings

STAR, CHAIN = Variant("star", 2, 0), Variant("chain", 1, 1, against="star")


def sample(token_ms: float, wire_ms: float) -> Sample:
    return Sample({"token_ms": token_ms, "wire_ms": wire_ms}, 0.0, disturbed=False)


def test_a_star_sends_two_messages_to_each_node_and_a_chain_one_and_the_answer():
    assert [variant.messages(3) for variant in (STAR, CHAIN)] == [6, 4]


def test_a_token_is_compared_with_its_own_round_without_delay():
    samples = {
        Turn(STAR, 0.0): [sample(40.0, 0.0), sample(80.0, 0.0)],
        Turn(STAR, 50.0): [sample(340.0, 50.0), sample(418.0, 50.0)],
        Turn(CHAIN, 0.0): [sample(40.0, 0.0), sample(40.0, 0.0)],
        Turn(CHAIN, 50.0): [sample(240.0, 50.0), sample(480.0, 50.0)],
    }

    rows = {(row["variant"], row["delay_ms"]): row for row in latency_rows(samples, 3)}

    assert rows["star", 50.0]["over_formula"]["min"] == 1.0
    assert rows["star", 50.0]["over_formula"]["max"] == pytest.approx(1.1)
    assert rows["chain", 50.0]["over_formula"]["max"] == 2.0
    assert rows["star", 0.0]["over_formula"]["median"] == 1.0
    assert rows["chain", 50.0]["messages"] == 4


def test_a_variant_is_held_against_another_at_the_same_delay():
    samples = {
        Turn(STAR, 50.0): [sample(300.0, 50.0), sample(400.0, 50.0)],
        Turn(STAR, 0.0): [sample(1.0, 0.0), sample(1.0, 0.0)],
        Turn(CHAIN, 50.0): [sample(150.0, 50.0), sample(200.0, 50.0)],
        Turn(CHAIN, 0.0): [sample(3.0, 0.0), sample(3.0, 0.0)],
    }

    found = {(row["variant"], row["delay_ms"]): row["against"] for row in latency_rows(samples, 3)}

    assert found["chain", 50.0]["median"] == 0.5
    assert found["chain", 0.0]["median"] == 3.0
    assert found["star", 50.0] is None


def test_a_chain_over_a_star_is_held_against_what_their_messages_make_of_it():
    samples = {
        Turn(STAR, 50.0): [sample(340.0, 50.0)],
        Turn(STAR, 0.0): [sample(40.0, 0.0)],
        Turn(CHAIN, 50.0): [sample(264.0, 50.0)],
        Turn(CHAIN, 0.0): [sample(30.0, 0.0)],
    }

    rows = latency_rows(samples, 3)

    found = {(row["variant"], row["delay_ms"]): row["over_expected"] for row in rows}
    assert found["chain", 50.0]["median"] == pytest.approx(264 / (4 * 50 + 40))
    assert found["chain", 0.0]["median"] == 0.75
    assert found["star", 50.0] is None


def test_the_formula_has_the_delay_that_was_measured():
    """A proxy that delays by 60 ms where 50 were asked for makes no mesh slow."""
    samples = {Turn(STAR, 0.0): [sample(40.0, 0.0)], Turn(STAR, 50.0): [sample(400.0, 60.0)]}

    assert latency_rows(samples, 3)[1]["over_formula"]["median"] == 1.0


def test_the_page_has_a_line_for_each_variant_and_delay():
    samples = {Turn(STAR, 0.0): [sample(40.0, 0.0)], Turn(STAR, 5.0): [sample(70.0, 5.0)]}

    report = latency_report({"model": "toy", "nodes": 3, "rows": latency_rows(samples, 3)})

    page = "\n".join(report.sections)
    assert "| star, 0 ms | 0 | 6 | 40.0 | 40.0 to 40.0 | 1 | – |" in page
    assert "| star, 5 ms | 5 | 6 | 70.0 | 70.0 to 70.0 | 1 | – |" in page


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_is_made_of_settings_that_exist(variant: Variant):
    settings = load_settings({}, assigned=dict(variant.settings))

    assert set(dict(variant.settings)) <= settings.model_fields_set
