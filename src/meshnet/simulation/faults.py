"""How often what breaks, as numbers; two presets, and the healed world after them.

Probabilities are per message or per step; `*_every_s` are mean virtual seconds
between two such faults anywhere in the cluster (0: never).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """What may go wrong. The default breaks nothing and only delays."""

    lost: float = 0.0
    duplicated: float = 0.0
    delay_max_s: float = 0.02
    slow: float = 0.0
    slow_max_s: float = 4.0
    stream_breaks: float = 0.0
    out_of_memory: float = 0.0
    crash_every_s: float = 0.0
    pause_every_s: float = 0.0
    pause_max_s: float = 6.0
    partition_every_s: float = 0.0
    partition_max_s: float = 5.0
    head_crash: float = 0.0
    cancelled: float = 0.0
    stalled: float = 0.0
    stall_max_s: float = 15.0


CALM = Faults(cancelled=0.1)
STORM = Faults(
    lost=0.03,
    duplicated=0.08,
    delay_max_s=0.05,
    slow=0.03,
    stream_breaks=0.03,
    out_of_memory=0.02,
    crash_every_s=3.0,
    pause_every_s=4.0,
    partition_every_s=5.0,
    head_crash=0.25,
    cancelled=0.15,
    stalled=0.1,
)
HEALED = Faults()
PRESETS = {"calm": CALM, "storm": STORM}
