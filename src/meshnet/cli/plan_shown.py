"""A plan as people read it: who runs what, the memory for that, and what to expect."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from meshnet.cli.report import bytes_text, show_table
from meshnet.core.planning import HopPrediction, ModelShape, Plan, Wanted

LEFT_OUT_MAX = 16
"""So many nodes that are left out are named."""


def print_plan(console: Console, shape: ModelShape, wanted: Wanted, made: Plan) -> None:
    """Print a table of the hops, and what follows from them in sentences."""

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    predicted, nodes = made.prediction, len(made.hops) + len(made.left_out)
    say(
        f"{shape.model} in {shape.weights.value}, {wanted.sessions} session(s) of"
        f" {wanted.context} tokens, over {len(made.hops)} of {nodes} nodes"
    )
    show_table(console, _table(predicted.hops))
    kv_bytes = sum(hop.kv_bytes for hop in predicted.hops)
    say(f"KV cache: {shape.kv_token_bytes:,} bytes a token, {bytes_text(kv_bytes)} in all")
    say(
        f"predicted: {predicted.tokens_per_s:.1f} tokens/s behind {wanted.prompt} tokens,"
        f" first token in {predicted.first_s:.2f} s"
    )
    if wanted.sessions > 1:
        say(f"all {wanted.sessions} sessions: {predicted.together_tokens_per_s:.1f} tokens/s")
    if not made.best:
        say("among so many nodes a better plan may have been missed")
    for left in made.left_out[:LEFT_OUT_MAX]:
        say(f"left out: {left.node}: {left.reason}")
    if len(made.left_out) > LEFT_OUT_MAX:
        say(f"left out: {len(made.left_out) - LEFT_OUT_MAX} others (--json names them)")


def _table(hops: tuple[HopPrediction, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("node", no_wrap=True)
    for title in ("layers", "weights", "KV cache", "room", "token, ms", "way, ms"):
        table.add_column(title, justify="right", no_wrap=True)
    for hop in hops:
        table.add_row(
            escape(hop.node),
            str(hop.layers),
            bytes_text(hop.weight_bytes),
            bytes_text(hop.kv_bytes),
            bytes_text(hop.room_bytes),
            f"{hop.time.total_s * 1e3:.2f}",
            f"{hop.way_s * 1e3:.2f}",
        )
    return table
