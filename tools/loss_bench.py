"""What the loss of one of three nodes costs a stream when a fourth holds the same layers.

    python -m tools.loss_bench kills  [--subject smollm2-fp32] [--tries 50] [--tokens 200]
    python -m tools.loss_bench refill [--subject smollm2-fp32] [--tries 5] [--threads 1]
    python -m tools.loss_bench stuck  [--subject smollm2-fp32] [--tries 3]

kills    the middle node gets SIGKILL at a token drawn at random: is the text that of the
         undisturbed run, and how long is the longest gap between two tokens from then on?
refill   the same behind a long prompt, in turns with the last node lost where nobody keeps
         activations, so that everything is refilled: gaps, positions run again, and what nodes
         that lived on computed
stuck    it is stopped, or its links pass nothing, half a message or a byte a second: is the gap
         within the time that the settings give, and does nothing that comes late change a token?

The victim is started again before the next try, so there always is a spare. Exits 1 unless every
text is equal, every stream had one finish and lost a node, gaps keep within what the settings
give, and nodes that lived on ran no position again that all had confirmed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.chaos.losses import HOP_TIMEOUT_S, Calm, Loss, kills, refills, stuck
from tests.chaos.subjects import SUBJECTS, Subject

from meshnet.cli.bench.paired import spread
from meshnet.cli.bench.report import Report, number, page_of, table
from meshnet.cli.bench.results import provenance, result_path, write_result

SIGNS_OF_LIFE = 8
"""GenerationLimits.queue: a hop that says it is at work may take so many times longer."""
LOOKING_S = 2.0 + 2 * 2.0
"""GenerationLimits.locate_s, and two rounds of DirectoryLimits.describe_timeout_s."""

Runs = Mapping[str, tuple[Calm, list[Loss]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("kills", "refill", "stuck"))
    parser.add_argument("--subject", choices=sorted(SUBJECTS), default="smollm2-fp32")
    parser.add_argument("--tries", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--prompt", type=int, default=1500, help="words of the long prompt")
    parser.add_argument("--threads", type=int, default=1, help="of each node, of `refill`")
    parser.add_argument("--within", type=float, default=3600.0, help="begin no try later, seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    subject = SUBJECTS[asked.subject]
    with tempfile.TemporaryDirectory() as folder:
        runs = asyncio.run(_measure(subject, subject.make(Path(folder)), asked))
    _write(asked, subject, runs)
    return 0 if _as_it_must_be(asked.what, runs) else 1


def _as_it_must_be(what: str, runs: Runs) -> bool:
    losses = [loss for _, each in runs.values() for loss in each]
    if not all(loss.equal and loss.refills for loss in losses):
        return False
    if what == "stuck":
        allowed_s = _allowed_s(runs)
        return all(loss.gap_s <= allowed_s for loss in losses)
    return not any(_old_positions(what, runs))


async def _measure(subject: Subject, model: Path, asked: argparse.Namespace) -> Runs:
    def tell(line: str) -> None:
        print(line, flush=True)

    match asked.what:
        case "kills":
            tokens = asked.tokens or 200
            run = await kills(
                subject, model, tries=_turns(asked, 50), tokens=tokens, seed=asked.seed, tell=tell
            )
            return {"killed": run}
        case "refill":
            tokens, tries = asked.tokens or 60, _turns(asked, 5)
            return await refills(
                subject, model, tries=tries, tokens=tokens, prompt=asked.prompt,
                threads=asked.threads, tell=tell,
            )  # fmt: skip
        case _:
            tokens = asked.tokens or 120
            run = await stuck(
                subject, model, tries=_turns(asked, 3), tokens=tokens, seed=asked.seed, tell=tell
            )
            return {"stuck": run}


def _turns(asked: argparse.Namespace, tries: int) -> Iterable[int]:
    """Count the tries that are begun in time: the first always is."""
    ends_at = time.monotonic() + asked.within
    return takewhile(
        lambda turn: turn == 0 or time.monotonic() < ends_at, range(asked.tries or tries)
    )


def _write(asked: argparse.Namespace, subject: Subject, runs: Runs) -> None:
    rows = {way: _summed(calm, losses) for way, (calm, losses) in _by_fault(runs).items()}
    model = subject.name.rpartition("-")[0]
    result: dict[str, Any] = {
        **provenance(model, subject.weights, asked.threads),
        "scenario": f"loss-{asked.what}",
        "command": "python -m tools.loss_bench " + " ".join(sys.argv[1:]),
        "summary": rows,
        "losses": [asdict(loss) for _, losses in runs.values() for loss in losses],
    }
    if asked.what == "stuck":
        result["gap_allowed_s"] = _allowed_s(runs)
    if asked.what == "refill":
        result["gap_ratio"] = _gap_ratio(runs)
        result["survivors_old_positions"] = _old_positions(asked.what, runs)
    path = result_path(asked.out, model, f"loss-{asked.what}-{subject.weights}")
    target = write_result(path, result)
    report = Report("one of three nodes is lost, with a spare there", (_page(rows, result),), ())
    target.with_suffix(".md").write_text(page_of(result, report), encoding="utf-8")
    print(_page(rows, result))
    print(f"written: {target}")


def _allowed_s(runs: Runs) -> float:
    """Return what a gap may last by the settings: a step with signs of life, looking, a refill."""
    positions = max(calm.prompt_tokens for calm, _ in runs.values())
    step_s = HOP_TIMEOUT_S + 0.05
    refill_s = 3 * (HOP_TIMEOUT_S + 0.05 * (positions + 200))
    return round(SIGNS_OF_LIFE * step_s + LOOKING_S + refill_s, 1)


def _old_positions(what: str, runs: Runs) -> list[int]:
    """Return how many positions survivors ran again, of those that all hops had confirmed.

    Each recovery may make them run the step again that was under way: one position each. They are
    counted where no drafts are on: those go by time.
    """
    if what != "refill":
        return []
    calm, lost = runs["lost span"]
    return [
        sum(
            max(0, loss.work[name].positions - calm.work[name].positions - loss.refills)
            for name in loss.survivors
        )
        for loss in lost
    ]


def _by_fault(runs: Runs) -> Runs:
    faults: dict[str, tuple[Calm, list[Loss]]] = {}
    for calm, losses in runs.values():
        for loss in losses:
            faults.setdefault(loss.fault, (calm, []))[1].append(loss)
    return faults


def _summed(calm: Calm, losses: Sequence[Loss]) -> dict[str, Any]:
    survivors = [
        sum(loss.work[name].compute_s - calm.work[name].compute_s for name in loss.survivors)
        for loss in losses
    ]
    return {
        "streams": len(losses),
        "equal": sum(loss.equal for loss in losses),
        "interrupted": sum(loss.refills > 0 for loss in losses),
        "partial": sum(loss.partial for loss in losses),
        "positions": spread([loss.positions for loss in losses]),
        "gap_s": spread([loss.gap_s for loss in losses]),
        "survivors_extra_compute_s": spread(survivors),
        "prompt_tokens": calm.prompt_tokens,
        "calm_gap_s": round(calm.gap_s, 3),
    }


def _gap_ratio(runs: Runs) -> dict[str, float]:
    """Return the gap with the lost span refilled over that with everything, try by try."""
    (calm, lost), (_, everything) = runs["lost span"], runs["everything"]
    return spread(
        [
            max(a.gap_s - calm.gap_s, 0.0) / max(b.gap_s - calm.gap_s, 1e-9)
            for a, b in zip(lost, everything, strict=True)
        ]
    )


def _page(rows: Mapping[str, Mapping[str, Any]], result: Mapping[str, Any]) -> str:
    titles = (
        "lost", "equal", "interrupted", "partial refills", "positions run again", "gap median (s)",
        "gap worst (s)", "extra compute of the others (s)",
    )  # fmt: skip
    told = table(
        titles,
        [
            (
                fault,
                f"{each['equal']} of {each['streams']}",
                str(each["interrupted"]),
                str(each["partial"]),
                number(each["positions"]["median"]),
                number(each["gap_s"]["median"]),
                number(each["gap_s"]["max"]),
                number(each["survivors_extra_compute_s"]["median"]),
            )
            for fault, each in rows.items()
        ],
    )
    if "gap_allowed_s" in result:
        told += f"\n\nA gap may last {result['gap_allowed_s']:g} s by the settings."
    if "gap_ratio" in result:
        told += f"\n\nGap, lost span over everything: {number(result['gap_ratio']['median'])}."
        told += f" Old positions run by the others: {sum(result['survivors_old_positions'])}."
    return told


if __name__ == "__main__":
    sys.exit(main())
