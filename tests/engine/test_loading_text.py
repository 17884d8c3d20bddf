"""What a tail says of its tokens to peers that predate token ids."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.models import byte_level_tokenizer

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.loading import load_shard


def test_a_tail_tells_the_text_of_its_tokens(tiny_model_dir: Path):
    shard = load_shard(tiny_model_dir, LayerRange(3, 4))

    tokenizer = byte_level_tokenizer()
    for token_id in (5, 100, 400):
        assert shard.text_of(token_id) == tokenizer.decode([token_id])


def test_a_tail_without_a_tokenizer_serves_ids_and_says_that_it_has_no_text(
    tiny_model_dir: Path, tmp_path: Path
):
    bare = shutil.copytree(
        tiny_model_dir, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*", "chat*")
    )
    told: list[str] = []

    shard = load_shard(bare, LayerRange(3, 4), report=told.append)

    assert shard.text_of(5) == ""
    assert any("no tokenizer" in sentence for sentence in told)
