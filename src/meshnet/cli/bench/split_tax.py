"""`meshnet bench split-tax`: what splitting costs, against the same engine unsplit.

A paired measurement of decodes like any other, whose sides are given.
"""

from __future__ import annotations

from dataclasses import replace

from meshnet.cli.bench import scenarios
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.scenarios import Scenario
from meshnet.cli.bench.sides import SideSpec

SIDES = ("mesh:2x1", "mesh:2x2", "mesh:1x1", "mesh:1x2", "engine:1", "engine:2")


def split_tax_order(order: Order) -> Order:
    # Without drafts: what they win depends on the text, and the engine alone has none.
    sides = (f"{side}+drafts=off" if side.startswith("mesh") else side for side in SIDES)
    return replace(order, sides=tuple(map(SideSpec.parse, sides)))


def split_tax_scenario(tokens: int) -> Scenario:
    return replace(scenarios.decode(tokens), name="split-tax")
