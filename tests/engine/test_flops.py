"""The counter behind `meshnet bench flatness`."""

from pathlib import Path

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.flops import decode_flops
from meshnet.engine.loading import load_shard


def test_a_decode_costs_the_same_at_every_position_attention_apart(tiny_model_dir: Path):
    shards = [load_shard(tiny_model_dir, LayerRange(*held)) for held in ((0, 2), (2, 4))]
    tokens = [5 + at % 300 for at in range(200)]

    early, late = decode_flops(shards, tokens[:20]), decode_flops(shards, tokens)

    assert [cost.outside_attention for cost in early] == [cost.outside_attention for cost in late]
    assert all(cost.outside_attention > 0 for cost in early)
    assert [cost.attention * 10 for cost in early] == [cost.attention for cost in late]
