"""`meshnet bench`: which measurements there are."""

from __future__ import annotations

import typer

from meshnet.cli.bench import commands_ours, commands_paired

FLATNESS_EXAMPLES = """
[bold]Example[/bold]

  meshnet bench flatness --tokens 1500 --json
"""

SPLIT_TAX_EXAMPLES = """
[bold]Example[/bold]

  meshnet bench split-tax --rounds 5
"""

PAIRED_EXAMPLES = """
[bold]Sides[/bold]

  mesh:2x1, mesh:3x1@bf16, engine:1, generate:2, llama:2, llama-rpc:2x1

[bold]Example[/bold]

  meshnet bench {name} --side mesh:2x1 --side llama-rpc:2x1 --rounds 5
"""

ACCEPTANCE_EXAMPLES = """
[bold]Examples[/bold]

  meshnet bench acceptance                      [dim]goes on where it was interrupted[/dim]

  meshnet bench acceptance --only decode-small --only budget-small
"""


def bench_app() -> typer.Typer:
    """Return `meshnet bench`."""
    app = typer.Typer(
        help="Measure a mesh on this machine, beside its baselines.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    for name, command in commands_paired.PAIRED.items():
        app.command(name, epilog=PAIRED_EXAMPLES.format(name=name))(command)
    app.command("exact")(commands_ours.exact)
    app.command("budget")(commands_ours.budget)
    app.command("shard")(commands_ours.shard)
    app.command("latency")(commands_ours.latency)
    app.command("plan")(commands_ours.plan)
    app.command("memory")(commands_ours.memory)
    app.command("acceptance", epilog=ACCEPTANCE_EXAMPLES)(commands_ours.acceptance)
    app.command("flatness", epilog=FLATNESS_EXAMPLES)(commands_ours.flatness)
    app.command("split-tax", epilog=SPLIT_TAX_EXAMPLES)(commands_paired.split_tax)
    return app
