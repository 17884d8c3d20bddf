"""What the mesh asks of a registry, whoever keeps it.

Three keep one: the gateway's own file (sqlite.py), another gateway over HTTP (http_client.py),
and an etcd (etcd.py).

Invariants, which tests/mesh/registry_conformance.py holds against each of them
    * a member leaves when nobody announced it for its `ttl_s`, and not before;
    * a registry that was restarted knows its members, and gives each a whole `ttl_s` anew;
    * revisions grow with every change, also over restarts;
    * a watch tells all that changed since its revision, in order, or says that it cannot.

A watch may end or fall silent at any time. So whoever follows takes a snapshot, watches from its
revision, and takes another now and then, and whenever the watch has ended (following.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import NewType, Protocol

from meshnet.core.vocabulary import Member, MeshnetError, NodeId

Revision = NewType("Revision", int)
"""Of the registry as a whole. A value's is that of its last change."""

KEY_CHARS_MAX = 320
VALUE_BYTES_MAX = 256 * 1024
VALUES_MAX = 256
TTL_MIN_S, TTL_MAX_S = 1.0, 3600.0
CALL_S = 5.0
"""How long whoever is asked over a network has for an answer."""
POLL_S = 20.0
"""How long a watch over HTTP lets the registry wait for a change; CALL_S later it is lost."""


class RegistryLost(MeshnetError):
    """The registry does not answer, or not in a form that this version reads. Ask again later."""


class RegistryRefused(MeshnetError):
    """The registry will not have this: asking again does not help."""


@dataclass(frozen=True, slots=True)
class Leased:
    """A member, and for how long at most it stays one unless it is announced again."""

    member: Member
    left_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    members: Mapping[NodeId, Leased]
    revision: Revision


@dataclass(frozen=True, slots=True)
class Joined:
    member: Member
    revision: Revision


@dataclass(frozen=True, slots=True)
class Updated:
    member: Member
    revision: Revision


@dataclass(frozen=True, slots=True)
class Left:
    node: NodeId
    revision: Revision


@dataclass(frozen=True, slots=True)
class Written:
    """The value of `key` is another one, or gone."""

    key: str
    revision: Revision


@dataclass(frozen=True, slots=True)
class Resync:
    """What changed since is not known any more: take a snapshot. The last item of a watch."""


Change = Joined | Updated | Left | Written


@dataclass(frozen=True, slots=True)
class Versioned:
    value: bytes
    revision: Revision


class Registry(Protocol):
    """Every call raises RegistryLost, and may be cancelled."""

    async def announce(self, member: Member, ttl_s: float) -> None:
        """Make the member known as it is now, for `ttl_s` from now on.

        The same call renews, updates, and heals a registry that forgot. Raises RegistryRefused.
        """
        ...

    async def leave(self, node: NodeId) -> None:
        """Forget the member at once; one that is not known is no error."""
        ...

    async def snapshot(self) -> Snapshot: ...

    def watch(self, since: Revision) -> AsyncIterator[Change | Resync]:
        """Tell what changes after `since`, until closed or lost."""
        ...

    async def get(self, key: str) -> Versioned | None: ...

    async def compare_and_set(
        self, key: str, expected: Revision | None, value: bytes | None
    ) -> bool:
        """Write the value, or delete it (None), if its revision is `expected` (None: absent).

        False: it is not, and nothing was written. Raises RegistryRefused.
        """
        ...
