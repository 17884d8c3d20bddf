"""`meshnet bench plan`: is a mesh as fast as it was predicted to be before anything was loaded?

Meshes and layouts are drawn by a seed (plan_draw.py) and played on this machine (plan_meshes.py).
What goes into a prediction is what the nodes measured when they started, and nothing else. Of each
mesh are tried the drawn layouts, the plan that its figures lead to, and single machines:

    error     |predicted / measured - 1| of tokens a second, and of the time to the first token
    chosen    tokens a second of the plan over those of the best layout tried on its mesh

Tokens follow a prompt of `PROMPT_TOKENS`; drafts are off, so that each step is a token.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshnet.cli.bench.load import LoadProbe
from meshnet.cli.bench.mesh import timed_generation
from meshnet.cli.bench.order import Order
from meshnet.cli.bench.paired import Rules, Values, spread, take_turns
from meshnet.cli.bench.picture import ranked
from meshnet.cli.bench.plan_draw import DrawnMesh, Layout, alone, draw_meshes
from meshnet.cli.bench.plan_meshes import PlayedMesh, played
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.report import Report, number, table
from meshnet.cli.bench.results import format_told, provenance
from meshnet.cli.bench.running import pin, tell
from meshnet.cli.models import resolve_model
from meshnet.cli.plan_file import mesh_values
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings
from meshnet.core.generation.chunking import Chunking
from meshnet.core.planning import Mesh, ModelShape, NoPlan, Prediction, Wanted, plan, predict
from meshnet.core.vocabulary import Hop, WeightFormat
from meshnet.engine.models.pull import LocalModel

PROMPT_TOKENS = 256
MEDIAN_MOST, WORST_MOST, CHOSEN_LEAST = 0.15, 0.30, 0.90


def plan_result(
    settings: Settings, order: Order, *, seed: int, meshes: int, tokens: int
) -> dict[str, Any]:
    """Play the drawn meshes one after the other. Raises MeshnetError."""
    pin(order.cores)
    source = resolve_model(settings.model, settings)
    own = settings.model_copy(update={"threads": settings.threads or 1, "drafts": "off"})
    bench = _PlanBench(own, source, order.rules, tokens)
    drawn = draw_meshes(seed, meshes, len(bench.shape.layers))
    rows = [row for number, each in enumerate(drawn, 1) for row in bench.rows(number, each)]
    return {
        **provenance(source.name, format_told(settings), own.threads),
        "scenario": "plan",
        "seed": seed,
        "tokens": tokens,
        "prompt_tokens": PROMPT_TOKENS,
        "rules": asdict(order.rules),
        "rows": rows,
        "summary": summary(rows),
        "disturbed": {row["layout"]: row["disturbed"] for row in rows},
    }


class _PlanBench:
    def __init__(self, settings: Settings, source: LocalModel, rules: Rules, tokens: int) -> None:
        self._settings, self._source, self._rules, self._tokens = settings, source, rules, tokens
        self.shape = _shape(source.path, WeightFormat(format_told(settings)))
        self._wanted = Wanted(PROMPT_TOKENS + tokens, prompt=PROMPT_TOKENS)
        self._cutting = Chunking(most=settings.prefill_chunk).ends

    def rows(self, number: int, drawn: DrawnMesh) -> list[dict[str, Any]]:
        """Measure a mesh in its drawn layouts, in the planned one, and on single machines."""
        tell(f"mesh {number}: {drawn}")
        whole, *parts = drawn.layouts
        row, measured = self._row(number, drawn, whole)
        chosen = self._chosen(whole, measured)
        total = len(self.shape.layers)
        others = [alone(at, total) for at in _nearest_first(drawn)[:2]]
        rows, tried = [row], {_ways_of(whole)}
        for layout in (chosen, *parts, *others):
            # The plan is a row of its own, even if it is what was drawn.
            if layout is chosen or _ways_of(layout) not in tried:
                tried.add(_ways_of(layout))
                rows.append(self._row(number, drawn, layout)[0])
        return rows

    def _chosen(self, layout: Layout, measured: Mesh) -> Layout:
        """Plan with what the drawn layout's nodes measured."""
        found = plan(self.shape, measured, self._wanted, cutting=self._cutting, chain=layout.chain)
        assert not isinstance(found, NoPlan), found
        machine_of = dict(zip(measured.nodes, layout.machines, strict=True))
        return Layout(
            "planned",
            tuple(machine_of[hop.node] for hop in found.hops),
            tuple(hop.layers for hop in found.hops),
            layout.chain,
        )

    def _row(self, number: int, drawn: DrawnMesh, layout: Layout) -> tuple[dict[str, Any], Mesh]:
        predicted, measured, samples, disturbed = run_loop(lambda: self._measure(drawn, layout))
        row = row_of(predicted, measured, samples) | {
            "mesh": number,
            "machines": str(drawn),
            "layout": f"mesh {number}, {layout}",
            "kind": layout.name,
            "disturbed": disturbed,
        }
        tell(
            f"{row['layout']}: tokens a second {row['predicted_tokens_per_s']:.3g} predicted, "
            f"{row['tokens_per_s']['median']:.3g} measured ({row['tokens_per_s_ratio']:.2f}); "
            f"first token {row['predicted_ttft_s']:.3g} s, {row['ttft_s']['median']:.3g} s"
        )
        return row, measured

    async def _measure(
        self, drawn: DrawnMesh, layout: Layout
    ) -> tuple[Prediction, Mesh, list[Values], int]:
        async with played(self._settings, self._source, drawn.machines, layout) as mesh:
            hops = [Hop(node, held) for node, held in zip(mesh.nodes, layout.layers, strict=True)]
            predicted = predict(
                hops, self.shape, mesh.measured, self._wanted,
                cutting=self._cutting, chain=layout.chain,
            )  # fmt: skip
            samples = (
                await take_turns(
                    [layout.name],
                    lambda _, turn: self._turn(mesh, turn),
                    lambda _: LoadProbe(mesh.pids),
                    self._rules,
                )
            )[layout.name]
        values = [sample.values for sample in samples]
        return predicted, mesh.measured, values, sum(sample.disturbed for sample in samples)

    async def _turn(self, mesh: PlayedMesh, turn: int) -> Values:
        text = mesh.composition.text
        prompts = Prompts(lambda words: text.encode(words, special=False))
        prompt = prompts.ids(turn, PROMPT_TOKENS)
        timed = await timed_generation(mesh.composition, prompt, self._tokens)
        return {"tokens_per_s": timed.tokens_per_s, "ttft_s": timed.at_s[0]}


