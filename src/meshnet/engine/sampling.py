"""Which token the tail draws: a pure function of logits, ids so far, parameters and position.

    raw logits -> repetition -> presence, frequency -> logit_bias -> bans
               -> what the grammar does not allow                           (adjusted scores)
               -> temperature -> top_k -> top_p -> min_p                    (candidates)
               -> one uniform number keyed by (seed, position), inverse CDF in id order

Order and meaning are those of transformers' processors; presence and frequency are OpenAI's.
Two answers differ from transformers on purpose: `top_k` cuts equal logits by the lowest id (so that
`top_k` 1 is temperature 0), and `top_p` 0 keeps the best token alone.

Invariants
    * nothing is remembered between draws: another batch, process or order of calls draws the same;
    * logits are moved to the CPU first, so the device cannot change an answer;
    * the caller's logits are never written to.

Legend: V vocabulary, N candidates.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from meshnet.core.vocabulary import (
    BadField,
    GrammarError,
    NumericalError,
    SampledToken,
    SamplingParams,
    TokenLogprob,
)
from meshnet.engine.grammar import Grammars
from meshnet.engine.history import History

GREEDY_BELOW = 1e-5
"""A temperature under this is 0: dividing by it would only overflow."""
LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot carry."""
_BANNING_BIAS = -100.0
_FIRST_CANDIDATES = 1024
_BUCKETS = 4096
_NEGLIGIBLE = 60.0
"""e**-60 times any vocabulary is less than a rounding error of the best token's weight."""


class Sampler:
    """Draws tokens at the tail. Holds nothing but compiled grammars."""

    def __init__(self, grammars: Grammars | None = None) -> None:
        self._grammars = grammars

    @torch.inference_mode()
    def draw(
        self, logits_V: Tensor, history: Sequence[int], sampling: SamplingParams, position: int
    ) -> SampledToken:
        """Draw the token for `position`.

        Args:
            logits_V: raw logits of one position, any float type and device.
            history: all ids so far, prompt first. A `History` makes penalties cheap.
            position: index of the token being drawn; the draw is keyed by it and the seed.

        Raises:
            NumericalError: NaN or +infinity among the logits, or no token is left to draw.
            BadField: `sampling` names an id outside the vocabulary.
        """
        raw_V = logits_V.detach().reshape(-1).to("cpu", torch.float32)
        if (forced := sampling.forced_at(position)) is not None:
            _check_best(float(raw_V.max()), len(raw_V))
            return _described(raw_V, forced, sampling.logprobs)
        plain = not (_is_biased(sampling, position) or _is_penalised(sampling) or sampling.grammar)
        greedy = _is_greedy(sampling)
        if not (plain and greedy):  # else the best one is looked at below
            _check_best(float(raw_V.max()), len(raw_V))
        scores_V = raw_V if plain else _changed(raw_V, history, sampling, position)
        if sampling.grammar:
            self._forbid(scores_V, history, sampling)
        if greedy:
            token = _best(scores_V, raw_V)
        else:
            _check_left(float(scores_V.max()))
            ids_N, weights_N = _candidates(scores_V, sampling)
            token = int(ids_N[_inverse_cdf(weights_N, uniform(sampling.seed, position))])
        return _described(raw_V, token, sampling.logprobs)

    def _forbid(self, scores_V: Tensor, history: Sequence[int], sampling: SamplingParams) -> None:
        """Leave only what may follow the answer so far. Raises GrammarError."""
        if self._grammars is None:
            raise GrammarError("this shard knows no grammars")
        book = history if isinstance(history, History) else History(history)
        book.allow(scores_V, self._grammars, sampling)

    @torch.inference_mode()
    def distribution(
        self, logits_V: Tensor, history: Sequence[int], sampling: SamplingParams, position: int
    ) -> tuple[Tensor, Tensor]:
        """The ids that `draw` chooses from, ascending, and their probabilities."""
        scores_V = _adjusted(_checked(logits_V), history, sampling, position)
        if _is_greedy(sampling):
            best = torch.tensor([_best(scores_V, scores_V)])
            return best, torch.ones(1, dtype=torch.float64)
        ids_N, weights_N = _candidates(scores_V, sampling)
        return ids_N, weights_N.double() / weights_N.sum(dtype=torch.float64)


