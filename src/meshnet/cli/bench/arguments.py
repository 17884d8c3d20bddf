"""The options that the measurements share, each written once, and what they become.

`measurement` gives a command those options beside its own; the command gets them as one `Asked`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from meshnet.cli import options

if TYPE_CHECKING:
    from meshnet.cli.bench.order import Order
    from meshnet.cli.settings import Settings

RESULTS = Path("benchmarks/results")
Command = Callable[..., None]

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

SETTINGS: dict[str, Any] = {
    "model": options.Model,
    "weights": options.WeightsFlag,
    "threads": options.Threads,
}
"""Options that are settings of the same name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asks of any measurement."""

    settings: Settings
    order: Order
    as_json: bool


def measurement(
    *,
    sides: bool = False,
    rounds: int | None = 5,
    warmups: int = 1,
    chosen: tuple[str, ...] = tuple(SETTINGS),
) -> Callable[[Command], Command]:
    """Return what turns `command(asked, own options)` into a command with the shared options too.

    Args:
        sides: whether the user says who takes part.
        rounds: how many by default; None where nothing is measured more than once.
        warmups: how many of them by default.
        chosen: which settings have an option of their own.
    """
    shared: dict[str, tuple[Any, Any]] = {name: (SETTINGS[name], None) for name in chosen}
    if sides:
        shared["side"] = (SideNames, None)
    if rounds is not None:
        shared |= {
            "rounds": (Rounds, rounds),
            "warmups": (Warmups, warmups),
            "other_max": (OtherMax, 0.12),
        }
    shared |= {
        "cores": (Cores, None),
        "out": (Out, RESULTS),
        "as_json": (options.Json, False),
        "config": (options.Config, None),
        "settings": (options.Set, None),
    }

    def with_options(command: Command) -> Command:
        def called(**given: Any) -> None:
            values = {name: given.pop(name) for name in shared}
            command(_asked(values, chosen), **given)

        return _signed(called, command, shared)

    return with_options


def _asked(values: dict[str, Any], chosen: tuple[str, ...]) -> Asked:
    from meshnet.cli.bench.order import Order
    from meshnet.cli.bench.paired import Rules
    from meshnet.cli.bench.sides import SideSpec

    flags = {name: values[name] for name in chosen}
    settings = options.settings_from(flags, values["config"], values["settings"])
    rules = Rules(
        rounds=values.get("rounds", 1),
        warmups=values.get("warmups", 0),
        other_max=values.get("other_max", 0.0),
    )
    named = values.get("side") or ["mesh:2x1"]
    specs = tuple(SideSpec.parse(text) for text in named)
    return Asked(settings, Order(specs, rules, values["cores"], values["out"]), values["as_json"])


def _signed(called: Command, command: Command, shared: dict[str, tuple[Any, Any]]) -> Command:
    """Give `called` the signature of both, by which typer knows the options."""
    hints = get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(each.replace(annotation=hints[each.name], kind=keyword) for each in own),
        *(
            inspect.Parameter(name, keyword, default=default, annotation=annotation)
            for name, (annotation, default) in shared.items()
        ),
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    return called


def numbers_of(flag: str, text: str) -> list[int]:
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise typer.BadParameter(f"{flag}: expected whole numbers like 1,5,20, got {text!r}")
    return numbers
