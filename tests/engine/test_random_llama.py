"""Models drawn from a seed: the same bytes everywhere, and a model like any other."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from meshnet.core.vocabulary import ModelId
from meshnet.engine.models.catalogue import RANDOM_MODELS, RandomModel
from meshnet.engine.models.progress import NoProgress
from meshnet.engine.models.pull import drawn
from meshnet.engine.text import HFText

EXPECTED = "28d0dc152fd5c392e1b0626200692c482c77e7f5f47c935143005dadae8ae264"
TINY = RandomModel(
    name="random-tiny",
    seed=0,
    layers=2,
    hidden_size=64,
    inner_size=96,
    heads=4,
    kv_heads=2,
    vocab_size=512,
    context_length=256,
)


def weights_sha256(directory: Path) -> str:
    tensors: dict[str, torch.Tensor] = {}
    for path in directory.glob("*.safetensors"):
        tensors |= load_file(path)
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def test_a_seed_always_draws_the_same_weights(tmp_path: Path) -> None:
    """The hash is fixed, because figures of years may be compared."""
    model = drawn(TINY, tmp_path, NoProgress())

    assert weights_sha256(model.path) == EXPECTED


def test_another_seed_draws_others_and_replaces_the_cached_ones(tmp_path: Path) -> None:
    first = weights_sha256(drawn(TINY, tmp_path, NoProgress()).path)

    other = drawn(dataclasses.replace(TINY, seed=1), tmp_path, NoProgress())

    assert weights_sha256(other.path) != first


def test_no_two_matrices_are_alike(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(drawn(TINY, tmp_path, NoProgress()).path)

    matrices = [weight for weight in model.parameters() if weight.dim() > 1]

    starts = {tuple(matrix.flatten()[:32].tolist()) for matrix in matrices}
    assert len(starts) == len(matrices)
    assert sum(matrix.numel() for matrix in matrices) == TINY.parameters


def test_logits_are_spread_and_depend_on_the_context(tmp_path: Path) -> None:
    path = drawn(TINY, tmp_path, NoProgress()).path
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    with torch.no_grad():
        one, other = (model(torch.tensor([[first, 7, 8, 9]])).logits[0, -1] for first in (5, 6))

    assert 0.1 < float(one.std()) < 10
    assert float((one - other).abs().max()) > 1e-4


def test_every_text_has_ids_and_every_id_a_text(tmp_path: Path) -> None:
    text = HFText.load(drawn(TINY, tmp_path, NoProgress()).path, ModelId("tiny"))

    for line in ("Grüße aus Köln, 你好 😀", "def f(x):\n\treturn x", ""):
        assert text.decode(text.encode(line, special=False), skip_special=True) == line
    assert text.vocab_size == TINY.vocab_size
    assert all(text.token_bytes(number) for number in range(3, TINY.vocab_size))


def test_the_large_one_has_the_size_its_name_says() -> None:
    model = RANDOM_MODELS["random-1.1b"]

    assert round(model.parameters / 1e9, 1) == 1.1
