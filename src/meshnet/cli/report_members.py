"""The members of a mesh as `meshnet status` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from rich.table import Table

from meshnet.cli.report import bytes_text
from meshnet.core.vocabulary import Member


def members_table(members: Sequence[Mapping[str, Any]]) -> Table:
    """Return what `GET /mesh` tells of members. Raises KeyError or TypeError for another form."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("member", "state", "layers", "lease", "memory", "threads", "trouble"):
        table.add_column(title, no_wrap=True)
    for member in members:
        left_s = member["lease_left_s"]
        table.add_row(
            urlsplit(member["node"]).netloc,
            member["state"],
            member["layers"] or "none yet",
            "unknown" if left_s is None else f"{left_s:.0f} s",
            bytes_text(member["memory_bytes"]),
            str(member["threads"]),
            member["failure"],
        )
    return table


def member_values(member: Member, left_s: float | None, *, reachable: bool) -> dict[str, Any]:
    """Return what `GET /mesh` tells of a member."""
    state = member.state.value
    return {
        "node": member.node,
        "state": state if reachable else "unreachable",
        "model": member.model,
        "layers": None if member.layers is None else str(member.layers),
        "assigned": member.assigned,
        "epoch": member.epoch,
        "lease_left_s": None if left_s is None else round(left_s, 3),
        "failure": member.failure,
        "machine": member.capacity.machine,
        "memory_bytes": member.capacity.memory_bytes,
        "threads": member.capacity.threads,
    }
