"""The oracle of the golden tests: the same model, unsplit, by transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def layer_count(model: Path) -> int:
    return int(AutoConfig.from_pretrained(model).get_text_config().num_hidden_layers)


def prompt_ids(model: Path, prompt: str) -> list[int]:
    """Ids of a one-turn chat by the model's own template; of the text where it has none."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    if not tokenizer.chat_template:
        return list(tokenizer(prompt).input_ids)
    turns = [{"role": "user", "content": prompt}]
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


@lru_cache(maxsize=1)
def unsplit_model(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def stop_ids(model: Path) -> list[int]:
    """What ends an answer, by tokenizer and configuration."""
    configured = AutoConfig.from_pretrained(model).get_text_config().eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    return sorted({AutoTokenizer.from_pretrained(model).eos_token_id, *listed} - {None})


def unsplit_greedy(
    model: Path, prompt: list[int], tokens: int, *, banned: Sequence[int] = ()
) -> list[int]:
    """`tokens` greedy ids in fp32, none of them `banned`; no id stops it."""
    ids = torch.tensor([prompt])
    out = unsplit_model(model).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        eos_token_id=None,
        pad_token_id=0,
        suppress_tokens=list(banned) or None,
    )
    return [int(token) for token in out[0, len(prompt) :]]
