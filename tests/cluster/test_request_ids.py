"""One id leads from a client's answer through the gateway's log to each node's."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cluster.api import body_of, until
from tests.processes import MeshnetProcess, gateway, nodes

EVENTS = {"MESHNET_LOG_FORMAT": "json", "MESHNET_LOG_LEVEL": "debug"}
ID = "from-the-client.7"


def told(process: MeshnetProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.told() if line.startswith("{")]


def ids(process: MeshnetProcess, event: str, outcome: str | None = None) -> list[str | None]:
    """The request ids of one kind of event."""
    return [
        each.get("request")
        for each in told(process)
        if each["event"] == event and outcome in (None, each.get("outcome"))
    ]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_request_id_is_in_the_answer_and_in_the_log_of_every_hop(
    tiny_model_dir: Path, fails: bool
):
    """Pit A110: for an answer, and for a request that a node makes fail."""
    with ExitStack() as stack:
        # With room for two tokens of KV cache no prompt fits: the node refuses, the request fails.
        room = {"MESHNET_KV_MAX_BYTES": "2048"} if fails else {}
        serving = stack.enter_context(nodes(tiny_model_dir, ["0-2", "2-4"], **EVENTS, **room))
        urls = [node.url for node in serving]
        head = stack.enter_context(gateway(tiny_model_dir, urls, MESHNET_DRAFTS="off", **EVENTS))
        async with httpx2.AsyncClient(timeout=120) as client:
            response = await client.post(
                f"{head.url}/v1/chat/completions",
                json=body_of("Who is there?", 4),
                headers={"x-request-id": ID},
            )

        assert response.headers["x-request-id"] == ID
        assert (response.status_code == 200) is not fails
        await until(lambda: ID in ids(head, "gateway_answered"), "the gateway told it")
        assert set(ids(head, "generation_finished")) <= {ID}
        if not fails:
            for node in serving:
                await until(lambda node=node: len(ids(node, "forward_served")) == 4, "four steps")
                assert set(ids(node, "forward_served", "ok")) == {ID}
