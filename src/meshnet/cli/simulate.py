"""`meshnet simulate`: seeded clusters, and exit status 1 unless all kept every promise."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from meshnet.cli.interrupts import raise_interrupts
from meshnet.cli.machine import cores
from meshnet.cli.options import print_json
from meshnet.simulation.campaign import CampaignResult, campaign


def simulate_seeds(seeds: range, faults: str, *, as_json: bool) -> None:
    """Run one cluster per seed and print the verdict. Raises typer.Exit(1) for a bad one."""
    raise_interrupts()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(f"simulate {faults}", total=len(seeds))
        result = campaign(
            seeds,
            faults,
            lambda done, total: bar.update(task, completed=done),
            processes=min(cores(), len(seeds)),
        )
    if as_json:
        print_json({**asdict(result), "passed": result.passed})
    else:
        _tell(result)
    if not result.passed:
        raise typer.Exit(1)


def _tell(result: CampaignResult) -> None:
    print(
        f"{result.faults}: {result.seeds} seeds, {len(result.wrong)} wrong, "
        f"{len(result.unfinished)} unfinished, {len(result.violated)} violated; "
        f"{result.generations} generations, {result.tokens} tokens, {result.refills} refills, "
        f"{result.virtual_s / 3600:.1f} h of virtual time in {result.wall_s:.1f} s"
    )
    for row in result.churn:
        print(
            f"events {row.spacing:g} times as far apart: {row.availability:.1%} of the time"
            f" a route, {row.refilled_per_thousand:.0f} positions refilled per 1,000 tokens; after"
            f" {row.losses} losses the next token in {row.gap_median_s:.2f} s (median),"
            f" {row.gap_p95_s:.1f} s (95 %), {row.gap_max_s:.1f} s (worst)"
        )
    if not result.passed:
        print(f"first complaint: {result.first_complaint}")
        for seed in result.first_seeds:
            print(f"replay: meshnet simulate --seeds 1 --first {seed} --faults {result.faults}")
