"""Run the churn campaign, as far as it has not been, and write docs/simulation.md.

    python -m tools.simulation_page --seeds 10000 --kept churn.jsonl --write docs/simulation.md

Each history is one line of the file `--kept`, so a campaign may be stopped and goes on.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.progress import track

from meshnet.simulation.campaign import CHURN, CampaignResult, one_seed, summary
from meshnet.simulation.history import Costs, History

TEMPLATE = Path(__file__).with_suffix(".md")


def histories(seeds: int, kept: Path) -> list[History]:
    """Return one history per seed, those of the file first."""
    known = {each.seed: each for each in _read(kept)} if kept.exists() else {}
    missing = [seed for seed in range(seeds) if seed not in known]
    run = partial(one_seed, faults=CHURN)
    workers = os.cpu_count() or 1
    with (
        kept.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
    ):
        for history in track(pool.map(run, missing, chunksize=5), "churn", total=len(missing)):
            known[history.seed] = history
            file.write(json.dumps(asdict(history)) + "\n")
            file.flush()
    return [known[seed] for seed in range(seeds)]


def _read(kept: Path) -> Iterator[History]:
    for line in kept.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        costs = Costs(**values.pop("costs"))
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        yield History(**values | lists, costs=costs)


def page(result: CampaignResult) -> str:
    rows = "\n".join(
        f"| {5 * row.spacing:.0f} s | {row.seeds:,} | {row.availability:.1%} |"
        f" {row.refilled_per_thousand:,.0f} | {row.losses:,} | {row.gap_median_s:.2f} s |"
        f" {row.gap_p95_s:.1f} s | {row.gap_max_s:.1f} s |"
        for row in result.churn
    )
    return TEMPLATE.read_text(encoding="utf-8").format(
        seeds=result.seeds,
        wrong=len(result.wrong),
        unfinished=len(result.unfinished),
        violated=len(result.violated),
        generations=result.generations,
        tokens=result.tokens,
        refills=result.refills,
        rows=rows,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--write", type=Path, required=True)
    given = parser.parse_args()
    result = summary(CHURN, histories(given.seeds, given.kept), wall_s=0.0)
    given.write.write_text(page(result), encoding="utf-8")
    for seed in result.first_seeds:
        print(f"replay: meshnet simulate --seeds 1 --first {seed} --faults {CHURN}")
    return 0 if result.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
