"""The JSON meta block: what of a step is neither a header nor tensor bytes.

    {"tokens": [ids of the new positions], "sampling": {...}, "want_token": false,
     "drafts": 3, "adopt": "id of the session that goes on as this one",
     "route": [{"node": "http://...", "layers": "10-20"}, ... the hops still to come],
     "tensors": [{"name": "hidden", "dtype": "fp32", "shape": [1, 7, 576]}, ...]}

Every key may be absent. `tensors` is there when an activation is more than one tensor named
`hidden`. `adopt` and `route` belong to frames: a POST has a header for the one, and is not handed
on. Only sampling parameters that
differ from their defaults are printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshnet.core.protocol.fields import Fields, print_object, read_object
from meshnet.core.protocol.headers import dtype_of, session_id
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import (
    DRAFTS_MAX,
    GRAMMAR_CHARS_MAX,
    LOGIT_BIAS_MAX,
    POSITIONS_MAX,
    TOKEN_ID_MAX,
    BadField,
    Buffer,
    Hop,
    NodeId,
    SamplingParams,
    SessionId,
    TensorSpec,
)

WHERE = "meta"
DIMENSION_MAX = 10**9 - 1
ROUTE_MAX = 64


@dataclass(frozen=True, slots=True)
class Meta:
    """The meta block of one request or reply."""

    tokens: tuple[int, ...] = ()
    sampling: SamplingParams | None = None
    want_token: bool = True
    tensors: tuple[TensorSpec, ...] = ()
    drafts: int = 0
    adopt: SessionId | None = None
    route: tuple[Hop, ...] = ()


def print_meta(meta: Meta) -> bytes:
    """Return the block's bytes; empty if there is nothing to say."""
    values: dict[str, Any] = {}
    if meta.tokens:
        values["tokens"] = meta.tokens
    if meta.sampling is not None:
        values["sampling"] = sampling_values(meta.sampling)
    if not meta.want_token:
        values["want_token"] = False
    if meta.drafts:
        values["drafts"] = meta.drafts
    if meta.adopt is not None:
        values["adopt"] = meta.adopt
    if meta.route:
        values["route"] = [{"node": hop.node, "layers": str(hop.layers)} for hop in meta.route]
    if meta.tensors:
        values["tensors"] = print_tensors(meta.tensors)
    return print_object(values) if values else b""


def print_tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Return what describes tensors, ready for JSON."""
    return [{"name": spec.name, "dtype": spec.dtype.value, "shape": spec.shape} for spec in specs]


def read_meta(data: Buffer, limits: Limits) -> Meta:
    """Raises BadField naming the key."""
    fields = read_object(data, WHERE, limits)
    return Meta(
        tokens=_tokens(fields, limits),
        sampling=read_sampling(fields.object("sampling")) if fields.has("sampling") else None,
        want_token=fields.truth("want_token") if fields.has("want_token") else True,
        tensors=_tensors(fields, limits) if fields.has("tensors") else (),
        drafts=fields.integer("drafts", high=DRAFTS_MAX) if fields.has("drafts") else 0,
        adopt=session_id(fields.text("adopt"), "meta.adopt") if fields.has("adopt") else None,
        route=_route(fields) if fields.has("route") else (),
    )


def _route(fields: Fields) -> tuple[Hop, ...]:
    entries = fields.objects("route", count_max=ROUTE_MAX)
    return tuple(
        Hop(NodeId(entry.text("node", chars_max=512)), entry.layers("layers")) for entry in entries
    )


def _tokens(fields: Fields, limits: Limits) -> tuple[int, ...]:
    if not fields.has("tokens"):
        return ()
    return fields.integers("tokens", count_max=limits.positions, high=TOKEN_ID_MAX)


def read_tensors(fields: Fields, limits: Limits, *, count_max: int) -> tuple[TensorSpec, ...]:
    """Read what describes tensors of different names. Raises BadField."""
    described = fields.objects("tensors", count_max=count_max)
    specs = tuple(_tensor(entry, limits) for entry in described)
    if len({spec.name for spec in specs}) != len(specs):
        raise fields.refuse("tensors", "names that differ")
    return specs


def _tensors(fields: Fields, limits: Limits) -> tuple[TensorSpec, ...]:
    specs = read_tensors(fields, limits, count_max=limits.tensors)
    if specs and len(specs[0].shape) < 2:
        raise fields.refuse("tensors", "a first tensor of at least 2 dimensions")
    return specs


def _tensor(entry: Fields, limits: Limits) -> TensorSpec:
    name = entry.text("name", chars_max=64)
    if _NAME.fullmatch(name) is None:
        raise entry.refuse("name", "letters, digits, . _ -")
    shape = entry.integers("shape", count_max=limits.dimensions, high=DIMENSION_MAX)
    if not shape or 0 in shape:
        raise entry.refuse("shape", f"1 to {limits.dimensions} positive sizes")
    return TensorSpec(name, dtype_of(entry.text("dtype"), "meta.tensors.dtype"), shape)


_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def sampling_values(sampling: SamplingParams) -> dict[str, Any]:
    """Return what differs from the defaults, ready for JSON."""
    values: dict[str, Any] = {}
    for name in (*_NUMBERS, *_INTEGERS):
        value = getattr(sampling, name)
        if value != getattr(_DEFAULTS, name):
            values[name] = value
    if sampling.logit_bias:
        values["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.banned:
        values["banned"] = sampling.banned
    if sampling.grammar:
        values["grammar"] = sampling.grammar
    if sampling.forced:
        values["forced"] = sampling.forced
    return values


def read_sampling(fields: Fields) -> SamplingParams:
    """Read what `sampling_values` gave. Raises BadField."""
    values: dict[str, Any] = {name: fields.number(name) for name in _NUMBERS if fields.has(name)}
    values |= {name: fields.integer(name) for name in _INTEGERS if fields.has(name)}
    if fields.has("logit_bias"):
        values["logit_bias"] = _logit_bias(fields.object("logit_bias"))
    if fields.has("banned"):
        values["banned"] = fields.integers("banned", count_max=LOGIT_BIAS_MAX, high=TOKEN_ID_MAX)
    if fields.has("grammar"):
        values["grammar"] = fields.text("grammar", chars_max=GRAMMAR_CHARS_MAX)
    if fields.has("forced"):
        values["forced"] = fields.integers("forced", count_max=POSITIONS_MAX, high=TOKEN_ID_MAX)
    try:
        return SamplingParams(**values)
    except ValueError as error:
        field, _, rest = str(error).partition(": expected ")
        expected, _, got = rest.partition(", got ")
        raise BadField(f"meta.sampling.{field}", expected, got) from None


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    tokens = fields.names()
    for token in tokens:
        if _TOKEN_ID.fullmatch(token) is None:
            raise BadField("meta.sampling.logit_bias", "token ids as keys", token)
    return tuple((int(token), fields.number(token)) for token in tokens)


_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_DEFAULTS = SamplingParams()
_INTEGERS = ("top_k", "seed", "logprobs", "prompt_length", "banned_until")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
