"""JSON output of two real nodes, kept to its schema by the last, in batches and under guesses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
from tests.processes import MeshnetProcess

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "tags", "count"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}


async def asked(client: httpx2.AsyncClient, url: str, seed: int) -> dict[str, Any]:
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": f"Name {seed} things."}],
        "seed": seed,
        "temperature": 1.2,
        "max_tokens": 120,
        "response_format": FORMAT,
    }
    told: dict[str, Any] = (await client.post(f"{url}/v1/chat/completions", json=body)).json()
    return told["choices"][0]


async def test_answers_of_a_mesh_are_valid_together_and_alone(api: MeshnetProcess):
    """Pit A54."""
    async with httpx2.AsyncClient(timeout=240) as client:
        together = await asyncio.gather(*(asked(client, api.url, seed) for seed in range(4)))
        alone = [await asked(client, api.url, seed) for seed in range(2)]

    for choice in together:
        assert choice["finish_reason"] == "stop"
        told = json.loads(choice["message"]["content"])
        assert list(told) == ["name", "tags", "count"]
        assert len(told["name"]) <= 8
        assert set(told["tags"]) <= {"a", "b"}
        assert 0 <= told["count"] <= 999
    assert [choice["message"] for choice in alone] == [choice["message"] for choice in together[:2]]
