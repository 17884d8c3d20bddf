"""`meshnet keys`: who may use the API, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshnet.cli import options

EXAMPLES = """
[bold]Examples[/bold]

  meshnet keys add alice --requests-per-minute 60 --tokens-per-minute 20000 --concurrent 2

  meshnet keys revoke alice
"""

File = Annotated[
    Path | None, typer.Option("--file", show_default="api_keys_file", help="The file of keys.")
]
Name = Annotated[str, typer.Argument(help="Whose key it is.", show_default=False)]
Limit = Annotated[int | None, typer.Option(min=1, max=10**9, show_default="none")]


def keys_app() -> typer.Typer:
    """Return `meshnet keys`."""
    app = typer.Typer(
        help="Keep the API keys of a gateway, as digests and with limits.",
        epilog=EXAMPLES,
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    app.command("add")(add)
    app.command("list")(show)
    app.command("revoke")(revoke)
    return app


def add(
    name: Name,
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
    concurrent: Limit = None,
    file: File = None,
    config: options.Config = None,
) -> None:
    """Make a key and print it; only its digest is kept."""
    from meshnet.cli.keys.file import add_key

    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrent": concurrent,
    }
    print(add_key(_path(file, config), name, limits))


def show(file: File = None, config: options.Config = None, as_json: options.Json = False) -> None:
    """Show names and limits."""
    from meshnet.cli.keys.file import read_keys, values_of

    found = [values_of(key) for key in read_keys(_path(file, config))]
    if as_json:
        options.print_json({"keys": found})
        return
    for values in found:
        limits = [f"{name} {limit}" for name, limit in values.items() if name != "name" and limit]
        print(values["name"], ", ".join(limits) or "no limits", sep="  ")


def revoke(name: Name, file: File = None, config: options.Config = None) -> None:
    """Forget a key: running gateways refuse it from the next second on."""
    from meshnet.cli.keys.file import revoke_key

    revoke_key(_path(file, config), name)


def _path(file: Path | None, config: Path | None) -> Path:
    """Raises BadParameter."""
    path = file or options.settings_from({}, config, ()).api_keys_file
    if path is None:
        raise typer.BadParameter("expected --file, or api_keys_file in the settings")
    return path
