"""The counter behind `meshnet bench flatness`."""

from pathlib import Path

from meshnet.core.vocabulary import LayerRange, WeightFormat
from meshnet.engine.flops import decode_flops
from meshnet.engine.loading import load_shard


def test_a_decode_costs_the_same_at_every_position_attention_apart(tiny_model_dir: Path):
    """Attention reads whole cells of 256 positions: one at 20 and at 200, two at 300."""
    shards = [
        load_shard(tiny_model_dir, LayerRange(*held), weights=WeightFormat.FP32)
        for held in ((0, 2), (2, 4))
    ]
    tokens = [5 + at % 300 for at in range(300)]

    early, late, later = (decode_flops(shards, tokens[:length]) for length in (20, 200, 300))

    outside = [[cost.outside_attention for cost in costs] for costs in (early, late, later)]
    assert outside[0] == outside[1] == outside[2]
    assert all(cost > 0 for cost in outside[0])
    attention = [[cost.attention for cost in costs] for costs in (early, late, later)]
    assert attention[0] == attention[1]
    assert all(cost > 0 for cost in attention[0])
    assert [2 * cost for cost in attention[1]] == attention[2]
