"""One machine's part in a mesh that Ray launched: an actor that keeps one node process running.

    Ray worker ── RayShard ── LocalLauncher ──stdin──▶ `meshnet node --join …`

The node is a child and not the actor itself: it is the same program as everywhere, it loads the
version of meshnet that is installed when it starts, and Ray's threads are not in it. It ends with
the actor (mesh/parent.py).

Invariants
    * no node is started by a Ray that does not authenticate: who reaches such a Ray runs anything;
    * a child that cannot get ready is tried again, and why it could not is told.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from meshnet.cli.local_nodes import log_dir
from meshnet.cli.machine import cores
from meshnet.cli.settings import ENVIRONMENT_PREFIX, load_settings
from meshnet.core.vocabulary import MeshnetError
from meshnet.mesh.launcher import ChildSpec, LocalLauncher
from meshnet.mesh.restart import RestartPolicy
from meshnet.mesh.threads import thread_environment
from meshnet.telemetry.events import ChildDied, ChildStarted, Event

EVENTS_MAX = 64
RETRY_S = 10.0


class RayShard:
    """Runs in a Ray worker; its methods are called by mesh/ray_launcher.py."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        """`order` has the node's name, the arguments of `meshnet`, and its environment."""
        self._order = dict(order)
        self._life = secrets.token_hex(8)
        self._events: list[tuple[Any, ...]] = []
        self._forgotten = 0
        self._failure = unauthenticated(os.environ)
        if not self._failure:
            threading.Thread(target=self._keep, name="keep-node", daemon=True).start()

    def matches(self, order: Mapping[str, Any]) -> bool:
        """Say whether this is what the shard was told to run."""
        return self._order == dict(order)

    def told(self, life: str, since: int) -> dict[str, Any]:
        """Return what happened after the first `since` events of that life, in plain values."""
        skipped = max(0, since - self._forgotten) if life == self._life else 0
        events = self._events[:]
        return {
            "life": self._life,
            "count": self._forgotten + len(events),
            "events": events[skipped:],
            "failure": self._failure,
            "machine": platform.node(),
        }

    def _keep(self) -> None:
        asyncio.run(self._kept())

    async def _kept(self) -> None:
        while True:
            try:
                launcher = self._launcher()
                async with launcher.running():
                    await asyncio.Event().wait()
            except (MeshnetError, OSError) as error:
                self._failure = str(error)
            await asyncio.sleep(RETRY_S)

    def _launcher(self) -> LocalLauncher:
        """Raises SettingsError."""
        given = self._order["environment"]
        settings = load_settings({"cache_dir": given.get(f"{ENVIRONMENT_PREFIX}CACHE_DIR")})
        spec = ChildSpec(self._order["name"], self._command, node_environment(os.environ, given))
        return LocalLauncher(
            [spec],
            log_dir=log_dir(settings.cache_dir / "logs"),
            record=self._heard,
            policy=RestartPolicy(ready_timeout_s=settings.start_timeout_seconds),
        )

    def _command(self, port: int) -> Sequence[str]:
        arguments = (*self._order["arguments"], "--port", str(port))
        return (sys.executable, "-m", "meshnet", *arguments, "--json-ready", "--end-with-stdin")

    def _heard(self, event: Event) -> None:
        match event:
            case ChildStarted():
                self._failure = ""
                self._events.append(("started", event.pid, event.url, event.start_s))
            case ChildDied():
                self._events.append(("died", event.pid, event.exit_code, event.restart_in_s))
        past = len(self._events) - EVENTS_MAX
        if past > 0:
            self._forgotten += past
            self._events = self._events[past:]


def unauthenticated(environment: Mapping[str, str]) -> str:
    """Say why this Ray is not to be used; empty: it asks everybody for its token."""
    mode = environment.get("RAY_AUTH_MODE", "")
    if mode.lower() == "token":
        return ""
    return (
        f"RAY_AUTH_MODE: expected token on every machine of the cluster, "
        f"got {mode or 'nothing'!r}; without it whoever reaches Ray's ports runs anything there"
    )


def node_environment(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a node's environment: the machine's, what was ordered, and threads by its cores.

    Ray sets OMP_NUM_THREADS by what was reserved, which is not what the machine has.
    """
    threads = given.get(f"{ENVIRONMENT_PREFIX}THREADS")
    return {
        **own,
        **given,
        **thread_environment(cores=cores(), nodes=1, threads=int(threads) if threads else None),
    }
