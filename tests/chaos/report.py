"""What storms showed, as JSON and as a page: counts, gaps, and whatever must not have happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.chaos.chats import Verdict
from tests.chaos.storm import Record

from meshnet.cli.bench.report import table

NEXT_HEAD_S = 10.0
"""How soon nodes must serve the next head after one has died (issue 4)."""


def summary(record: Record) -> dict[str, Any]:
    """Return one storm in numbers."""
    return {
        "events": len(record.events),
        "faults": dict(Counter(event.fault.value for event in record.events)),
        "met_connections": dict(record.struck),
        "seconds": round(record.ended_at - record.began_at, 1),
        "chats": record.verdicts.total(),
        "tokens": record.tokens,
        **{verdict.value: record.verdicts[verdict] for verdict in Verdict},
        "errors_told": dict(record.failures),
        "refills": dict(record.refills),
        "partial_refills": record.partial_refills,
        "moves": len(record.moved_bytes),
        "moved_bytes": percentiles(record.moved_bytes),
        "move_s": percentiles(record.move_s),
        "gap_s": percentiles(record.gaps_s),
        "worst_gap": record.worst_gap[1],
        "next_head_s": percentiles(record.next_head_s),
        "must_not_happen": broken_promises(record),
    }


def broken_promises(record: Record) -> list[str]:
    """Return what the storm found wrong; empty if everything is as it must be."""
    late = [each for each in record.next_head_s if each > NEXT_HEAD_S]
    return record.faults + [f"the next head waited {each:.1f} s" for each in late]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the middle, the 99th percentile and the worst; nothing of nothing."""
    if not values:
        return {}
    ranked = sorted(values)
    places = {"p50": 0.5, "p99": 0.99, "worst": 1.0}
    return {
        name: round(ranked[min(len(ranked) - 1, int(share * len(ranked)))], 3)
        for name, share in places.items()
    }


def storm_table(storms: Sequence[dict[str, Any]]) -> str:
    """Return the table of several storms, each a summary with its subject and seed."""
    titles = (
        "subject", "seed", "network", "events", "chats", "right", "failed", "cut", "left",
        "wrong", "hang", "refills", "partial", "moves", "gap p50", "p99", "worst", "next head",
    )  # fmt: skip
    rows = [
        (
            str(each["subject"]),
            *(str(each[name]) for name in titles[1:11]),
            str(sum(each["refills"].values())),
            str(each["partial_refills"]),
            str(each["moves"]),
            *(_seconds(each["gap_s"], name) for name in ("p50", "p99", "worst")),
            _seconds(each["next_head_s"], "worst"),
        )
        for each in storms
    ]
    return table(titles, rows)


def fault_table(storms: Sequence[dict[str, Any]]) -> str:
    """Return how often each fault was done."""
    counted: Counter[str] = Counter()
    for each in storms:
        counted.update(each["faults"])
    return table(("fault", "events"), [(name, str(n)) for name, n in counted.most_common()])


def _seconds(found: dict[str, float], name: str) -> str:
    return f"{found[name]:.2f} s" if name in found else ""
