"""What one head has done since it began, for its metrics. Numbers only ever rise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from meshnet.core.generation.transcript import RefillReason


@dataclass(slots=True)
class HeadCounters:
    started: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    tokens: int = 0
    reused: int = 0
    """Tokens of prompts that earlier sessions held."""
    prefills: int = 0
    """Steps that carried all ids so far, refills and stateless steps among them."""
    refills: Counter[RefillReason] = field(default_factory=Counter)
    moves: int = 0
    """Sessions that changed nodes with their cache."""
    partial_refills: int = 0
    """Those of them in which some hops kept what they held."""
    refilled_positions: int = 0
    """What hops ran again for them, those of each hop counted."""
    inexact: int = 0
    """Hops of another arithmetic that took part half-way."""
    holds: int = 0
    """Times a generation began to ask nodes to hold something for it."""
    releases: int = 0
    """Times it told them that it is over. Equal to `holds` when no generation runs."""
