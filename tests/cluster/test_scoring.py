"""Prompts scored over the API by two nodes, against transformers' own log-softmax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from tests.processes import MeshnetProcess
from tests.reference import unsplit_model

IDS = [(7 * place + place * place) % 250 + 3 for place in range(40)]


def log_softmax(model: Path, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return unsplit_model(model)(torch.tensor([ids])).logits[0].float().log_softmax(-1)


async def completed(url: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "default", "prompt": IDS, "temperature": 0, "echo": True} | fields
    async with httpx2.AsyncClient(timeout=240) as client:
        told: dict[str, Any] = (await client.post(f"{url}/v1/completions", json=body)).json()
    return told


@pytest.mark.parametrize("answer", [0, 1])
async def test_a_prompts_log_probabilities_are_those_of_the_unsplit_model(
    api: MeshnetProcess, tiny_model_dir: Path, answer: int
):
    """Pit A33: what lm-eval's `local-completions` asks and reads."""
    expected = log_softmax(tiny_model_dir, IDS)

    told = await completed(api.url, logprobs=1, max_tokens=answer)

    logprobs = told["choices"][0]["logprobs"]
    scores = logprobs["token_logprobs"]
    wanted = [float(expected[at, token]) for at, token in enumerate(IDS[1:])]
    assert scores[0] is None
    assert scores[1 : len(IDS)] == pytest.approx(wanted, abs=1e-3)
    assert len(scores) == len(IDS) + answer
    best = [max(top.values()) for top in logprobs["top_logprobs"][1 : len(IDS)]]
    assert best == pytest.approx(expected[:-1].max(-1).values.tolist(), abs=1e-3)
    assert told["usage"]["completion_tokens"] == answer
