"""What Ray is asked to run on one machine; known without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RayShardSpec:
    """One shard: `arguments` of `meshnet` on its machine, and what its bundle reserves there."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    resources: Mapping[str, float]

    @property
    def order(self) -> dict[str, Any]:
        """What an actor is told: plain values, which every version of meshnet can read."""
        return {
            "name": self.name,
            "arguments": list(self.arguments),
            "environment": dict(self.environment),
        }
