"""`meshnet drain`: ask a node to leave, and watch its sessions go."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from meshnet.cli.api_client import ApiClient, ApiError
from meshnet.cli.credentials import tls_of, token_of
from meshnet.cli.settings import Settings

POLL_S = 0.25
GRACE_S = 30.0
"""Beyond the time that a node has for draining."""
GONE = ("node_lost", "node_not_found")
"""It does not answer; or it had joined, and is no member of the mesh any more."""


class Drains(Protocol):
    def drain(self, node: str, *, undo: bool = False) -> int:
        """Ask a node to take no new sessions, or again; return how many it has. Raises ApiError."""
        ...


def drain_node(settings: Settings, node: str, url: str, *, undo: bool) -> None:
    """Drain `node` behind the gateway at `url` and wait until it has left. Raises ApiError."""
    with ApiClient(url, token_of(settings), option="--gateway", tls=tls_of(settings)) as client:
        _drain(client, settings, node, undo=undo)


def drain_member(settings: Settings, node: str, url: str, *, undo: bool) -> None:
    """The same of a member of the registry at `url`, without a gateway. Raises MeshnetError."""
    from meshnet.cli.registry_members import MemberDrain

    _drain(MemberDrain(settings, url), settings, node, undo=undo)


def _drain(client: Drains, settings: Settings, node: str, *, undo: bool) -> None:
    console = Console(stderr=True)
    left = client.drain(node, undo=undo)
    if undo:
        console.print(f"{node} takes sessions again", highlight=False)
        return
    _watch(client, node, left, settings.drain_seconds + GRACE_S, console)
    console.print(f"{node} has left", highlight=False)


def _watch(client: Drains, node: str, left: int, within_s: float, console: Console) -> None:
    """Show how many of `left` sessions have gone, until the node has. Raises ApiError."""
    until = time.monotonic() + within_s
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(f"sessions that left {node}", total=left)
        while True:
            try:
                now_left = client.drain(node)
            except ApiError as error:
                if error.code in GONE:
                    return
                raise
            progress.update(task, completed=max(left - now_left, 0))
            if time.monotonic() >= until:
                raise ApiError(f"{node} is still there: {now_left} sessions have not left it")
            time.sleep(POLL_S)
