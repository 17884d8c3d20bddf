"""What a user is told about the nodes of a mesh: one JSON form and one table for all commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from meshnet.core.vocabulary import ModelId, NodeDescription


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node of the `nodes` list of `meshnet run --json` and `meshnet status --json`."""

    name: str
    url: str
    pid: int
    layers: tuple[int, int]
    weights: str
    """Formats of its shards; empty for a node that does not tell."""
    weight_bytes: int
    bytes_read: int
    kv_bytes: int
    compute_s: float


def report_of(name: str, url: str, node: NodeDescription, model: ModelId) -> NodeReport:
    """Sum up a node: its layers of `model`, and the bytes of all its shards."""
    held = [shard.layers for shard in node.shards if shard.model == model]
    return NodeReport(
        name=name,
        url=url,
        pid=node.pid,
        layers=(
            min((layers.start for layers in held), default=0),
            max((layers.stop for layers in held), default=0),
        ),
        weights=", ".join(sorted({shard.weights for shard in node.shards if shard.weights})),
        weight_bytes=sum(shard.weight_bytes for shard in node.shards),
        bytes_read=sum(shard.bytes_read for shard in node.shards),
        kv_bytes=node.kv_bytes,
        compute_s=round(node.compute_s, 6),
    )


def as_json(nodes: Sequence[NodeReport]) -> list[dict[str, Any]]:
    return [{**asdict(node), "layers": list(node.layers)} for node in nodes]


def from_json(values: Sequence[dict[str, Any]]) -> tuple[NodeReport, ...]:
    """Read what `as_json` wrote. Raises KeyError, TypeError or ValueError."""
    names = NodeReport.__slots__
    return tuple(
        NodeReport(**{**{k: value[k] for k in names}, "layers": tuple(value["layers"])})
        for value in values
    )


def print_table(console: Console, nodes: Sequence[NodeReport], *, urls: bool) -> None:
    """Show who holds and who computed what, and `urls` unless nodes are named by them."""
    urls = urls and any(node.name != urlsplit(node.url).netloc for node in nodes)
    total_s = sum(node.compute_s for node in nodes) or 1.0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("node", no_wrap=True)
    for title in ("pid", "layers", "weights", "read", "KV cache", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    if urls:
        table.add_column("address", no_wrap=True)
    for node in nodes:
        start, stop = node.layers
        table.add_row(
            node.name,
            str(node.pid),
            f"{start}-{stop}" if stop > start else "none yet",
            f"{bytes_text(node.weight_bytes)} {node.weights}".rstrip(),
            bytes_text(node.bytes_read),
            bytes_text(node.kv_bytes),
            f"{100 * node.compute_s / total_s:.0f} %",
            *([urlsplit(node.url).netloc] if urls else []),
        )
    show_table(console, table)


def show_table(console: Console, table: Table) -> None:
    """Print a table, or its cells one by one where the console is too narrow: nothing is cut."""
    unbounded = console.options.update_width(10_000)
    # Not the minimum: that is of a title's longest word, and beside it the others are cut.
    if console.measure(table, options=unbounded).maximum <= console.width:
        console.print(table)
    else:
        _print_facts(console, table)


def _print_facts(console: Console, table: Table) -> None:
    titles = [str(column.header) for column in table.columns]
    width = max(map(len, titles))
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for title, cell in zip(titles, row, strict=True):
            console.print(f"{title:<{width}}  {cell}", highlight=False, soft_wrap=True)


def bytes_text(count: int) -> str:
    """Return `count` as a person reads it: 512 B, 1.5 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
