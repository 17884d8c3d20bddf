"""One request, one trace: of the gateway and of every node, in a collector."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes import gateway, nodes
from tools.trace_picture import TRACED, WARM, Collector, ask

RANGES = ("0-1", "1-2", "2-4")
SECRET = "zanzibar"


class Remembering(Collector):
    """Keeps what was sent as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = b""

    def take(self, body: bytes) -> None:
        self.bodies += body
        super().take(body)


@pytest.mark.slow
def test_a_sampled_request_is_one_trace_over_all_processes_and_tells_no_prompt(
    tiny_model_dir: Path,
):
    collector = Remembering()
    with collector.serving() as endpoint:
        told = {"MESHNET_TRACE_ENDPOINT": endpoint, "MESHNET_TRACE_RATIO": "0"}
        with (
            nodes(tiny_model_dir, RANGES, **told) as three,
            gateway(tiny_model_dir, [node.url for node in three], **told) as api,
        ):
            ask(api.url, WARM, f"{SECRET} unsampled")
            ask(api.url, TRACED, SECRET)
            collector.wait()
            urls = {node.url for node in three}

    spans = collector.spans()
    kinds = [span.name.partition(" ")[0] for span in spans]
    assert {span.who for span in spans if span.name.startswith("hop")} == urls
    assert {span.who for span in spans if span.name == "compute"} == urls
    for part in ("POST", "generate", "queue", "prefill", "decode"):
        assert kinds.count(part) == 1, part
    assert kinds.count("hop") == kinds.count("step")  # a star: each step is of one hop
    assert SECRET.encode() not in collector.bodies
