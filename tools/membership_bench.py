"""What becomes of a mesh whose registry dies, and of nodes that die without a word.

    python -m tools.membership_bench [--subject tiny-fp32] [--deaths 5] [--ghosts 3] [--out DIR]

deaths   the gateway that keeps the registry gets SIGKILL, and is started again, while eight chats
         stream through another: does one of them fail, lose a node, or change a token?
ghosts   a node is killed, or stopped, and nobody asks for it: how long until no gateway has it on
         a route, beside the time of its lease?

Exits 1 unless every chat was right and no gateway believed in a ghost for longer than a lease.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from tests.chaos.chats import Verdict
from tests.chaos.lab import Lab
from tests.chaos.membership import WAYS, Ghost, ghost, joined
from tests.chaos.report import summary
from tests.chaos.schedule import registry_deaths
from tests.chaos.storm import Storm
from tests.chaos.subjects import SUBJECTS, Subject

from meshnet.cli.bench.paired import spread
from meshnet.cli.bench.report import Report, number, page_of, table
from meshnet.cli.bench.results import provenance, result_path, write_result

TOLERANCE_S = 1.0
"""For the registry to look, tell the other gateways, and for us to read it in their logs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subject", choices=sorted(SUBJECTS), default="tiny-fp32")
    parser.add_argument("--deaths", type=int, default=5)
    parser.add_argument("--ghosts", type=int, default=3, help="of each way to go")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    subject = SUBJECTS[asked.subject]
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measure(subject, subject.make(Path(folder)), asked))
    _write(asked, subject, found)
    return 0 if found["well"] else 1


async def _measure(subject: Subject, model: Path, asked: argparse.Namespace) -> dict[str, Any]:
    mesh = joined(model, subject.weights, subject.nodes)
    registry, other = mesh.heads
    lease_s = float(mesh.environment()["MESHNET_LEASE_SECONDS"])
    async with Lab(mesh) as lab:
        victims = [node for node, _ in zip(mesh.nodes, range(asked.ghosts), strict=False)]
        ghosts = [await ghost(lab, way, node) for node, way in product(victims, WAYS)]
        storm = Storm(
            lab,
            subject.asks,
            seed=0,
            squeeze_bytes=subject.squeeze_bytes,
            chats_by=[other],
            tell=lambda line: print(line, flush=True),
        )
        record = await storm.run(registry_deaths(registry, asked.deaths, after_tokens=200))
        kind = lab.network.kind
    storm_told = summary(record)
    unnoticed = record.verdicts[Verdict.RIGHT] == record.verdicts.total() and not record.refills
    late = [each for each in ghosts if each.routed or each.left_s > lease_s + TOLERANCE_S]
    return {
        "network": kind,
        "lease_s": lease_s,
        "ghosts": [asdict(each) for each in ghosts],
        "ghost_left_s": spread([each.left_s for each in ghosts]),
        "registry_deaths": storm_told,
        "well": unnoticed and not storm_told["must_not_happen"] and not late,
        "page": _page(storm_told, ghosts, lease_s),
    }


def _page(storm: dict[str, Any], ghosts: list[Ghost], lease_s: float) -> str:
    chats = table(
        ("registry killed", "chats", "right", "refills", "gap median (s)", "gap worst (s)"),
        [
            (
                f"{storm['events']} times",
                str(storm["chats"]),
                str(storm["right"]),
                str(sum(storm["refills"].values())),
                number(storm["gap_s"]["p50"]),
                number(storm["gap_s"]["worst"]),
            )
        ],
    )
    left = table(
        ("ghost", "gone from every gateway after (s)", "still routed by"),
        [
            (f"{each.node}, {each.way}", number(each.left_s), str(len(each.routed)))
            for each in ghosts
        ],
    )
    return f"{chats}\n\n{left}\n\nA lease is {lease_s:g} s."


def _write(asked: argparse.Namespace, subject: Subject, found: dict[str, Any]) -> None:
    page = found.pop("page")
    model = subject.name.rpartition("-")[0]
    result = {
        **provenance(model, subject.weights, 1),
        "scenario": "membership",
        "command": "python -m tools.membership_bench " + " ".join(sys.argv[1:]),
        **found,
    }
    path = result_path(asked.out, model, f"membership-{subject.weights}")
    target = write_result(path, result)
    report = Report("registries and nodes that die", (page,), ())
    target.with_suffix(".md").write_text(page_of(result, report), encoding="utf-8")
    print(page)
    for broken in found["registry_deaths"]["must_not_happen"]:
        print(f"MUST NOT HAPPEN: {broken}")
    print(f"written: {target}")


if __name__ == "__main__":
    sys.exit(main())
