"""The signature of `meshnet doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from meshnet.cli import options

EXAMPLES = """
[bold]Examples[/bold]

  meshnet doctor                                     this machine, the gateway here, its nodes

  meshnet doctor --url http://10.0.0.1:8000 --json

  meshnet doctor --node http://10.0.0.2:9001         a node that no gateway knows yet
"""


def doctor(
    url: options.Url = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="URL", help="A node to ask too. Repeatable."),
    ] = None,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Check a setup: addresses, secrets, versions, models, links, memory; say what to do."""
    from meshnet.cli.credentials import gateway_here
    from meshnet.cli.doctor.command import examine

    chosen = options.settings_from({}, config, settings)
    examine(chosen, url or gateway_here(chosen), node or (), as_json=as_json)
