"""Which subcommands `meshnet` has.

Invariant: building the app imports no torch, transformers, fastapi or httpx2; each command
imports what it needs when it runs, so `meshnet --help` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from meshnet import __version__
from meshnet.cli import chat, commands, options
from meshnet.cli.bench.commands import bench_app
from meshnet.cli.certs.commands import certs_app, token_app
from meshnet.cli.doctor import app as doctor
from meshnet.cli.keys.commands import keys_app

EXAMPLES = """
[bold]Examples[/bold]

  meshnet run "Why is the sky blue?" --nodes 3

  meshnet up --nodes 2

  meshnet chat

  meshnet status
"""


def build_app() -> typer.Typer:
    """Return the command-line application."""
    app = typer.Typer(
        name="meshnet",
        help="Run one language model over several machines, its KV cache where its layers are.",
        epilog=EXAMPLES,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command("up", epilog=commands.UP_EXAMPLES)(commands.up)
    app.command("node", epilog=commands.NODE_EXAMPLES)(commands.node)
    app.command("serve", epilog=commands.SERVE_EXAMPLES)(commands.serve)
    app.command("run", epilog=commands.RUN_EXAMPLES)(commands.run)
    app.command("chat", epilog=chat.EXAMPLES)(chat.chat)
    app.command("status", epilog=commands.STATUS_EXAMPLES)(commands.status)
    app.command("top", epilog=commands.TOP_EXAMPLES)(commands.top)
    app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
    app.command("plan", epilog=commands.PLAN_EXAMPLES)(commands.plan)
    app.command("drain", epilog=commands.DRAIN_EXAMPLES)(commands.drain)
    app.command("pull", epilog=commands.PULL_EXAMPLES)(commands.pull)
    app.command("simulate", epilog=commands.SIMULATE_EXAMPLES)(commands.simulate)
    app.add_typer(bench_app(), name="bench")
    app.add_typer(certs_app(), name="certs")
    app.add_typer(token_app(), name="token")
    app.add_typer(keys_app(), name="keys")
    return app


def _version(asked: bool) -> None:
    if asked:
        print(f"meshnet {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: options.Debug = False,
) -> None:
    pass
