"""The dashboard asks for what is exported, and shows all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/meshnet.json").read_text(encoding="utf-8"))
SCRAPE = (ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8")
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that Prometheus gives itself."""
LEFT_OUT = {
    "meshnet_sessions_taken": "the bytes taken over say more",
}
FAMILIES = {sample: each for each in Metrics().families for sample in each.samples}
METRIC = re.compile(r"\bmeshnet_\w+")
SELECTED = re.compile(r"(meshnet_\w+)\{([^}]*)\}")
BY = re.compile(r"\bby \(([^)]*)\)")


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


EXPRESSIONS = sorted(set(expressions()))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_and_label_of_the_dashboard_is_exported(expression: str):
    names = METRIC.findall(expression)
    labels = OF_PROMETHEUS.union(*(FAMILIES[name].labels for name in names))

    grouped = {label.strip() for group in BY.findall(expression) for label in group.split(",")}
    assert grouped <= labels
    for name, selectors in SELECTED.findall(expression):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selectors))
        assert asked <= {*FAMILIES[name].labels, "job"}


def test_every_family_is_on_the_dashboard_or_left_out_on_purpose():
    shown = {FAMILIES[name].name for text in EXPRESSIONS for name in METRIC.findall(text)}

    families = {each.name for each in FAMILIES.values()}
    assert families - shown == set(LEFT_OUT)


def test_panels_have_a_place_and_a_number_of_their_own():
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]

    assert len(set(places)) == len(places)
    assert len(set(numbers)) == len(numbers)


def test_jobs_of_the_scrape_configuration_tell_gateways_from_nodes():
    assert re.findall(r"job_name: (\S+)", SCRAPE) == ["meshnet-gateway", "meshnet-node"]
