"""The signatures of `meshnet bench`: what is measured, and where the result goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshnet.cli import options

FLATNESS_EXAMPLES = """
[bold]Example[/bold]

  meshnet bench flatness --tokens 1500 --json
"""

SPLIT_TAX_EXAMPLES = """
[bold]Example[/bold]

  meshnet bench split-tax --rounds 5
"""

Out = Annotated[Path, typer.Option("--out", help="Directory of the result files.", file_okay=False)]


def bench_app() -> typer.Typer:
    """Return `meshnet bench`."""
    app = typer.Typer(help="Measure a mesh on this machine.", no_args_is_help=True)
    app.command("flatness", epilog=FLATNESS_EXAMPLES)(flatness)
    app.command("split-tax", epilog=SPLIT_TAX_EXAMPLES)(split_tax)
    return app


def flatness(
    model: options.Model = None,
    nodes: options.Nodes = 2,
    tokens: Annotated[int, typer.Option("--tokens", min=64)] = 1500,
    weights: options.WeightsFlag = None,
    threads: options.Threads = None,
    out: Out = Path("benchmarks/results"),
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Tokens per second by position, cached and stateless, and what each hop costs."""
    from meshnet.cli.bench.flatness import measure_flatness

    flags = {"model": model, "weights": weights, "threads": threads}
    chosen = options.settings_from(flags, config, settings)
    measure_flatness(chosen, nodes=nodes, tokens=tokens, out=out, as_json=as_json)


def split_tax(
    model: options.Model = None,
    tokens: Annotated[int, typer.Option("--tokens", min=8)] = 128,
    rounds: Annotated[int, typer.Option("--rounds", min=1)] = 5,
    weights: options.WeightsFlag = None,
    out: Out = Path("benchmarks/results"),
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Two nodes against the unsplit engine on the same cores."""
    from meshnet.cli.bench.split_tax import measure_split_tax

    flags = {"model": model, "weights": weights}
    chosen = options.settings_from(flags, config, settings)
    measure_split_tax(chosen, tokens=tokens, rounds=rounds, out=out, as_json=as_json)
