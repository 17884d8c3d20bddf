"""`meshnet status`: the nodes behind a gateway, as a table or as JSON."""

from __future__ import annotations

from rich.console import Console

from meshnet.cli.api_client import ApiClient, ApiError
from meshnet.cli.options import print_json
from meshnet.cli.report import from_json, print_table
from meshnet.cli.settings import Settings


def show_status(settings: Settings, url: str, *, as_json: bool) -> None:
    """Print the mesh behind `url`. Raises ApiError."""
    key = settings.api_keys[0].get_secret_value() if settings.api_keys else None
    with ApiClient(url, key) as client:
        mesh = client.mesh()
    if as_json:
        print_json(mesh)
        return
    try:
        nodes, model, ready = from_json(mesh["nodes"]), mesh["model"], mesh["ready"]
        detail = mesh["detail"]
    except (KeyError, TypeError, ValueError):
        raise ApiError(f"{url} answers /mesh in a form this version does not read") from None
    console = Console()
    state = "[green]ready[/green]" if ready else f"[red]not ready[/red]: {detail}"
    console.print(f"{model} at {url}: {state}", highlight=False)
    print_table(console, nodes, urls=True)
