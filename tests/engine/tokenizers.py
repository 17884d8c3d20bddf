"""Tokenizers of both families, and a model directory around one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.models import BOS, CORPUS, EOS
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from meshnet.core.vocabulary import ModelId
from meshnet.engine.text import HFText


def sentencepiece_tokenizer(**settings: object) -> PreTrainedTokenizerFast:
    """Llama 2's shape: spaces are U+2581, unknown characters fall back to byte tokens."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    ascii_corpus = [line for line in CORPUS if line.isascii()]
    trainer = BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", BOS, EOS, *bytes_], show_progress=False
    )
    backend.train_from_iterator(ascii_corpus, trainer)
    state = json.loads(backend.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] in ("<unk>", BOS, EOS)
    state["added_tokens"] = [token for token in state["added_tokens"] if token["special"]]
    backend = Tokenizer.from_str(json.dumps(state))
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token=EOS, unk_token="<unk>", **settings
    )


def saved(tokenizer: PreTrainedTokenizerFast, path: Path, **config: object) -> HFText:
    tokenizer.save_pretrained(path)
    values = {"model_type": "llama", "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    (path / "config.json").write_text(json.dumps(values | config))
    return HFText.load(path, ModelId("m"))
