"""`meshnet status`: the nodes behind a gateway, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from meshnet.cli.api_client import ApiError
from meshnet.cli.credentials import api_client
from meshnet.cli.options import print_json
from meshnet.cli.report import from_json, print_table, show_table
from meshnet.cli.report_members import members_table
from meshnet.cli.settings import Settings


def show_status(settings: Settings, url: str, *, as_json: bool) -> None:
    """Print the mesh behind `url`. Raises ApiError."""
    with api_client(settings, url) as client:
        mesh = client.mesh()
    if as_json:
        print_json(mesh)
        return
    try:
        nodes, model, ready = from_json(mesh["nodes"]), mesh["model"], mesh["ready"]
        detail, members = mesh["detail"], members_table(mesh.get("members", ()))
    except (KeyError, TypeError, ValueError):
        raise _unread(url) from None
    console = Console()
    state = "[green]ready[/green]" if ready else f"[red]not ready[/red]: {detail}"
    console.print(f"{model} at {url}: {state}", highlight=False)
    print_table(console, nodes, urls=True)
    if members.row_count:
        show_table(console, members)
    if answers := mesh.get("answers"):
        console.print(_pace(answers, url), highlight=False)


def _pace(answers: Mapping[str, Any], url: str) -> str:
    try:
        return (
            f"last {answers['answers']} answers: {answers['tokens_per_s']:.1f} tokens/s, "
            f"first token in {answers['first_s']:.2f} s (medians)"
        )
    except (KeyError, TypeError, ValueError):
        raise _unread(url) from None


def _unread(url: str) -> ApiError:
    return ApiError(f"{url} answers /mesh in a form this version does not read")
