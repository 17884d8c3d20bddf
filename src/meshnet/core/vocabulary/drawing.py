"""How a token is drawn, and what was drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tail draws: a pure function of these, the logits, the ids so far, the position."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    prompt_length: int = 0
    banned: tuple[int, ...] = ()
    banned_until: int = 0
    """`banned` ids cannot be drawn for positions below `banned_until` (min_tokens, ignore_eos)."""
    grammar: str = ""
    """What may follow the prompt, as llguidance reads it; empty: anything."""
    forced: tuple[int, ...] = ()
    """What is drawn for the last positions before `prompt_length`, whatever the logits: so a tail
    tells the log-probabilities of a prompt."""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 2.0)
        _check("top_k", self.top_k, 0, 1_000_000)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("repetition_penalty", self.repetition_penalty, 1e-3, 100.0)
        _check("seed", self.seed, 0, 2**64 - 1)
        _check("logprobs", self.logprobs or 0, 0, LOGPROBS_MAX)
        _check("prompt_length", self.prompt_length, 0, POSITIONS_MAX)
        _check("banned_until", self.banned_until, 0, POSITIONS_MAX)
        _check("len(logit_bias)", len(self.logit_bias), 0, LOGIT_BIAS_MAX)
        _check("len(banned)", len(self.banned), 0, LOGIT_BIAS_MAX)
        _check("len(grammar)", len(self.grammar), 0, GRAMMAR_CHARS_MAX)
        _check("len(forced)", len(self.forced), 0, self.prompt_length)
        if self.forced:
            _check("forced token", min(self.forced), 0, TOKEN_ID_MAX)
            _check("forced token", max(self.forced), 0, TOKEN_ID_MAX)
        for token, bias in self.logit_bias:
            _check("logit_bias token", token, 0, TOKEN_ID_MAX)
            _check("logit_bias value", bias, -100.0, 100.0)
        for token in self.banned:
            _check("banned token", token, 0, TOKEN_ID_MAX)

    def after(self, length: int) -> SamplingParams:
        """Return these for a prompt of `length` ids and those that are forced behind them."""
        return replace(self, prompt_length=length + len(self.forced))

    def forced_at(self, position: int) -> int | None:
        """Return the id that is drawn for `position`; None where the logits decide."""
        at = position - self.prompt_length + len(self.forced)
        return self.forced[at] if 0 <= at < len(self.forced) else None


LOGPROBS_MAX = 20
LOGIT_BIAS_MAX = 1024
GRAMMAR_CHARS_MAX = 2**16
TOKEN_ID_MAX = 2**31 - 1
POSITIONS_MAX = 2**24


def _check(field: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{field}: expected a number from {low} to {high}, got {value!r}")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The tail's draw. `logprob` and `top`, if asked for: log-softmax of the raw logits."""

    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the tail drew in one step: a token, or with drafts the accepted run and one more."""

    tokens: tuple[SampledToken, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.tokens) <= DRAFTS_MAX + 1:
            raise ValueError(
                f"drawn: expected 1 to {DRAFTS_MAX + 1} tokens, got {len(self.tokens)}"
            )

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple([token.token_id for token in self.tokens])


DRAFTS_MAX = 16
"""Guesses of one step at most."""
