"""The `meshnet` command: which subcommands exist, and how every failure is told.

    exit 0   done
    exit 1   a MeshnetError: a red line that says what and what to do; `--debug` adds the traceback
    exit 2   wrong usage, told by typer

Invariant: building the app imports no torch, transformers, fastapi or httpx2; each command
imports what it needs when it runs, so `meshnet --help` is quick.
"""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Annotated

import typer

from meshnet import __version__
from meshnet.cli import bench, chat, commands, options
from meshnet.core.vocabulary import MeshnetError

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
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command("up", epilog=commands.UP_EXAMPLES)(commands.up)
    app.command("node", epilog=commands.NODE_EXAMPLES)(commands.node)
    app.command("serve", epilog=commands.SERVE_EXAMPLES)(commands.serve)
    app.command("run", epilog=commands.RUN_EXAMPLES)(commands.run)
    app.command("chat", epilog=chat.EXAMPLES)(chat.chat)
    app.command("status", epilog=commands.STATUS_EXAMPLES)(commands.status)
    app.command("pull", epilog=commands.PULL_EXAMPLES)(commands.pull)
    app.command("simulate", epilog=commands.SIMULATE_EXAMPLES)(commands.simulate)
    measures = typer.Typer(help="Measure a mesh on this machine.", no_args_is_help=True)
    measures.command("flatness", epilog=bench.FLATNESS_EXAMPLES)(bench.flatness)
    measures.command("split-tax", epilog=bench.SPLIT_TAX_EXAMPLES)(bench.split_tax)
    app.add_typer(measures, name="bench")
    return app


def main() -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    # The last collection of a process that loaded torch takes seconds and frees nothing we need.
    atexit.register(gc.freeze)
    try:
        build_app()([word for word in arguments if word != "--debug"])
    except MeshnetError as error:
        if debug:
            raise
        _tell(str(error))
    except BrokenPipeError:
        # The reader of our output is gone (`| head`): not worth a word.
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        # The process boundary: a bug is told in one line, not dumped on the user.
        if debug:
            raise
        _tell(
            f"{type(error).__name__}: {error}\n"
            "This is a bug in meshnet. Run the command again with --debug to see where."
        )


def _tell(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    sys.exit(1)


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
