"""Simulate meshes of ten, a hundred and a thousand nodes, and draw what it shows.

    python -m tools.scale_page --kept scale.jsonl --write docs/scale

writes DOCS/scale-results.md and DOCS/scale.svg beside the page that says what they mean. A mesh
that is in the file `--kept` already is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from meshnet.cli.bench.picture import lines, picture
from meshnet.simulation.scale import ScaleCosts, simulate_scale

RUNS = {10: (7200.0, 20), 100: (900.0, 10), 1000: (60.0, 4)}
"""Seconds that a mesh lives, and its chats."""
COLUMNS = (
    "nodes", "lived", "left", "hops", "time with a route", "wrong tokens", "tokens/s of a chat",
    "for each node on its route", "next token after a loss", "a plan", "a placing", "a route",
    "registry, requests/s", "registry, kB/s", "of it snapshots",
)  # fmt: skip


def runs(kept: Path, sizes: Sequence[int]) -> list[ScaleCosts]:
    """Return what each size cost, run or read."""
    known = {}
    if kept.exists():
        for line in kept.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            known[values["nodes"]] = ScaleCosts(**values)
    for nodes in sizes:
        if nodes not in known:
            seconds, chats = RUNS[nodes]
            known[nodes] = simulate_scale(nodes, seconds=seconds, chats=chats)
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(known[nodes])) + "\n")
            print(f"{nodes} nodes: {known[nodes].cpu_s:.0f} s of processor time", flush=True)
    return [known[nodes] for nodes in sorted(known)]


def row(costs: ScaleCosts) -> str:
    gaps = f"{median(costs.gaps_s):.1f} s of {len(costs.gaps_s)}" if costs.gaps_s else "none lost"
    told = sum(costs.bytes_per_s.values()) / 1e3
    snapshots = costs.bytes_per_s.get("snapshot", 0.0) / 1e3
    return (
        f"| {costs.nodes:,} | {costs.virtual_s:,.0f} s | {costs.left} | {costs.hops} |"
        f" {costs.availability:.1%} | {costs.wrong} of {costs.chats} chats |"
        f" {costs.tokens_per_s:.1f} | {costs.tokens_per_s / costs.hops:.1f} | {gaps} |"
        f" {costs.planning_s:.2f} s | {costs.placing_s * 1e3:.0f} ms |"
        f" {costs.routing_s * 1e3:.1f} ms | {sum(costs.calls_per_s.values()):,.0f} |"
        f" {told:,.0f} | {snapshots:,.0f} |"
    )


def drawn(every: Sequence[ScaleCosts], target: Path) -> None:
    def over(values: dict[str, list[float]]) -> dict[str, dict[float, dict[str, float]]]:
        return {
            name: {
                float(costs.nodes): {"median": value, "min": value, "max": value}
                for costs, value in zip(every, series, strict=True)
            }
            for name, series in values.items()
        }

    traffic = {
        "all, kB/s": [sum(each.bytes_per_s.values()) / 1e3 for each in every],
        "snapshots": [each.bytes_per_s.get("snapshot", 0.0) / 1e3 for each in every],
    }
    work = {
        "plan": [each.planning_s for each in every],
        "placing": [each.placing_s for each in every],
        "route": [each.routing_s for each in every],
    }
    speed = {"a chat": [each.tokens_per_s for each in every]}
    picture(
        "by nodes of the mesh",
        [
            lines("processor time, s", over(work)),
            lines("registry", over(traffic)),
            lines("tokens/s", over(speed)),
        ],
        target,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--write", type=Path, required=True)
    parser.add_argument("--nodes", type=int, nargs="+", choices=RUNS, default=list(RUNS))
    given = parser.parse_args()
    every = runs(given.kept, given.nodes)
    rows = "\n".join(map(row, every))
    given.write.with_name(f"{given.write.name}-results.md").write_text(
        f"# Meshes by size\n\nWhat it means: [scale](scale.md).\n\n| {' | '.join(COLUMNS)} |\n"
        f"{'| --- ' * len(COLUMNS)}|\n{rows}\n",
        encoding="utf-8",
    )
    drawn(every, given.write.with_suffix(".svg"))


if __name__ == "__main__":
    main()
