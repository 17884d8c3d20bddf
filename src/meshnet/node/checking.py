"""Whether a request fits the shard it asks for, decided before anything is allocated.

    request ──▶ layers held? ──▶ activation or ids? ──▶ sizes, ids, positions ──▶ ShardStep

Absence has a meaning: no layers is all that the shard holds, no shape is [1, T, hidden] of the
shard's dtype, no sampling is greedy. What is present and wrong raises BadField. Axes before those
three, further tensors and the conversion of another dtype are the shard's to judge.
"""

from __future__ import annotations

from meshnet.core.protocol.codec import activation_of
from meshnet.core.protocol.messages import ForwardRequest, Mode
from meshnet.core.vocabulary import (
    Activation,
    BadField,
    LayerRange,
    SamplingParams,
    ShardDescription,
    ShardStep,
    WrongShard,
)

GREEDY = SamplingParams()


def check_fingerprint(asked: str | None, held: ShardDescription) -> None:
    """Raise WrongShard if the step is meant for other weights than these."""
    if asked not in (None, held.fingerprint):
        raise WrongShard(f"{held.model} of fingerprint {asked}: this node holds {held.fingerprint}")


def layers_of(asked: LayerRange | None, held: ShardDescription) -> LayerRange:
    """Return the layers to run. Raises WrongShard if they are not here or may not be cut out."""
    if asked is None:
        return held.layers
    if not held.layers.holds(asked):
        raise WrongShard(f"layers {asked} of {held.model}: this node holds {held.layers}")
    for run in held.inseparable:
        overlaps = run.start < asked.stop and asked.start < run.stop
        if overlaps and not asked.holds(run):
            raise WrongShard(f"layers {asked} of {held.model}: {run} cannot be cut apart")
    return asked


def new_positions(
    request: ForwardRequest, layers: LayerRange, held: ShardDescription
) -> tuple[Activation | None, int]:
    """Return what enters `layers` and how many positions it is. Raises BadField."""
    if layers.start == 0:
        activation, length = None, _embedded_length(request)
    else:
        activation = _activation(request, held)
        length = activation.hidden.shape[-2]
        if request.tokens and len(request.tokens) != length:
            raise BadField("tokens", f"{length} ids, one for each position", len(request.tokens))
    _check_tokens(request.tokens, held.vocab_size)
    _check_positions(request, length, held)
    return activation, length


def step_of(
    request: ForwardRequest,
    layers: LayerRange,
    activation: Activation | None,
    length: int,
    sampling: SamplingParams | None,
) -> ShardStep:
    """Return the step that `request` asks of a shard, of checked parts; absent: greedily."""
    return ShardStep(
        layers=layers,
        past_length=request.past_length,
        length=length,
        tokens=request.tokens,
        activation=activation,
        sampling=GREEDY if sampling is None else sampling,
        want_token=request.want_token,
        drafts=request.drafts,
    )


def _embedded_length(request: ForwardRequest) -> int:
    if request.activation is not None or request.raw:
        raise BadField("body", "token ids only, for layers from 0", "an activation")
    if not request.tokens:
        raise BadField("tokens", "token ids, for layers from 0", request.tokens)
    return len(request.tokens)


def _activation(request: ForwardRequest, held: ShardDescription) -> Activation:
    activation = activation_of(request, hidden_size=held.hidden_size, dtype=held.dtype)
    if activation is None:
        raise BadField("body", "an activation, for layers not from 0", "none")
    shape = activation.hidden.shape
    if shape[-3:-2] != (1,) or shape[-1] != held.hidden_size:
        raise BadField("shape", f"[..., 1, T, {held.hidden_size}]", list(shape))
    return activation


def _check_tokens(tokens: tuple[int, ...], vocab_size: int) -> None:
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise BadField("tokens", f"ids from 0 to {vocab_size - 1}", (min(tokens), max(tokens)))


def _check_positions(request: ForwardRequest, length: int, held: ShardDescription) -> None:
    if request.mode is Mode.DECODE:
        if length > 1 and not held.capabilities.multi_token:
            raise BadField("shape", "one position in a decode of this shard", length)
    elif request.past_length != 0:
        raise BadField("past length", "0 outside a decode", request.past_length)
    stop = request.past_length + length
    if request.past_length < 0 or stop > held.context_length:
        raise BadField("positions", f"0 to {held.context_length}", (request.past_length, stop))
