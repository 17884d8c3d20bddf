"""Names of nodes, sessions and models, and the version of the wire they meet on."""

from __future__ import annotations

from typing import NewType

NodeId = NewType("NodeId", str)
SessionId = NewType("SessionId", str)
ModelId = NewType("ModelId", str)

WIRE_VERSION = 1
