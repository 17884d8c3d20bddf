"""What the API promises and what shards accept is one number."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.families import LAYERS, family_config, save_family
from tests.models import byte_level_tokenizer

from meshnet.core.vocabulary import LayerRange, ModelId, SamplingParams, ShardStep
from meshnet.engine.checkpoint import read_config
from meshnet.engine.identity import context_length
from meshnet.engine.loading import load_shard
from meshnet.engine.text import HFText

FAMILIES = ["llama", "gpt2", "bloom", "mamba2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_api_promises_no_position_that_shards_refuse(tmp_path: Path, family: str):
    family_config(family).save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)

    promised = HFText.load(tmp_path, ModelId(family)).context_length

    assert promised <= context_length(read_config(tmp_path))


@pytest.mark.parametrize("family", ["bloom", "mamba2"])
def test_a_model_that_states_no_length_is_not_cut_off_at_one(tmp_path: Path, family: str):
    shard = load_shard(
        save_family(tmp_path, family), LayerRange(0, LAYERS), report=str, token_text=str
    )
    tokens = tuple(position % 90 for position in range(2100))
    whole = LayerRange(0, LAYERS)
    state = shard.new_state(whole)

    shard.run(ShardStep(whole, 0, 2100, tokens, None, SamplingParams()), state)

    assert state.length == 2100
