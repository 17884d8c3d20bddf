"""What a node takes beside what it must."""

from __future__ import annotations

import os
from dataclasses import asdict

import psutil
import pytest

from meshnet.cli.bench.memory import NodeMemory, ends_like, memory_report, peak_bytes
from meshnet.core.vocabulary import LayerRange

MIB = 2**20
NODE = NodeMemory(
    layers="0-10", layer_count=10, base=300 * MIB, peak=520 * MIB, resident=630 * MIB,
    weights=200 * MIB, kv=100 * MIB,
)  # fmt: skip


def test_what_is_over_is_counted_without_the_process_that_holds_no_layer():
    assert NODE.over == pytest.approx(330 / 300)


def test_what_is_beside_is_all_that_nobody_accounts_for():
    assert NODE.beside == 30 * MIB


@pytest.mark.parametrize(
    ("held", "like"), [("0-10", "0-1"), ("10-20", "10-11"), ("20-30", "29-30"), ("0-30", "0-30")]
)
def test_the_process_without_layers_has_the_ends_of_the_node(held: str, like: str):
    assert str(ends_like(LayerRange.parse(held), 30, ())) == like


@pytest.mark.parametrize(("held", "like"), [("0-10", "0-4"), ("4-10", "4-5"), ("10-30", "27-30")])
def test_layers_that_belong_together_are_loaded_together(held: str, like: str):
    runs = (LayerRange(0, 4), LayerRange(27, 30))

    assert str(ends_like(LayerRange.parse(held), 30, runs)) == like


def test_a_peak_may_be_base_and_shard_and_one_layer():
    assert NODE.peak_over == pytest.approx(1.0)


def test_a_peak_is_at_least_what_is_resident():
    assert peak_bytes(os.getpid()) >= psutil.Process().memory_info().rss // 2
    assert peak_bytes(2**30) == 0


def test_the_page_has_a_line_for_each_node():
    node = {**asdict(NODE), "beside": NODE.beside, "over": NODE.over, "peak_over": NODE.peak_over}

    report = memory_report({"model": "toy", "dtype": "int8", "positions": 1016, "nodes": [node]})

    assert "| 0-10 | 300 | 200 | 100 | 630 | 30.0 | 520 | 1.1 | 1 |" in "\n".join(report.sections)
