"""What a user asks of a measurement, beside the scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshnet.cli.bench.paired import Rules
from meshnet.cli.bench.sides import SideSpec
from meshnet.cli.settings import SettingsError


@dataclass(frozen=True, slots=True)
class Order:
    sides: tuple[SideSpec, ...]
    rules: Rules
    cores: str | None
    """Which every process is pinned to, e.g. `0,1`; None is all that this one may use."""
    out: Path

    def __post_init__(self) -> None:
        names = [str(side) for side in self.sides]
        if len(set(names)) < len(names):
            raise SettingsError(f"--side: expected different sides, got {', '.join(names)}")
