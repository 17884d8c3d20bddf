"""Answers told by their digests: equal digests are equal to the last bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshnet.core.vocabulary import SampledToken


class Told(NamedTuple):
    """One answer, told by its digests."""

    bits: str
    """Of all that its kind compares."""
    ids: str


def told_of(tokens: Sequence[SampledToken]) -> Told:
    return Told(digest(tokens), ids_digest([token.token_id for token in tokens]))


def digest(tokens: Sequence[SampledToken]) -> str:
    """Return the sha256 of ids and log-probabilities, to the last bit."""
    found = hashlib.sha256()
    for token in tokens:
        pairs = [(token.token_id, token.logprob), *((t.token_id, t.logprob) for t in token.top)]
        for token_id, logprob in pairs:
            told = "none" if logprob is None else float(logprob).hex()
            found.update(f"{token_id} {told}\n".encode())
    return found.hexdigest()


def ids_digest(ids: Sequence[int]) -> str:
    """Return the sha256 of the ids of an answer."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()


def agree(digests: Mapping[str, Sequence[str]]) -> bool:
    """Whether every way, every time, led to the same bits."""
    return len({digest for found in digests.values() for digest in found}) == 1


def whole(digests: Mapping[str, Mapping[str, Sequence[str]]], ids: set[str]) -> str:
    """Return one sha256 over all that was found of each kind; equal bits count once."""
    found = hashlib.sha256()
    for kind in sorted(digests):
        bits = {digest for answers in digests[kind].values() for digest in answers}
        found.update(f"{kind} {' '.join(sorted(bits))}\n".encode())
    found.update(f"ids {' '.join(sorted(ids))}\n".encode())
    return found.hexdigest()
