"""The options that the measurements share, each written once, and what they become."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshnet.cli.bench.paired_command import Order

RESULTS = Path("benchmarks/results")
Out = Annotated[Path, typer.Option("--out", help="Directory of the result files.", file_okay=False)]
SideNames = Annotated[
    list[str] | None,
    typer.Option("--side", metavar="SIDE", help="Who takes turns. Repeatable; ours first."),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Samples of each side.")]
Warmups = Annotated[int, typer.Option("--warmups", min=0, help="Rounds thrown away.")]
Cores = Annotated[
    str | None,
    typer.Option(
        "--cores", metavar="A,B", show_default="all", help="Pin every process to these."
    ),
]  # fmt: skip
OtherMax = Annotated[
    float,
    typer.Option("--other-max", min=0.0, help="Other load, in cores, that spoils a sample."),
]


def order_of(
    sides: list[str] | None,
    rounds: int,
    warmups: int,
    cores: str | None,
    other_max: float,
    out: Path,
) -> Order:
    from meshnet.cli.bench.paired import Rules
    from meshnet.cli.bench.paired_command import Order
    from meshnet.cli.bench.sides import SideSpec

    rules = Rules(rounds=rounds, warmups=warmups, other_max=other_max)
    specs = tuple(SideSpec.parse(text) for text in sides or ["mesh:2x1"])
    return Order(specs, rules, cores, out)


def numbers_of(flag: str, text: str) -> list[int]:
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise typer.BadParameter(f"{flag}: expected whole numbers like 1,5,20, got {text!r}")
    return numbers
