"""Models of a useful size whose weights are drawn here, for measurements that need no download.

`random-1.1b` has TinyLlama's shape: 22 layers, hidden 2,048, 32 heads over 4 K/V heads, 32,000
tokens, untied. What it says means nothing; what it costs is what a trained model of it costs.

Weights: normal with standard deviation 0.02, as a fresh initialisation, rounded to bfloat16; norms
are 1. Each tensor has a generator of its own, numpy's PCG64 keyed by seed and place, so no
tensor depends on another.

Tokens: three specials, the 256 bytes, then pairs and triples of printable ASCII, so every text has
ids and nearly every id is whole characters; but a text takes more of them than a trained
tokenizer's. There is no chat template.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from meshnet.engine.models.catalogue import RandomModel
from meshnet.engine.models.layered_files import write_layered
from meshnet.engine.models.progress import Progress

SPECIALS = ("<unk>", "<s>", "</s>")
_CHUNK_ROWS = 2048


def make_random(model: RandomModel, target: Path, progress: Progress) -> None:
    """Write the model into the existing, empty directory `target`."""
    config = _config(model)
    progress.start(f"Drawing the weights of {model.name}", 2 * model.parameters)
    try:
        write_layered(_groups(model, progress), target)
    finally:
        progress.done()
    config.save_pretrained(target)
    GenerationConfig.from_model_config(config).save_pretrained(target)
    _tokenizer(model.vocab_size).save_pretrained(target)


def save_config(model: RandomModel, target: Path) -> None:
    """Write what tells the shape of the model, and nothing else."""
    _config(model).save_pretrained(target)


def _config(model: RandomModel) -> LlamaConfig:
    config = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.inner_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        max_position_embeddings=model.context_length,
        rms_norm_eps=1e-5,
        bos_token_id=SPECIALS.index("<s>"),
        eos_token_id=SPECIALS.index("</s>"),
        pad_token_id=None,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    config.architectures = ["LlamaForCausalLM"]
    return config


@dataclass(slots=True)
class _Draw:
    """Draws tensors one after the other; the n-th depends on the seed and n alone."""

    seed: int
    progress: Progress
    drawn: int = 0

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        generator = np.random.Generator(np.random.PCG64([self.seed, self.drawn]))
        self.drawn += 1
        result = torch.empty(rows, columns, dtype=torch.bfloat16)
        for start in range(0, rows, _CHUNK_ROWS):
            part = result[start : start + _CHUNK_ROWS]
            values = generator.standard_normal(part.shape, dtype=np.float32)
            part.copy_(torch.from_numpy(values * np.float32(0.02)))
        self.progress.advance(result.nbytes)
        return result


def _groups(model: RandomModel, progress: Progress) -> Iterator[dict[str, torch.Tensor]]:
    draw = _Draw(model.seed, progress)
    norm = torch.ones(model.hidden_size, dtype=torch.bfloat16)
    yield {"model.embed_tokens.weight": draw.matrix(model.vocab_size, model.hidden_size)}
    for number in range(model.layers):
        yield {
            f"model.layers.{number}.{name}.weight": draw.matrix(*shape)
            for name, shape in _layer_shapes(model).items()
        } | {
            f"model.layers.{number}.{name}.weight": norm.clone()
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    yield {
        "model.norm.weight": norm,
        "lm_head.weight": draw.matrix(model.vocab_size, model.hidden_size),
    }


def _layer_shapes(model: RandomModel) -> dict[str, tuple[int, int]]:
    hidden, inner = model.hidden_size, model.inner_size
    kv = hidden // model.heads * model.kv_heads
    return {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over specials, bytes, pairs and triples, the first `vocab_size` of them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges()[: max(0, vocab_size - len(SPECIALS) - len(letters))]
    tokens = [*SPECIALS, *letters, *(left + right for left, right in merges)][:vocab_size]
    bpe = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
    bpe.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", SPECIALS.index("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


def _merges() -> list[tuple[str, str]]:
    """Every pair of printable ASCII, then triples, those of spaces and small letters first."""
    plain = "Ġ" + string.ascii_lowercase + string.ascii_uppercase + string.digits
    letters = plain + string.punctuation
    pairs = [(left, right) for left in letters for right in letters]
    triples = sorted(
        itertools.product(range(len(letters)), repeat=3), key=lambda places: (max(places), places)
    )
    return pairs + [(letters[a] + letters[b], letters[c]) for a, b, c in triples]
