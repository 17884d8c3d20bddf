"""The picture of a flatness run: tokens per second by position, cached and stateless."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def plot_flatness(result: dict[str, Any], path: Path) -> Path | None:
    """Draw `result` as SVG beside its JSON; None, said aloud, where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: `pip install 'meshnet[bench]'` brings matplotlib", file=sys.stderr)
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "meshnet", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
        cached, stateless = result["cached"], result["stateless"]
        axes.plot(
            [window["position"] for window in cached],
            [window["tokens_per_s"] for window in cached],
            label="KV cache on every node",
        )
        axes.plot(
            [sample["position"] for sample in stateless],
            [sample["tokens_per_s"]["median"] for sample in stateless],
            marker="o",
            label="stateless (sampled)",
        )
        axes.set_xlabel("position (generated tokens)")
        axes.set_ylabel("tokens per second")
        axes.set_ylim(bottom=0)
        axes.set_title(
            f"{result['model']}, {result['dtype']}, {len(result['nodes'])} nodes, "
            f"{result['cores']} cores"
        )
        axes.legend()
        target = path.with_name(path.name + ".svg")
        figure.savefig(target, metadata={"Date": None})
        pyplot.close(figure)
    return target
