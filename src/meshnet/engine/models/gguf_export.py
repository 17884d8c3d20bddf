"""Write a Llama in Hugging Face layout as a GGUF file, so that other engines run the same weights.

Only what the format can say exactly of this shape is written: `model_type` llama with plain rotary
frequencies and no biases; all else is refused. Q8_0 is what llama.cpp's own q8_0 files are: every
matrix in blocks of 32, embedding and head included, norms in float32.

The tokenizer's tokens, kinds and merges are written, and which of the format's named splitting
rules it follows where that is known. Where it is not, the other engine would split text otherwise:
give it token ids.

Source: llama.cpp's conversion/llama.py; the row order of q and k is its `permute`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf import quantize as quantized
from safetensors import safe_open

from meshnet.core.vocabulary import ModelError
from meshnet.engine.models.directory import built_once
from meshnet.engine.models.progress import Progress

FILE_NAME = "model.gguf"
KINDS = {
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
}
_LAYOUT = 1
"""Rises when files of older versions must be written again."""
_CHUNK_ELEMENTS = 1 << 21
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def exported(source: Path, name: str, kind: str, cache_dir: Path, progress: Progress) -> Path:
    """Return the model in `source` as a GGUF file, written unless it is in the cache.

    Raises:
        ModelError: not a Llama of the plain shape, or no room.
    """
    files = [*sorted(source.glob("*.safetensors")), source / "config.json"]
    states = [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    mark = hashlib.blake2b(f"{source} {states} {_LAYOUT}".encode(), digest_size=16).hexdigest()
    key = hashlib.blake2b(str(source).encode(), digest_size=6).hexdigest()
    target = cache_dir / "gguf" / f"{Path(name).name}-{kind}-{key}"
    needed = 2 * sum(file.stat().st_size for file in files)

    def build(folder: Path) -> None:
        export_gguf(source, folder / FILE_NAME, name, kind, progress)

    return built_once(target, mark, needed, build) / FILE_NAME


def export_gguf(source: Path, target: Path, name: str, kind: str, progress: Progress) -> None:
    """Write the model in the directory `source` to the file `target`. Raises ModelError."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    _check(source, config)
    storage, file_type = KINDS[kind]
    tensors = _Tensors(source, config)
    entries = [_Entry.of(*named, storage) for named in tensors.shapes()]
    writer = GGUFWriter(target, "llama")
    _add_shape(writer, config, name, file_type)
    _add_tokenizer(writer, source, config["vocab_size"])
    for entry in entries:
        writer.add_tensor_info(
            entry.name, entry.shape, np.dtype(np.float32), entry.nbytes, raw_dtype=entry.kind
        )
    progress.start(f"Writing {name} as GGUF {kind}", sum(entry.nbytes for entry in entries))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            writer.write_tensor_data(_stored(tensors.values(entry.name), entry.kind))
            progress.advance(entry.nbytes)
    finally:
        writer.close()
        progress.done()


def _check(source: Path, config: dict[str, Any]) -> None:
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    plain = rotary.get("rope_type", rotary.get("type", "default")) == "default"
    biases = config.get("attention_bias") or config.get("mlp_bias")
    if config.get("model_type") != "llama" or not plain or biases:
        raise ModelError(
            f"{source}: only a plain Llama can be written as GGUF (no biases, no scaled rotary "
            f"frequencies), this is {config.get('model_type')!r}"
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor of the file to be: vectors stay float32."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], storage: GGMLQuantizationType) -> _Entry:
        return cls(name, shape, storage if len(shape) > 1 else GGMLQuantizationType.F32)

    @property
    def nbytes(self) -> int:
        elements, size = GGML_QUANT_SIZES[self.kind]
        if self.shape[-1] % elements:
            raise ModelError(f"{self.name}: rows of {self.shape[-1]} do not fit {self.kind.name}")
        return math.prod(self.shape) // int(elements) * int(size)


class _Tensors:
    """The tensors of a directory by their GGUF names, read when asked for."""

    def __init__(self, source: Path, config: dict[str, Any]) -> None:
        self._heads = {
            "attn_q": config["num_attention_heads"],
            "attn_k": config.get("num_key_value_heads") or config["num_attention_heads"],
        }
        self._names = dict(_gguf_names(config))
        self._files: dict[str, Path] = {}
        for path in sorted(source.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)
        missing = [name for name in self._names.values() if name not in self._files]
        if missing:
            raise ModelError(f"{source}: lacks {missing[0]} and {len(missing) - 1} more tensors")

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, stored in self._names.items():
            with safe_open(self._files[stored], framework="pt") as file:
                yield name, tuple(file.get_slice(stored).get_shape())

    def values(self, name: str) -> np.ndarray:
        stored = self._names[name]
        with safe_open(self._files[stored], framework="pt") as file:
            values: np.ndarray = file.get_tensor(stored).float().numpy()
        for part, heads in self._heads.items():
            if f".{part}." in name:
                return _interleaved(values, heads)
        return values


def _gguf_names(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of GGUF name and Hugging Face name, in file order."""
    yield "token_embd.weight", "model.embed_tokens.weight"
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in _LAYER_NAMES.items():
            yield f"blk.{layer}.{ours}.weight", f"model.layers.{layer}.{theirs}.weight"
    yield "output_norm.weight", "model.norm.weight"
    if not config.get("tie_word_embeddings"):
        yield "output.weight", "lm_head.weight"


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows from rotary halves, as transformers rotates, to rotary pairs, as ggml does."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, -1)


def _stored(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Quantise a few rows at a time: temporaries stay small beside the result."""
    if values.ndim == 1:
        return values
    rows = max(1, _CHUNK_ELEMENTS // values.shape[-1])
    parts = [quantized(values[at : at + rows], kind) for at in range(0, len(values), rows)]
    return np.concatenate(parts)


def _add_shape(
    writer: GGUFWriter, config: dict[str, Any], name: str, file_type: LlamaFileType
) -> None:
    heads = config["num_attention_heads"]
    rotary = config.get("rope_parameters") or {}
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(rotary.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if dimension := config.get("head_dim"):
        writer.add_key_length(dimension)
        writer.add_value_length(dimension)


def _add_tokenizer(writer: GGUFWriter, source: Path, vocab_size: int) -> None:
    state = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    model = state["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise ModelError(f"{source}: only a byte-level BPE tokenizer can be written as GGUF")
    # Ids that no token has still need a row each.
    tokens = [f"[unused {number}]" for number in range(vocab_size)]
    kinds = [TokenType.UNUSED] * vocab_size
    for token, number in model["vocab"].items():
        tokens[number], kinds[number] = token, TokenType.NORMAL
    for added in state["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    merges = model["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_splitting_rule(state["pre_tokenizer"]))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    for role, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        if settings.get(f"{role}_token") in tokens:
            add(tokens.index(settings[f"{role}_token"]))
    writer.add_add_bos_token(_begins_with_special(state.get("post_processor") or {}))


def _begins_with_special(processor: dict[str, Any]) -> bool:
    template = processor.get("single") or [{}]
    return "SpecialToken" in template[0]


def _splitting_rule(splitter: dict[str, Any] | None) -> str:
    parts = (splitter or {}).get("pretokenizers") or [splitter or {}]
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    return "smollm" if kinds == ["Digits", "ByteLevel"] else "default"
