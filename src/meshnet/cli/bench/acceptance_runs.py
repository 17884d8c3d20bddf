"""The runs that the acceptance table needs, and about how long each takes.

Invariant: all of them together take less than `MINUTES_MAX` on the machine of `METHODOLOGY`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshnet.cli.bench import scenarios
from meshnet.cli.bench.budget_command import budget_report, budget_result
from meshnet.cli.bench.exact import exact_report, exact_result
from meshnet.cli.bench.latency import latency_report, latency_result
from meshnet.cli.bench.memory import memory_report, memory_result
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.paired_command import paired_result
from meshnet.cli.bench.report import Report, paired_report
from meshnet.cli.bench.scenarios import Scenario
from meshnet.cli.bench.shard_growth import growth_report, growth_result
from meshnet.cli.bench.sides import SideSpec
from meshnet.cli.settings import Settings

MINUTES_MAX = 40.0
# Without drafts: what they win depends on the text, and the others have none.
MESH, FAST = "mesh:2x1@int8+drafts=off", "mesh:2x1@int8-fast+drafts=off"
RPC, LONE = "llama-rpc:2x1", "engine:1@int8"
SMALL, LARGE = "smollm2-135m", "random-1.1b"

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One result that lines read."""

    name: str
    model: str
    minutes: float
    """About how long it takes, to be told beforehand."""
    scenario: Scenario | str
    """Of sides that take turns; of meshnet alone the name of one of OURS."""
    sides: tuple[str, ...] = ()
    rounds_max: int | None = None
    """Where a round takes long: no more than that, and no warm-up."""

    def of(self, order: Order) -> Order:
        """Return the order of this run."""
        rules = order.rules
        if self.rounds_max is not None:
            rules = replace(rules, rounds=min(rules.rounds, self.rounds_max), warmups=0)
        return replace(order, sides=tuple(map(SideSpec.parse, self.sides)), rules=rules)

    def result(self, settings: Settings, order: Order) -> tuple[Result, Report]:
        """Measure. Raises MeshnetError."""
        if isinstance(self.scenario, Scenario):
            result = paired_result(settings, self.scenario, self.of(order))
            return result, paired_report(result)
        measure, report = OURS[self.scenario]
        result = measure(settings, self.of(order))
        return result, report(result)


Ours = tuple[Callable[[Settings, Order], Result], Callable[[Result], Report]]
OURS: Mapping[str, Ours] = {
    "exact": (
        lambda settings, order: exact_result(settings, order, tokens=64, kills=20),
        exact_report,
    ),
    "shard": (
        lambda settings, order: growth_result(settings, order, early=100, late=1400),
        growth_report,
    ),
    "latency": (
        lambda settings, order: latency_result(
            settings, order, nodes=3, tokens=24, delays_ms=(0.0, 5.0, 20.0, 50.0, 100.0)
        ),
        latency_report,
    ),
    "memory": (
        lambda settings, order: memory_result(settings, order, nodes=2, length=1000),
        memory_report,
    ),
    "budget": (
        lambda settings, order: budget_result(settings, order, nodes=2, tokens=96),
        budget_report,
    ),
}
RUNS = (
    Run("exact", SMALL, 4.0, "exact"),
    Run("decode-large", LARGE, 4.0, scenarios.decode(64), (MESH, RPC, LONE)),
    Run(
        *("decode-small", SMALL, 4.0, scenarios.decode(128)),
        (MESH, FAST, RPC, LONE, "generate:1", "llama:1"),
    ),
    Run("sessions-small", SMALL, 3.5, scenarios.concurrency((1, 2, 4, 8, 16), 64), (MESH, RPC), 3),
    Run("sessions-large", LARGE, 3.0, scenarios.concurrency((1, 8), 48), (MESH,), 3),
    Run("prefill-small", SMALL, 1.5, scenarios.prefill(512), (MESH, RPC)),
    Run("positions-small", SMALL, 5.0, scenarios.positions(100, 1400), (MESH, RPC), 3),
    Run("shard-small", SMALL, 1.0, "shard"),
    Run("ttft-small", SMALL, 1.0, scenarios.ttft(7, 5, other_tokens=512), (MESH,)),
    Run("turns-small", SMALL, 1.5, scenarios.turns(1450, 48, question=24), (MESH,)),
    Run("latency-small", SMALL, 5.5, "latency", rounds_max=2),
    Run("memory-small", SMALL, 0.7, "memory"),
    Run("memory-large", LARGE, 2.0, "memory"),
    Run("budget-small", SMALL, 1.0, "budget"),
)