def row_of(predicted: Prediction, measured: Mesh, samples: Sequence[Values]) -> dict[str, Any]:
    """Return what a layout did beside what its figures, which are kept, said that it would."""
    row: dict[str, Any] = {
        "predicted_tokens_per_s": predicted.tokens_per_s,
        "tokens_per_s": spread([each["tokens_per_s"] for each in samples]),
        "predicted_ttft_s": predicted.first_s,
        "ttft_s": spread([each["ttft_s"] for each in samples]),
        "predicted": asdict(predicted),
        "measured": mesh_values(measured),
    }
    for name in ("tokens_per_s", "ttft_s"):
        row[f"{name}_ratio"] = row[f"predicted_{name}"] / row[name]["median"]
    return row


def _shape(path: Path, weights: WeightFormat) -> ModelShape:
    from meshnet.engine.model_shape import model_shape

    return model_shape(path, weights)


def _ways_of(layout: Layout) -> tuple[object, ...]:
    """What two layouts have in common that do the same; one node alone is a chain and a star."""
    return layout.machines, layout.layers, layout.chain or len(layout.machines) == 1


def _nearest_first(drawn: DrawnMesh) -> list[int]:
    machines = drawn.machines
    return sorted(range(len(machines)), key=lambda at: (machines[at].slower, machines[at].delay_ms))


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the errors over all layouts, and of each mesh the plan over its best layout."""
    errors = {
        name: [abs(row[f"{name}_ratio"] - 1) for row in rows] for name in ("tokens_per_s", "ttft_s")
    }
    chosen = {}
    for mesh in sorted({row["mesh"] for row in rows}):
        rates = {
            row["layout"]: row["tokens_per_s"]["median"] for row in rows if row["mesh"] == mesh
        }
        planned = [
            row["tokens_per_s"]["median"]
            for row in rows
            if row["mesh"] == mesh and row["kind"] == "planned"
        ]
        chosen[str(mesh)] = planned[0] / max(rates.values())
    return {
        "layouts": len(rows),
        "median_error": statistics.median(errors["tokens_per_s"]),
        "worst_error": max(errors["tokens_per_s"]),
        "median_ttft_error": statistics.median(errors["ttft_s"]),
        "worst_ttft_error": max(errors["ttft_s"]),
        "chosen_over_best": chosen,
        "met": statistics.median(errors["tokens_per_s"]) <= MEDIAN_MOST
        and max(errors["tokens_per_s"]) <= WORST_MOST
        and min(chosen.values()) >= CHOSEN_LEAST,
    }


def plan_report(result: Mapping[str, Any]) -> Report:
    rows = [
        (
            row["layout"],
            number(row["predicted_tokens_per_s"]),
            number(row["tokens_per_s"]["median"]),
            number(row["tokens_per_s_ratio"]),
            number(row["predicted_ttft_s"]),
            number(row["ttft_s"]["median"]),
            number(row["ttft_s_ratio"]),
        )
        for row in result["rows"]
    ]
    titles = ("layout", "predicted tokens/s", "measured", "ratio", "predicted TTFT, s",
              "measured", "ratio")  # fmt: skip
    told = result["summary"]
    machines = {row["mesh"]: row["machines"] for row in result["rows"]}
    lines = [
        *(f"* mesh {mesh}: {each}" for mesh, each in machines.items()),
        "",
        f"Seed {result['seed']}, {told['layouts']} layouts. Tokens a second: median error "
        f"{told['median_error']:.1%}, worst {told['worst_error']:.1%} (targets "
        f"{MEDIAN_MOST:.0%}, {WORST_MOST:.0%}); first token: median {told['median_ttft_error']:.1%}"
        f", worst {told['worst_ttft_error']:.1%}. The plan over the best layout of its mesh: "
        + ", ".join(f"{value:.2f}" for value in told["chosen_over_best"].values())
        + f" (target {CHOSEN_LEAST}). {'Met' if told['met'] else 'Missed'}.",
    ]
    bars = [(row["layout"], row["tokens_per_s_ratio"], "tab:blue") for row in result["rows"]]
    panel = ranked("tokens a second, predicted over measured", bars, mark=1.0)
    return Report("predicted and measured", (table(titles, rows), "\n".join(lines)), (panel,))
