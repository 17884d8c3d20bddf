"""How the toy's tail draws of 32 tokens: a pure function of row, sampling, ids so far, position.

scores of the row ──penalties, bias, bans, grammar──▶ scores ──temperature──▶ a token,
                                                      or the one that is told
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from meshnet.core.vocabulary import SampledToken, SamplingParams, TokenLogprob

VOCABULARY = 32
CARRIED = VOCABULARY - 1
"""The bits of a row that name its token."""
FAVOUR = 8.0
"""As much as the scores of all other tokens are apart."""
_MASK = 2**64 - 1


def mix(left: int, right: int) -> int:
    """Stir two 64-bit numbers into one; no input bit is lost on the way."""
    stirred = (left ^ (right * 0x9E3779B97F4A7C15)) & _MASK
    stirred = (stirred * 0xD6E8FEB86659FD93 + 0x2545F4914F6CDD1D) & _MASK
    return stirred ^ (stirred >> 32)


def draw(row: int, position: int, history: Sequence[int], sampling: SamplingParams) -> SampledToken:
    """Draw a token; the draw is keyed by (seed, position), never by a running generator."""
    raw = [mix(row, token) / 2**61 for token in range(VOCABULARY)]
    raw[favourite(row)] += FAVOUR
    scores = _penalised(raw, position, history, sampling)
    if sampling.temperature > 0.0:
        key = mix(sampling.seed, position)
        scores = [
            score / sampling.temperature + _gumbel(mix(key, token))
            for token, score in enumerate(scores)
        ]
    forced = sampling.forced_at(position)
    token = max(range(VOCABULARY), key=lambda each: (each == forced, scores[each], -each))
    if sampling.logprobs is None:
        return SampledToken(token)
    return _with_logprobs(token, raw, sampling.logprobs)


def favourite(row: int) -> int:
    """The token that likely follows: two alternate, until in one row of four a third is drawn.

    So texts repeat themselves, drafts are often right, and sometimes wrong.
    """
    surprises = (row >> 8) % 4 == 0
    return (row >> 16) % VOCABULARY if surprises else (row & CARRIED) ^ 1


def _penalised(
    raw: Sequence[float], position: int, history: Sequence[int], sampling: SamplingParams
) -> list[float]:
    scores = list(raw)
    for token in set(history):
        if scores[token] > 0.0:
            scores[token] /= sampling.repetition_penalty
        else:
            scores[token] *= sampling.repetition_penalty
    for token, count in Counter(history[sampling.prompt_length :]).items():
        scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    for token in sampling.banned if position < sampling.banned_until else ():
        scores[token] = -math.inf
    for token in _forbidden(sampling, history):
        scores[token] = -math.inf
    return scores


def _forbidden(sampling: SamplingParams, history: Sequence[int]) -> Iterable[int]:
    """A toy grammar is a number: after each id of an answer, its ids must not add up to a multiple.

    So what it allows depends on all of them, and something always is.
    """
    if not sampling.grammar:
        return ()
    answered, divisor = sum(history[sampling.prompt_length :]), int(sampling.grammar)
    return (token for token in range(VOCABULARY) if (answered + token) % divisor == 0)


def _gumbel(bits: int) -> float:
    return -math.log(-math.log(((bits >> 12) + 0.5) / 2**52))


def _with_logprobs(token: int, raw: Sequence[float], count: int) -> SampledToken:
    total = math.log(sum(math.exp(score) for score in raw))
    best = sorted(range(VOCABULARY), key=lambda candidate: (-raw[candidate], candidate))[:count]
    top = tuple(TokenLogprob(candidate, raw[candidate] - total) for candidate in best)
    return SampledToken(token, raw[token] - total, top)