def check_ids(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise BadField if `sampling` names an id outside the vocabulary; call it before a step."""
    for token, _ in sampling.logit_bias:
        if token >= vocab_size:
            raise BadField("logit_bias", f"token ids below {vocab_size}", token)
    for token in sampling.banned:
        if token >= vocab_size:
            raise BadField("banned", f"token ids below {vocab_size}", token)
    if sampling.forced and max(sampling.forced) >= vocab_size:
        raise BadField("forced", f"token ids below {vocab_size}", max(sampling.forced))


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that belongs to a position: counter-based, 53 random bits."""
    key = struct.pack("<QQ", seed, position)
    digest = hashlib.blake2b(key, digest_size=8, person=b"meshnet draw").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _is_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature < GREEDY_BELOW or sampling.top_k == 1 or sampling.top_p == 0.0


def _checked(logits_V: Tensor) -> Tensor:
    raw_V = logits_V.detach().reshape(-1).to("cpu", torch.float32)
    _check_best(float(raw_V.max()), len(raw_V))
    return raw_V


def _check_best(best: float, count: int) -> None:
    if math.isnan(best) or best == math.inf:
        raise NumericalError(f"logits: expected finite numbers, got {best} among {count}")


def _check_left(best: float) -> None:
    if best == -math.inf:
        raise NumericalError("no token is left to draw: logit_bias and bans exclude all of them")
    if not math.isfinite(best):
        raise NumericalError(f"adjusted logits: expected finite numbers, got {best}")


def _best(scores_V: Tensor, raw_V: Tensor) -> int:
    """Return the lowest id of the best score.

    A NaN counts as the best. numpy looks for a tenth of the time that torch takes.
    """
    scores = scores_V.numpy()
    token = int(scores.argmax())
    best = float(scores[token])
    if scores_V is raw_V:
        _check_best(best, len(raw_V))
    _check_left(best)
    return token


def _adjusted(
    raw_V: Tensor, history: Sequence[int], sampling: SamplingParams, position: int
) -> Tensor:
    """Scores after penalties, bias and bans; `raw_V` itself when there are none."""
    scores_V = raw_V
    if _is_biased(sampling, position) or _is_penalised(sampling):
        scores_V = _changed(raw_V, history, sampling, position)
    _check_left(float(scores_V.max()))
    return scores_V


def _changed(
    raw_V: Tensor, history: Sequence[int], sampling: SamplingParams, position: int
) -> Tensor:
    scores_V = raw_V.clone()
    if _is_penalised(sampling):
        book = history if isinstance(history, History) else History(history)
        _penalise(scores_V, book, sampling)
    if _is_biased(sampling, position):
        check_ids(sampling, len(raw_V))
        _bias(scores_V, sampling, position)
    return scores_V


def _is_biased(sampling: SamplingParams, position: int) -> bool:
    return bool(sampling.logit_bias or (sampling.banned and position < sampling.banned_until))


def _is_penalised(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def _penalise(scores_V: Tensor, book: History, sampling: SamplingParams) -> None:
    """Repetition over prompt and output, as transformers; the others over the output, as OpenAI."""
    vocab_size = len(scores_V)
    if sampling.repetition_penalty != 1.0:
        ids, _ = _inside(*book.counts(0), vocab_size)
        seen = scores_V[ids]
        penalty = sampling.repetition_penalty
        scores_V[ids] = torch.where(seen < 0, seen * penalty, seen / penalty)
    if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
        ids, counts = _inside(*book.counts(sampling.prompt_length), vocab_size)
        scores_V[ids] -= counts * sampling.frequency_penalty + sampling.presence_penalty


def _inside(ids: Tensor, counts: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Leave out ids that have an embedding but no logit (padded vocabularies)."""
    if len(ids) and int(ids.max()) >= vocab_size:
        inside = ids < vocab_size
        return ids[inside], counts[inside]
    return ids, counts


def _bias(scores_V: Tensor, sampling: SamplingParams, position: int) -> None:
    if sampling.logit_bias:
        ids = torch.tensor([token for token, _ in sampling.logit_bias])
        bias = torch.tensor([value for _, value in sampling.logit_bias], dtype=torch.float32)
        bias[bias <= _BANNING_BIAS] = -math.inf
        scores_V.index_add_(0, ids, bias)
    if sampling.banned and position < sampling.banned_until:
        scores_V[torch.tensor(sampling.banned)] = -math.inf


def _candidates(scores_V: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Candidate ids, ascending, and their weights relative to the best one."""
    shifted_V = (scores_V - scores_V.max()) / sampling.temperature
    ids_N = None
    if 0 < sampling.top_k < len(shifted_V):
        ids_N = _ranked(shifted_V, sampling.top_k)
    if sampling.top_p < 1.0:
        ids_N = _nucleus(shifted_V, ids_N, sampling.top_p)
    if ids_N is None:
        return _all_of(shifted_V, sampling.min_p)
    shifted_N = shifted_V[ids_N]
    if sampling.min_p > 0.0:
        ids_N = ids_N[shifted_N >= math.log(sampling.min_p)]
    ids_N = ids_N.sort().values
    return ids_N, shifted_V[ids_N].double().exp()


def _all_of(shifted_V: Tensor, min_p: float) -> tuple[Tensor, Tensor]:
    if min_p == 0.0:
        return torch.arange(len(shifted_V)), shifted_V.exp()
    ids_N = (shifted_V >= math.log(min_p)).nonzero().reshape(-1)
    return ids_N, shifted_V[ids_N].double().exp()


def _ranked(scores_V: Tensor, limit: int) -> Tensor:
    """Ids of the `limit` best finite scores, best first; equal scores by ascending id."""
    if limit >= len(scores_V):
        ids = scores_V.argsort(descending=True, stable=True)
        return ids[scores_V[ids] > -math.inf]
    least = scores_V.topk(limit, sorted=False).values.min()
    # `topk` breaks ties in no promised order, so take all that tie and sort them stably.
    above = scores_V >= least if least > -math.inf else scores_V > -math.inf
    ids = above.nonzero().reshape(-1)
    return ids[scores_V[ids].argsort(descending=True, stable=True)[:limit]]


def _nucleus(shifted_V: Tensor, ranked_N: Tensor | None, top_p: float) -> Tensor:
    """Fewest best ids whose mass reaches `top_p`, out of `ranked_N` or of all.

    Sorting a whole vocabulary costs more than the model's last layers, so the nucleus is looked
    for among the best 1,024 first, and then without sorting more than one bucket.
    """
    if ranked_N is not None:
        weights_N = shifted_V[ranked_N].double().exp()
        return _cut(ranked_N, weights_N, top_p * float(weights_N.sum()))
    weights_V = shifted_V.exp()
    wanted = top_p * float(weights_V.sum(dtype=torch.float64))
    ids_N = _ranked(shifted_V, _FIRST_CANDIDATES)
    weights_N = weights_V[ids_N].double()
    if float(weights_N.sum()) >= wanted:
        return _cut(ids_N, weights_N, wanted)
    return _wide_nucleus(shifted_V, weights_V, wanted)


def _wide_nucleus(shifted_V: Tensor, weights_V: Tensor, wanted: float) -> Tensor:
    """Bucket the ids by score; keep the buckets above the cut, sort only the one it falls in."""
    least = float(shifted_V[shifted_V > -_NEGLIGIBLE].min())
    scale = (_BUCKETS - 1) / max(-least, 1e-6)
    buckets_V = (shifted_V * -scale).clamp_(max=_BUCKETS - 1).long()
    masses = torch.bincount(buckets_V, weights=weights_V.double(), minlength=_BUCKETS)
    sums = masses.cumsum(0)
    crossing = min(int(torch.searchsorted(sums, wanted)), _BUCKETS - 1)
    above = float(sums[crossing] - masses[crossing])
    whole_N = (buckets_V < crossing).nonzero().reshape(-1)
    ids_N = ((buckets_V == crossing) & (weights_V > 0)).nonzero().reshape(-1)
    ids_N = ids_N[shifted_V[ids_N].argsort(descending=True, stable=True)]
    return torch.cat([whole_N, _cut(ids_N, weights_V[ids_N].double(), wanted - above)])


def _cut(ids_N: Tensor, weights_N: Tensor, wanted: float) -> Tensor:
    """Keep each id whose better ones do not reach `wanted` yet; the best one always."""
    before_N = weights_N.cumsum(0) - weights_N
    kept = max(1, int(torch.searchsorted(before_N, wanted)))
    return ids_N[:kept]


def _inverse_cdf(weights_N: Tensor, point: float) -> int:
    sums_N = weights_N.cumsum(0, dtype=torch.float64)
    # Searching with right=True skips candidates of weight zero, also at point 0.
    index = int(torch.searchsorted(sums_N, point * float(sums_N[-1]), right=True))
    if index < len(sums_N):
        return index
    return int(weights_N.nonzero()[-1])


def _described(raw_V: Tensor, token: int, logprobs: int | None) -> SampledToken:
    if logprobs is None:
        return SampledToken(token)
    total = float(raw_V.logsumexp(0))
    ids = _ranked(raw_V, logprobs).tolist() if logprobs else []

    def logprob(id_: int) -> float:
        return max(LOGPROB_FLOOR, float(raw_V[id_]) - total)

    return SampledToken(token, logprob(token), tuple(TokenLogprob(i, logprob(i)) for i in ids))
