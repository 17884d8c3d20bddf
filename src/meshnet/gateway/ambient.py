"""Time, ids and chance as this machine gives them; tests give their own."""

from __future__ import annotations

import secrets
import time

from meshnet.gateway.ports import Ambient


def machine_ambient() -> Ambient:
    return Ambient(
        now=time.time,
        clock=time.monotonic,
        new_id=lambda: secrets.token_hex(12),
        new_seed=lambda: secrets.randbits(64),
    )
