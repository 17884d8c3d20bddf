"""From a model directory and a range of layers to a shard that has tried itself out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from meshnet.core.vocabulary import (
    Capabilities,
    KVBytes,
    LayerRange,
    MeshnetError,
    ModelError,
    ModelId,
    ShardDescription,
    WeightFormat,
)
from meshnet.engine.activations import WIRE_DTYPES
from meshnet.engine.attention_choice import choose_attention
from meshnet.engine.checkpoint import Checkpoint, LoadedLayers, Tensors, check_numbers, read_config
from meshnet.engine.formats import Form, format_for, load_in_format
from meshnet.engine.forward import LayerRunner
from meshnet.engine.grammar import Grammars
from meshnet.engine.heap import give_back, is_out_of_memory
from meshnet.engine.identity import (
    arithmetic,
    check_separable,
    context_length,
    fingerprint,
    inseparable_layers,
)
from meshnet.engine.lean_choice import lean_runner
from meshnet.engine.moving import can_move
from meshnet.engine.quantising import weight_bytes
from meshnet.engine.random_tensors import RandomTensors
from meshnet.engine.rotary import RotaryLimit, rotary_limit
from meshnet.engine.runner import Runner
from meshnet.engine.selftest import CLOSENESS, Findings, self_test
from meshnet.engine.shard import Report, TorchModelShard
from meshnet.engine.single_texts import SingleTexts
from meshnet.engine.text import vocabulary_of


def layers_total(path: Path) -> int:
    """How many layers the model of a directory has. Raises ModelError."""
    return int(read_config(path).get_text_config(decoder=True).num_hidden_layers)


def load_shard(
    path: Path,
    layers: LayerRange,
    *,
    model: ModelId | None = None,
    weights: WeightFormat | None = None,
    device: str = "cpu",
    fast_prefill: bool = False,
    report: Report = lambda sentence: None,
    token_text: Callable[[int], str] | None = None,
) -> TorchModelShard:
    """Load `layers` of the model in `path`, reading their tensors only, and test them.

    Args:
        model: the id it is served under; the directory's name if left out.
        weights: how they are held; bf16 on CUDA and int8 on the CPU if left out. Activations are
            of the same type, and fp32 where weights are int8.
        fast_prefill: attend from several positions by torch's kernels, which are faster on long
            prompts, and give up that results do not depend on how the work was cut.
        report: told, in a sentence, what the layers turn out not to do.
        token_text: for peers that predate token ids; from the tail's tokenizer if left out.

    Raises:
        ModelError: the directory is no model, is damaged, or cannot be cut there.
    """
    where = _device(device)
    with _as_model_errors(path, layers):
        config = read_config(path)
        check_separable(layers, inseparable_layers(config))
        # Before the weights: what reading a tokenizer takes is free again when they come.
        texts = token_text or _token_texts(path, layers, config, report)
        give_back()
        checkpoint = Checkpoint(path)
    grammars = None if texts is _no_text else Grammars(lambda: vocabulary_of(path))
    return _made(
        path,
        checkpoint,
        config,
        layers,
        model=model or ModelId(path.name),
        weights=weights or format_for(where),
        device=where,
        fast_prefill=fast_prefill,
        report=report,
        token_text=texts,
        grammars=grammars,
    )


def random_shard(
    config: Any, layers: LayerRange, *, weights: WeightFormat | None = None, device: str = "cpu"
) -> TorchModelShard:
    """Make what `load_shard` would of a model of this configuration, with random weights.

    Raises ModelError: the model cannot be cut there, or such weights yield no numbers.
    """
    where = _device(device)
    check_separable(layers, inseparable_layers(config))
    return _made(
        Path("random weights"),
        RandomTensors.of(config),
        config,
        layers,
        model=ModelId("random"),
        weights=weights or format_for(where),
        device=where,
        fast_prefill=False,
        report=lambda sentence: None,
        token_text=_no_text,
    )


def _made(
    path: Path,
    tensors: Tensors,
    config: Any,
    layers: LayerRange,
    *,
    model: ModelId,
    weights: WeightFormat,
    device: torch.device,
    fast_prefill: bool,
    report: Report,
    token_text: Callable[[int], str],
    grammars: Grammars | None = None,
) -> TorchModelShard:
    with _as_model_errors(path, layers):
        loaded, form = load_in_format(path, tensors, config, layers, weights, device, report)
        limit = rotary_limit(loaded.model.config.get_text_config(decoder=True))
        try:
            runner, findings = _tested(loaded.model, form, limit, fast_prefill, report)
        except ModelError:
            check_numbers(path, loaded.model)  # then that is why
            raise
        return TorchModelShard(
            runner,
            _description(path, model, runner, loaded, form, findings, grammars),
            rotary=limit,
            continues=findings.multi_token,
            report=report,
            token_text=token_text,
            grammars=grammars,
        )


@contextmanager
def _as_model_errors(path: Path, layers: LayerRange) -> Iterator[None]:
    """Raise ModelError for whatever libraries make of a model, and for a lack of memory."""
    try:
        yield
    except MeshnetError:
        raise
    except Exception as error:
        why = "not enough memory" if is_out_of_memory(error) else type(error).__name__
        raise ModelError(f"{path}: cannot load layers {layers}: {why}: {error}") from error


def _tested(
    model: Any, form: Form, limit: RotaryLimit | None, fast_prefill: bool, report: Report
) -> tuple[Runner, Findings]:
    """Choose what runs the layers, and how they attend, and find out what they can do so."""
    context = context_length(model.config)
    positions_max = min(context, limit.length if limit else context)
    generic = LayerRunner(model, form.dtype)
    closeness = CLOSENESS[form.weights]
    attention = choose_attention(
        generic, positions_max, closeness=closeness, fast_prefill=fast_prefill
    )
    give_back()  # what the trials of attention took
    lean = None
    if attention.ours is not None and limit is None:
        lean = lean_runner(model, generic, attention.ours, context, compiled=closeness)
    runner = lean or generic
    give_back()  # what the joined weights were made from
    findings = self_test(runner, positions_max, closeness, context=context)
    # Compiled steps attend in a way of their own, which is exact and as fast.
    chosen = attention.name in runner.attention
    for note in (*(attention.notes if chosen else ()), *findings.notes):
        report(note)
    exact = findings.exact and (attention.exact or not chosen) and form.steady
    return runner, replace(findings, exact=exact)


def _description(
    path: Path,
    model: ModelId,
    runner: Runner,
    loaded: LoadedLayers,
    form: Form,
    findings: Findings,
    grammars: Grammars | None,
) -> ShardDescription:
    config = loaded.model.config
    return ShardDescription(
        model=model,
        fingerprint=fingerprint(
            path, config, loaded.model.meshnet_layers.whole_shapes, loaded.checkpoint_names
        ),
        layers=runner.held,
        layers_total=runner.total,
        dtype=WIRE_DTYPES[runner.dtype],
        hidden_size=runner.hidden_size,
        vocab_size=runner.vocab_size,
        context_length=context_length(config),
        capabilities=_capabilities(config, runner, form, findings, grammars),
        kv_bytes=_session_bytes(findings, runner),
        weight_bytes=weight_bytes(loaded.model),
        bytes_read=loaded.bytes_read,
        arithmetic=arithmetic(form, runner.attention, runner.device),
        inseparable=inseparable_layers(config),
        weights=form.weights.value,
        operators=form.operators,
    )


def _capabilities(
    config: Any, runner: Runner, form: Form, findings: Findings, grammars: Grammars | None
) -> Capabilities:
    """A prefill in chunks could not cross the point where rotary factors change."""
    changing = rotary_limit(config.get_text_config(decoder=True)) is not None
    return Capabilities(
        kv_cache=findings.kv_cache,
        multi_token=findings.multi_token and not changing,
        truncate=findings.truncate,
        marks=0 if changing else findings.marks,
        batch=findings.batch,
        exact=findings.exact and form.steady,
        forced=True,
        grammar=grammars is not None,
        moves=findings.kv_cache and not changing and can_move(runner.new_cache(runner.held)),
    )


def _session_bytes(findings: Findings, runner: Runner) -> KVBytes:
    """Add what leaves the last layer, where it is one row of hidden states a position."""
    rows = not runner.leading_axes and not runner.per_layer_width
    if not findings.kv_cache or not rows or runner.held.stop == runner.total:
        return findings.kv_bytes
    leaving = runner.hidden_size * runner.dtype.itemsize
    promised = findings.kv_bytes
    return replace(promised, per_token=promised.per_token + leaving, spare=leaving)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r}: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r}: expected cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r}: torch finds no CUDA device here")
    return device


def _token_texts(
    path: Path, layers: LayerRange, config: Any, report: Report
) -> Callable[[int], str]:
    """Return the text of single tokens, read now so that no first token waits for it.

    Only peers that predate token ids need it, of a tail: one without a tokenizer gives no text.
    """
    from transformers import AutoTokenizer

    if layers.stop < config.get_text_config(decoder=True).num_hidden_layers:
        return _no_text
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        report(f"no text for peers that predate token ids: no tokenizer in {path}: {error}")
        return _no_text
    # Not the tokenizer itself: that takes a hundred bytes where a text takes one.
    known = set(tokenizer.get_vocab().values())
    ids = range(max(known, default=-1) + 1)
    return SingleTexts(str(tokenizer.decode([at])) if at in known else "" for at in ids)


def _no_text(token_id: int) -> str:
    return ""
