"""Every bound and every choice of the API, in one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshnet.gateway.allowance import ApiKey


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Sizes a request may have; beyond them it is refused before anything is computed."""

    body_bytes: int = 32 * 2**20
    messages: int = 4096
    content_parts: int = 4096
    prompts: int = 16
    choices: int = 8
    tools: int = 128
    tool_name_characters: int = 64
    stops: int = 16
    stop_characters: int = 256
    logit_bias: int = 1024
    stop_token_ids: int = 256
    top_logprobs: int = 20
    completion_logprobs: int = 5


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys that open the API, without limits."""
    stored_keys: Callable[[], Sequence[ApiKey]] | None = field(default=None, repr=False)
    """Tells the keys that are stored, as they are now. With neither, everybody who can connect
    may use the API."""
    keepalive_s: float = 15.0
    """Longest silence of a stream: then a comment is sent."""
    grace_s: float = 0.25
    """How long a stream's status waits for the first event: a refusal in that time gets
    the status it deserves instead of 200 and an error frame."""
    deadline_s: float = 600.0
    """Time for one generation, from its first step to its last token."""
    body_s: float = 60.0
    """Time for a body to arrive."""
    stall_s: float = 60.0
    """How long a client may leave a stream unread before it counts as gone."""
    trace_ratio: float | None = None
    """Part of the requests without a trace that get one; None: none, and nobody told spans."""
    limits: ApiLimits = ApiLimits()

    def __post_init__(self) -> None:
        times = (self.keepalive_s, self.deadline_s, self.body_s, self.stall_s)
        if min(times) <= 0 or self.grace_s < 0:
            raise ValueError("gateway: expected times above 0, and grace_s of at least 0")
        if any(not key for key in self.api_keys):
            raise ValueError("api_keys: expected no empty key")

    @property
    def locked(self) -> bool:
        """Whether the API asks for a key."""
        return bool(self.api_keys) or self.stored_keys is not None
