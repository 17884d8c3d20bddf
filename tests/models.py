"""Tiny random models in Hugging Face layout, made in a second, for every test that needs one.

The weights are seeded, so every process that makes the same model makes the same bytes. They are
wider than a fresh initialisation: greedy text then varies and depends on the whole context, so a
lost or misplaced cache entry changes the ids. Llama's shape is used because its template writes
BOS and its tokenizer adds BOS to raw text, which is where double-BOS bugs live.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS, TURN_START, TURN_END = "<s>", "</s>", "<|im_start|>", "<|im_end|>"
SPECIALS = (BOS, EOS, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = (
    "The quick brown fox jumps over the lazy dog. Every machine holds a range of layers.",
    "A token travels from the first layer to the last one, and the answer travels back.",
    "def add(left: int, right: int) -> int:\n    return left + right\n",
    "Grüße aus Köln! Ça va très bien. ¿Dónde está la biblioteca? Где находится сервер?",
    "你好，世界。今天天气很好。こんにちは世界。안녕하세요 세계.",
    "😀 😃 🎉 👩\u200d👩\u200d👧 🇩🇪 numbers: 0 1 2 3 4 5 6 7 8 9 10 100 1000 3.14159",
    "What is the capital of France? The capital of France is Paris.",
    "She said: \"well, that's it then\" ; and left . They did n't mind .",
)


def byte_level_tokenizer(vocab_size: int = 512) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the corpus above; ids 0 to 3 are `SPECIALS`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=TURN_END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tiny_llama(
    path: Path,
    *,
    layers: int = 4,
    context_length: int = 512,
    seed: int = 0,
    shard_size: str = "64KB",
) -> Path:
    """Write a random Llama (hidden 64, vocabulary 512, fp32) with its tokenizer to `path`.

    The tokenizer's EOS is `<|im_end|>`, the configuration's is `</s>`: both must stop. The weights
    are spread over several safetensors files with an index.
    """
    tokenizer = byte_level_tokenizer()
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context_length,
        bos_token_id=SPECIALS.index(BOS),
        eos_token_id=SPECIALS.index(EOS),
        pad_token_id=None,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = LlamaForCausalLM(config).eval()
    widen(model, seed)
    model.save_pretrained(path, max_shard_size=shard_size)
    tokenizer.save_pretrained(path)
    return path


def widen(model: torch.nn.Module, seed: int) -> None:
    """Redraw every matrix with a seeded generator, wide enough for attention to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                fan_in = weight.shape[-1]
                weight.normal_(0.0, 1.6 / fan_in**0.5, generator=generator)
