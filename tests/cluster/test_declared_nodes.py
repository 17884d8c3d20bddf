"""A node from before `GET /node`, named with its layers on the gateway's command line."""

from __future__ import annotations

from pathlib import Path

import httpx2
from tests.cluster.old_peers import old_node
from tests.processes import gateway, nodes
from tests.reference import prompt_ids, unsplit_greedy

from meshnet.core.vocabulary import LayerRange, ModelId, WeightFormat
from meshnet.engine.loading import load_shard
from meshnet.engine.text import HFText

PROMPT = "Which way does the activation travel?"
TOKENS = 8


def test_an_old_middle_node_declared_by_its_operator_serves_chats(tiny_model_dir: Path):
    """Pit C10. Its layers come from `--node URL=A-B`; each step is then a prefill."""
    text = HFText.load(tiny_model_dir, ModelId("tiny"))
    expected = unsplit_greedy(tiny_model_dir, prompt_ids(tiny_model_dir, PROMPT), TOKENS)
    middle = load_shard(tiny_model_dir, LayerRange(1, 3), weights=WeightFormat.FP32)

    with (
        old_node(middle, said_to_cache=True) as old,
        nodes(tiny_model_dir, ["0-1", "3-4"], MESHNET_WEIGHTS="fp32") as (head, tail),
        gateway(tiny_model_dir, [head.url, f"{old}=1-3", tail.url]) as api,
    ):
        answer = httpx2.post(
            f"{api.url}/v1/chat/completions",
            json={
                "model": "default",
                "messages": [{"role": "user", "content": PROMPT}],
                "max_tokens": TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            },
            timeout=60,
        ).json()

    assert answer["choices"][0]["message"]["content"] == text.decode(expected, skip_special=True)
    assert answer["usage"]["completion_tokens"] == TOKENS
