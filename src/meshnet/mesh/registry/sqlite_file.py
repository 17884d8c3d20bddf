"""What a registry remembers over a restart: members, values and its revision, in one SQLite file.

Invariants
    * one process at a time has the file open: a second one is told, and does not start;
    * a member that this version cannot read is forgotten: it will announce itself again;
    * a file that can no longer be written stops nobody: `failure` says so, and the registry goes
      on in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from meshnet.core.protocol.fields import print_object, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.members import member_values, read_member
from meshnet.core.vocabulary import BadField, Member, MeshnetError, NodeId
from meshnet.mesh.registry.ports import Revision, Versioned

_SCHEMA = """
CREATE TABLE IF NOT EXISTS members (node TEXT PRIMARY KEY, ttl_s REAL NOT NULL, member BLOB);
CREATE TABLE IF NOT EXISTS "values" (key TEXT PRIMARY KEY, revision INTEGER, value BLOB);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, number INTEGER NOT NULL);
"""
_LIMITS = Limits()
_LOCK_WAIT_S = 2.0


class RegistryFile:
    """Open until `close`; without a path it is in memory, and nothing outlives the process.

    Raises MeshnetError: another process has it, or it cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self.failure = ""
        self._path = path
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path or ":memory:", timeout=_LOCK_WAIT_S)
            # Held to the end of the process, however that ends: a lock of the kernel's.
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode=WAL")
            # No wait for the disk at each commit: after a power cut members announce themselves.
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise MeshnetError(
                f"{path}: cannot keep the registry there: {error}. Another gateway may have it; "
                "choose another state_dir (MESHNET_STATE_DIR), or delete the file."
            ) from None

    def close(self) -> None:
        self._database.close()

    def revision(self, born: Revision) -> Revision:
        """Return the last revision; of a new file, `born`."""
        row = self._database.execute("SELECT number FROM facts WHERE name='revision'").fetchone()
        return born if row is None else Revision(row[0])

    def members(self) -> list[tuple[Member, float]]:
        """Return the members and the time of their leases."""
        rows = self._database.execute("SELECT member, ttl_s FROM members ORDER BY node")
        return [(member, ttl_s) for data, ttl_s in rows if (member := _member(data)) is not None]

    def values(self) -> dict[str, Versioned]:
        rows = self._database.execute('SELECT key, revision, value FROM "values"')
        return {key: Versioned(value, Revision(revision)) for key, revision, value in rows}

    def save_member(self, member: Member, ttl_s: float, revision: Revision) -> None:
        row = (member.node, ttl_s, print_object(member_values(member)))
        self._write("INSERT OR REPLACE INTO members VALUES (?, ?, ?)", row, revision)

    def forget_member(self, node: NodeId, revision: Revision) -> None:
        self._write("DELETE FROM members WHERE node=?", (node,), revision)

    def save_value(self, key: str, value: bytes, revision: Revision) -> None:
        self._write(
            'INSERT OR REPLACE INTO "values" VALUES (?, ?, ?)', (key, revision, value), revision
        )

    def forget_value(self, key: str, revision: Revision) -> None:
        self._write('DELETE FROM "values" WHERE key=?', (key,), revision)

    def _write(self, statement: str, row: Sequence[object], revision: Revision) -> None:
        try:
            with self._database:
                self._database.execute(statement, row)
                self._database.execute(
                    "INSERT OR REPLACE INTO facts VALUES ('revision', ?)", (revision,)
                )
        except sqlite3.Error as error:
            self.failure = f"{self._path}: {error}"
        else:
            self.failure = ""


def _member(data: bytes) -> Member | None:
    try:
        return read_member(read_object(data, "member", _LIMITS))
    except BadField:
        return None
