"""Storms of faults over real node and head processes; what must not happen ends it with 1.

    python -m tools.chaos [--subject NAME ...] [--events 60] [--seed 0] [--out DIR]
    python -m tools.chaos --subject tiny-fp32 --seed 7 --events 17      replay one seed
    python -m tools.chaos --subject smollm2-int8 --rolling 1            an upgrade of every node

Processes live in network namespaces where this machine makes them, behind a proxy that breaks
their links; `--network loopback` does without. Eight chats stream all the while. docs/testing.md
tells what is done to them and what is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.chaos.lab import Lab, Mesh
from tests.chaos.namespaces import why_impossible
from tests.chaos.report import fault_table, storm_table, summary
from tests.chaos.schedule import rolling, schedule
from tests.chaos.storm import Storm
from tests.chaos.subjects import SUBJECTS, Subject

from meshnet.cli.bench.report import Report, page_of
from meshnet.cli.bench.results import provenance, result_path, write_result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subject", action="append", choices=sorted(SUBJECTS))
    parser.add_argument("--events", type=int, default=60, help="of each subject")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--network", choices=("auto", "namespaces", "loopback"), default="auto")
    parser.add_argument("--rolling", type=int, help="drain every node in turn, so many rounds")
    parser.add_argument("--static", action="store_true", help="nodes are named, none joins")
    parser.add_argument("--out", type=Path, help="where to write the result; else it is shown only")
    arguments = parser.parse_args()
    if (reason := why_impossible()) is not None:
        print(f"no network namespaces here: {reason}", file=sys.stderr)
    storms = []
    for name in arguments.subject or sorted(SUBJECTS):
        found = asyncio.run(_storm(SUBJECTS[name], arguments))
        storms.append(found)
        print(storm_table([found]), flush=True)
        print(f"worst gap: {found['worst_gap']}", flush=True)
        for broken in found["must_not_happen"]:
            print(f"MUST NOT HAPPEN: {broken}", flush=True)
    if arguments.out is not None:
        _write(arguments, storms)
    return 1 if any(each["must_not_happen"] for each in storms) else 0


async def _storm(subject: Subject, asked: argparse.Namespace) -> dict[str, Any]:
    seed = asked.seed
    with tempfile.TemporaryDirectory() as folder:
        model = subject.make(Path(folder))
        mesh = Mesh(model, subject.weights, subject.nodes, joins=not asked.static)
        events = (
            schedule(seed, asked.events, nodes=mesh.nodes, heads=mesh.heads)
            if asked.rolling is None
            else rolling(tuple(mesh.nodes), asked.rolling, after_tokens=200)
        )
        async with Lab(mesh, network=asked.network) as lab:
            record = await Storm(
                lab,
                subject.asks,
                seed=seed,
                squeeze_bytes=subject.squeeze_bytes,
                tell=lambda line: print(line, flush=True),
            ).run(events)
            kind = lab.network.kind
    if asked.rolling is not None:
        record.faults += [f"an upgrade failed a chat: {told}" for told in record.failures]
    return {"subject": subject.name, "seed": seed, "network": kind, **summary(record)}


def _write(asked: argparse.Namespace, storms: list[dict[str, Any]]) -> None:
    result = {
        **provenance("several", "as the subjects say", 1),
        "command": "python -m tools.chaos " + " ".join(sys.argv[1:]),
        "scenario": "chaos" if asked.rolling is None else "rolling",
        "events": sum(each["events"] for each in storms),
        "wrong": sum(each["wrong"] for each in storms),
        "hangs": sum(each["hang"] for each in storms),
        "storms": storms,
    }
    path = result_path(asked.out, "several", str(result["scenario"]))
    target = write_result(path, result)
    report = Report("faults under eight streams", (storm_table(storms), fault_table(storms)), ())
    target.with_suffix(".md").write_text(page_of(result, report), encoding="utf-8")
    print(f"written: {target}")


if __name__ == "__main__":
    sys.exit(main())
