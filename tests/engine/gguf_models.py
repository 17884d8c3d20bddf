"""Tiny GGUF files with random weights, written with the gguf library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from tests.models import BOS, CHAT_TEMPLATE, SPECIALS, TURN_END, byte_level_tokenizer

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 3
KV = HIDDEN // HEADS * KV_HEADS
F32, F16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16
Q8_0, Q5_0 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q5_0


def llama_tensors(vocab_size: int) -> dict[str, tuple[tuple[int, ...], GGMLQuantizationType]]:
    """Names, shapes and storage of a tied Llama; several kinds of storage on purpose."""
    tensors: dict[str, tuple[tuple[int, ...], GGMLQuantizationType]] = {
        "token_embd.weight": ((vocab_size, HIDDEN), Q8_0)
    }
    for layer in range(LAYERS):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": ((HIDDEN,), F32),
            f"blk.{layer}.attn_q.weight": ((HIDDEN, HIDDEN), Q8_0),
            f"blk.{layer}.attn_k.weight": ((KV, HIDDEN), Q5_0),
            f"blk.{layer}.attn_v.weight": ((KV, HIDDEN), F16),
            f"blk.{layer}.attn_output.weight": ((HIDDEN, HIDDEN), Q8_0),
            f"blk.{layer}.ffn_norm.weight": ((HIDDEN,), F32),
            f"blk.{layer}.ffn_gate.weight": ((INNER, HIDDEN), F16),
            f"blk.{layer}.ffn_up.weight": ((INNER, HIDDEN), F32),
            f"blk.{layer}.ffn_down.weight": ((HIDDEN, INNER), Q5_0),
        }
    return tensors | {"output_norm.weight": ((HIDDEN,), F32)}


def write_llama(
    path: Path,
    *,
    architecture: str = "llama",
    without: str = "",
    extra: str = "",
    narrowed: str = "",
    seed: int = 0,
) -> Path:
    """Write a tiny Llama; `without`, `extra` and `narrowed` name a tensor to spoil it with."""
    tokenizer = byte_level_tokenizer()
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_tokenizer(writer, tokenizer.backend_tokenizer)
    tensors = llama_tensors(len(tokenizer))
    tensors.pop(without, None)
    if extra:
        tensors[extra] = ((HIDDEN,), F32)
    if narrowed:
        tensors[narrowed] = ((32, HIDDEN // 2), tensors[narrowed][1])
    generator = np.random.default_rng(seed)
    for name, (shape, kind) in tensors.items():
        values = generator.normal(0, 0.2, shape).astype(np.float32)
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, backend: object) -> None:
    state = json.loads(backend.to_str())  # type: ignore[attr-defined]
    vocabulary = state["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL if token in SPECIALS else TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(TURN_END))
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
