"""Kill nodes of `meshnet up` in the middle of answers; measure what the client of each saw.

    python -m tools.kill_bench [--model smollm2-135m] [--kills 20] [--tokens 200]
                               [--weights fp32] [--out DIR]

Each answer is one greedy stream; one node, in turn the head's, the middle and the tail, is
killed (SIGKILL) when the client has read a token drawn at random, and `up` starts it again. Exits 1
unless every text is equal to that of the undisturbed run and every stream had one finish.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.cluster.api import Told, counted, get, streamed, until
from tests.processes import MeshnetProcess, meshnet

from meshnet.cli.bench.paired import spread
from meshnet.cli.bench.results import provenance, result_path, write_result
from meshnet.core.vocabulary import WeightFormat

PROMPT = "Explain in a few sentences why the sky is blue."
NODES = 3


@dataclass(frozen=True)
class Kill:
    """One answer in the middle of which a node died."""

    node: str
    at_token: int
    gap_s: float
    refills: int
    equal: bool


@dataclass(frozen=True)
class Measured:
    model: str
    weights: WeightFormat
    calm: Told
    kills: list[Kill]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", choices=[each.value for each in WeightFormat], default="fp32")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    weights = WeightFormat(arguments.weights)
    measured = measure(
        arguments.model,
        weights,
        kills=arguments.kills,
        tokens=arguments.tokens,
        seed=arguments.seed,
    )
    _write(arguments.out, arguments.tokens, measured)
    return 0 if all(kill.equal for kill in measured.kills) else 1


def measure(model: str, weights: WeightFormat, *, kills: int, tokens: int, seed: int) -> Measured:
    """Run a mesh of its own, one undisturbed answer and then `kills` disturbed ones."""
    drawn = random.Random(seed)
    with meshnet(
        "up", "--model", model, "--nodes", str(NODES), "--port", "0", "--json-ready",
        MESHNET_WEIGHTS=weights.value,
    ) as mesh:  # fmt: skip
        calm = asyncio.run(streamed(mesh.url, PROMPT, tokens))
        return Measured(
            model=str(get(f"{mesh.url}/mesh")["model"]),
            weights=weights,
            calm=calm,
            kills=[
                asyncio.run(_killed(mesh, calm, place % NODES, drawn, tokens))
                for place in range(kills)
            ],
        )


async def _killed(
    mesh: MeshnetProcess, calm: Told, place: int, drawn: random.Random, tokens: int
) -> Kill:
    at = drawn.randrange(1, tokens)
    victim = get(f"{mesh.url}/mesh")["nodes"][place]
    before = counted(mesh.url, "meshnet_refills_total").total()

    def kill(count: int) -> None:
        if count == at:
            os.kill(victim["pid"], signal.SIGKILL)

    told = await streamed(mesh.url, PROMPT, tokens, seen=kill)

    def restarted() -> bool:
        now = get(f"{mesh.url}/mesh")
        return bool(now["ready"] and now["nodes"][place]["pid"] != victim["pid"])

    await until(restarted, f"{victim['name']} is back", deadline_s=300.0)
    result = Kill(
        node=victim["name"],
        at_token=at,
        gap_s=round(told.worst_gap_s, 3),
        refills=counted(mesh.url, "meshnet_refills_total").total() - before,
        equal=_as_if_nothing_happened(told, calm),
    )
    print(result, flush=True)
    return result


def _as_if_nothing_happened(told: Told, calm: Told) -> bool:
    """Same text, same tokens, same counts of them, one finish, one end, no error."""
    return (
        told.text == calm.text
        and told.tokens == calm.tokens
        and list(map(_counts, told.usages)) == list(map(_counts, calm.usages))
        and (told.finishes, told.ended, told.errors) == (["length"], 1, [])
    )


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    """Without what was cached: the prompt of the answers before is taken up where that is exact."""
    return {name: count for name, count in usage.items() if name != "prompt_tokens_details"}


def _write(out: Path, tokens: int, measured: Measured) -> None:
    kills = measured.kills
    result: dict[str, Any] = {
        **provenance(measured.model, measured.weights.value),
        "command": "python -m tools.kill_bench " + " ".join(sys.argv[1:]),
        "nodes": NODES,
        "tokens": tokens,
        "calm_worst_gap_s": round(measured.calm.worst_gap_s, 3),
        "gap_s": spread([kill.gap_s for kill in kills]),
        "equal": sum(kill.equal for kill in kills),
        "interrupted": sum(kill.refills > 0 for kill in kills),
        "kills": [asdict(kill) for kill in kills],
    }
    target = write_result(result_path(out, measured.model, "kills"), result)
    gap = result["gap_s"]
    print(f"{result['equal']} of {len(kills)} texts equal, {result['interrupted']} interrupted")
    print(f"gap between two tokens: worst {gap['max']} s, median {gap['median']} s; {target}")


if __name__ == "__main__":
    sys.exit(main())
