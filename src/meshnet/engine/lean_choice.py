"""Whether a model takes the short forward: told by its parts, then proven on random positions.

    parts not those of Llama's skeleton            -> transformers' own forward
    another answer in any trial                    -> transformers' own forward
    else weights are joined, layer by layer        -> the short forward

The trials run before anything is joined, so that both forwards read the same weights, and nothing
is held twice. One is at the last positions of the context, since some models treat far positions
in a way of their own (Ministral scales queries).

Invariants
    * with integer products the answers are the same bits; in floating point they differ by less
      than `TOLERANCES`, relative to the largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from meshnet.engine.heap import raise_if_out_of_memory
from meshnet.engine.interface import GridAttention
from meshnet.engine.lean import LeanRunner
from meshnet.engine.linear import Int8Linear
from meshnet.engine.runner import Passing, Runner, Segment, positions_of
from meshnet.engine.selftest import Closeness, distance, random_input

POSITIONS = 10
PIECES = ((0, 5), (5, 9), (9, 10))
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

_LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_SCALES = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale")
"""Of what enters, passes or leaves a model (Granite, Cohere); Llama's have none."""


def lean_runner(
    model: Any,
    generic: Runner,
    attention: GridAttention,
    context_length: int,
    *,
    compiled: Closeness | None = None,
) -> Runner | None:
    """Return the short forward of a trimmed model if it is one; `generic` is unusable then.

    Args:
        attention: what `generic` attends by.
        compiled: how close compiled loops must come; None is to do without them.
    """
    if generic.leading_axes or generic.per_layer_width or not _has_skeleton(model):
        return None
    try:
        exact = _is_exact(model)
        lean = LeanRunner(model, generic, attention, exact=exact)
        agrees = _agree(generic, lean, context_length, exact=exact)
    # What the skeleton of a model does not tell shows itself as any of these.
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise_if_out_of_memory(error)
        return None
    if not agrees:
        return None
    lean.join()
    if exact and compiled is not None:
        return _compiled(lean, context_length, compiled) or lean
    return lean


@torch.inference_mode()
def _compiled(lean: LeanRunner, context_length: int, closeness: Closeness) -> Runner | None:
    """Return the compiled form of the forward if there is one and it answers alike."""
    try:
        from meshnet.engine.compiled.runner import compiled_runner
    # numba is not there, or not for this processor.
    except (ImportError, OSError):
        return None
    compiled = compiled_runner(lean)
    if compiled is None:
        return None
    pairs = zip(_answers(compiled, context_length), _answers(lean, context_length), strict=True)
    agrees = all(_distance(*pair) <= closeness.attention for pair in pairs)
    return compiled if agrees else None


def _has_skeleton(model: Any) -> bool:
    # Of the whole model, not of the layers held: its shards are to compute alike.
    turned = getattr(model.config, "no_rope_layers", None) or ()
    scaled = any(getattr(model.config, name, 1.0) not in (None, 1.0) for name in _SCALES)
    plain = model.meshnet_layers.outputs == 0 and all(turned) and not scaled
    return plain and all(map(_is_llamas, _layers(model)))


def _layers(model: Any) -> list[nn.Module]:
    layers = model.meshnet_layers
    return [layers.layer(index) for index in range(layers.held.start, layers.held.stop)]


def _is_llamas(layer: nn.Module) -> bool:
    if _names(layer) != _LAYER:
        return False
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    if _names(mlp) != _MLP or _names(attention) - _HEAD_NORMS != _ATTENTION:
        return False
    bare = not any(list(module.parameters(recurse=False)) for module in (layer, attention, mlp))
    return bare and len(_names(attention) & _HEAD_NORMS) != 1


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


@torch.inference_mode()
def _agree(generic: Runner, lean: Runner, context_length: int, *, exact: bool) -> bool:
    same = _same_bits if exact else _close
    expected = _answers(generic, context_length)
    return all(same(*pair) for pair in zip(_answers(lean, context_length), expected, strict=True))


def _is_exact(model: Any) -> bool:
    linears = [
        module
        for layer in _layers(model)
        for name, module in layer.named_modules()
        if name.endswith("_proj")
    ]
    return all(isinstance(module, Int8Linear) and module.product.exact for module in linears)


def _same_bits(got: Tensor, expected: Tensor) -> bool:
    return torch.equal(got, expected)


def _close(got: Tensor, expected: Tensor) -> bool:
    scale = expected.abs().max().float()
    error = (got.float() - expected.float()).abs().max()
    return bool(error <= TOLERANCES[expected.dtype] * scale)


def _distance(got: Tensor, expected: Tensor) -> float:
    return distance(got.flatten(0, -2), expected.flatten(0, -2))


def _answers(runner: Runner, context_length: int) -> Iterator[Tensor]:
    """What leaves the layers in a prefill, in two steps upon it, and far off."""
    positions = min(POSITIONS, context_length)
    sequence = random_input(runner, positions)
    cache = runner.new_cache(runner.held)
    for start, stop in PIECES:
        if stop <= positions:
            yield _hidden(runner, sequence, Segment(start, stop - start, cache))
    yield _hidden(runner, sequence, Segment(context_length - positions, positions, None))
    if runner.held.stop == runner.total:
        segments = [Segment(0, positions, None)]
        yield runner.logits(sequence, runner.held, segments, list(range(positions)))


def _hidden(runner: Runner, sequence: Tensor | Passing, segment: Segment) -> Tensor:
    start = 0 if segment.cache is None else segment.past_length
    piece = positions_of(sequence, start, start + segment.length)
    return runner.passing(piece, runner.held, [segment]).hidden
