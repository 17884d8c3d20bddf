"""The models that storms are let loose on, how each is cut over nodes, and what it is asked.

Nodes overlap so that any one of them may be away: `d` and `e` share the layers and are the
shortest route; without one of them its span is run by two of `a`, `b` and `c`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.chats import Ask
from tests.families import save_family
from tests.models import BOS, CORPUS, EOS, SPECIALS, byte_level_tokenizer, tiny_llama

LAYERS = 6
CONTEXT = 512
SHORT = (
    "Tell me of the fox and the lazy dog.",
    "What is the capital of France?",
    "Who holds which layers, and since when?",
    "1 2 3 4 5 6 7 8 9 10",
    "Où est la bibliothèque?",
)
LONG = " ".join(CORPUS)


@dataclass(frozen=True, slots=True)
class Subject:
    """One model under test."""

    name: str
    weights: str
    make: Callable[[Path], Path]
    """Write the model below a directory that is empty, or find it; return where it is."""
    nodes: Mapping[str, str]
    asks: tuple[Ask, ...]
    squeeze_bytes: int
    """KV bytes in which some chats fit, and the crowd does not."""


def asks(tokens: int) -> tuple[Ask, ...]:
    """Chats of up to `tokens` tokens: short and long prompts, greedy and drawn."""
    return (
        *(Ask(prompt, tokens - 7 * place) for place, prompt in enumerate(SHORT)),
        Ask(LONG, tokens // 2),
        Ask(SHORT[0], tokens // 2, temperature=0.9, seed=7, top_k=8),
        Ask(LONG, tokens // 3, temperature=0.7, seed=11, top_k=8),
    )


def cut(layers: int) -> dict[str, str]:
    """Return the nodes' layers: thirds, and two halves over them."""
    third, half = layers // 3, layers // 2
    return {
        "a": f"0-{third}",
        "b": f"{third}-{2 * third}",
        "c": f"{2 * third}-{layers}",
        "d": f"0-{half}",
        "e": f"{half}-{layers}",
    }


def four_nodes(layers: int) -> dict[str, str]:
    """Return layers of four nodes, each of which may be away, and all routes short."""
    third, half = layers // 3, layers // 2
    return {
        "a": f"0-{third}",
        "b": f"{third}-{layers}",
        "d": f"0-{half}",
        "e": f"{half}-{layers}",
    }


def tiny(path: Path) -> Path:
    return tiny_llama(path / "tiny", layers=LAYERS, context_length=CONTEXT)


def tiny_hybrid(path: Path) -> Path:
    """Four convolutional layers and two of attention: states that cannot be shortened."""
    target = path / "hybrid"
    save_family(
        target,
        "lfm2",
        vocab_size=512,
        max_position_embeddings=CONTEXT,
        bos_token_id=SPECIALS.index(BOS),
        eos_token_id=SPECIALS.index(EOS),
        pad_token_id=None,
    )
    byte_level_tokenizer().save_pretrained(target)
    return target


def smollm2(path: Path) -> Path:
    """Found in the user's cache, or fetched into it: `path` is not needed."""
    from meshnet.engine.models.pull import NoProgress, default_cache_dir, resolve

    return resolve("smollm2-135m", default_cache_dir(), NoProgress()).path


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("tiny-fp32", "fp32", tiny, cut(LAYERS), asks(120), 2**20),
        Subject("tiny-int8", "int8", tiny, cut(LAYERS), asks(120), 2**20),
        Subject("hybrid-fp32", "fp32", tiny_hybrid, cut(LAYERS), asks(120), 2**20),
        Subject("smollm2-fp32", "fp32", smollm2, cut(30), asks(60), 48 * 2**20),
        Subject("smollm2-int8", "int8", smollm2, cut(30), asks(60), 48 * 2**20),
    )
}
