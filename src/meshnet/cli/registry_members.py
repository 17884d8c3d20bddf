"""The members of a mesh as its registry tells them, for commands that ask no gateway."""

from __future__ import annotations

import asyncio
from typing import Any

from rich.console import Console

from meshnet.cli.api_client import ApiError
from meshnet.cli.credentials import tls_of, token_of
from meshnet.cli.options import print_json
from meshnet.cli.registries import check_registry, opened_registry, registry_place
from meshnet.cli.report import show_table
from meshnet.cli.report_members import member_values, members_table
from meshnet.cli.settings import Settings
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.members import decode_assignments
from meshnet.core.vocabulary import BadField, HopLost, NodeId
from meshnet.mesh.placing import ASSIGNMENTS
from meshnet.mesh.registry.ports import Versioned
from meshnet.wire.http_client import HttpHopClient

DRAIN_S = 10.0


def show_members(settings: Settings, url: str, *, as_json: bool) -> None:
    """Print the members of the registry at `url`. Raises MeshnetError."""
    told = asyncio.run(_told(settings, url))
    if as_json:
        print_json(told)
        return
    console = Console()
    model = told["model"] or "no model assigned yet"
    console.print(f"{model} at {url}: {len(told['members'])} members", highlight=False)
    if told["members"]:
        show_table(console, members_table(told["members"]))


async def _told(settings: Settings, url: str) -> dict[str, Any]:
    place = registry_place(url, "--registry")
    check_registry(settings, place)
    async with opened_registry(settings, place) as registry:
        snapshot, held = await registry.snapshot(), await registry.get(ASSIGNMENTS)
    members = [
        member_values(leased.member, leased.left_s, reachable=True)
        for _, leased in sorted(snapshot.members.items())
    ]
    return {"model": _model(held), "members": members}


def _model(held: Versioned | None) -> str | None:
    try:
        return None if held is None else decode_assignments(held.value).model
    except BadField:
        return None


class MemberDrain:
    """Drains a member of a registry by asking the node itself."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings, self._url = settings, url

    def drain(self, node: str, *, undo: bool = False) -> int:
        """Ask a node to take no new sessions, or again; return how many it has. Raises ApiError."""
        return asyncio.run(self._drained(node, undo))

    async def _drained(self, asked: str, undo: bool) -> int:
        told = await _told(self._settings, self._url)
        urls = [member["node"] for member in told["members"]]
        found = [url for url in urls if asked in (url, url.partition("://")[2])]
        if not found:
            raise ApiError(f"no member of {self._url} is {asked!r}", "node_not_found")
        node, token, tls = NodeId(found[0]), token_of(self._settings), tls_of(self._settings)
        client = HttpHopClient({node: node}, limits=Limits(), token=token, tls=tls)
        try:
            async with client:
                return (await client.drain(node, DRAIN_S, undo=undo)).sessions
        except HopLost as lost:
            raise ApiError(str(lost), "node_lost") from None
