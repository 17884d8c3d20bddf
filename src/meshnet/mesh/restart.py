"""When a dead child is started again, and when the launcher gives up. Pure: no clock, no process.

Invariants
    * the pause grows from `delay_min_s` to `delay_max_s` and starts over after a healthy life;
    * a child that dies `failures_max` times in a row without getting ready is given up;
    * one whose first life ends with a refusal of its own is given up at once: it said why, and
      saying it again helps nobody.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    delay_min_s: float = 0.2
    delay_max_s: float = 5.0
    healthy_s: float = 30.0
    failures_max: int = 3
    refusal_codes: tuple[int, ...] = (1, 2)
    ready_timeout_s: float = 300.0
    stop_timeout_s: float = 5.0


class RestartBook:
    """The deaths of one child so far."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths = 0
        self._failures = 0
        self._lives = 0

    @property
    def failures(self) -> int:
        """Lives in a row that ended before the child was ready."""
        return self._failures

    def died(self, *, was_ready: bool, lived_s: float, code: int) -> float | None:
        """Return the pause before the next start, or None to give up."""
        self._lives += 1
        self._failures = 0 if was_ready else self._failures + 1
        if self._failures >= self._policy.failures_max:
            return None
        if self._failures == self._lives == 1 and code in self._policy.refusal_codes:
            return None
        if was_ready and lived_s >= self._policy.healthy_s:
            self._deaths = 0
        # Beyond this exponent the pause is at its bound whatever the policy says.
        delay_s = self._policy.delay_min_s * 2.0 ** min(self._deaths, 30)
        self._deaths += 1
        return min(delay_s, self._policy.delay_max_s)
