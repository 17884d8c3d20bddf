"""The signatures of `meshnet bench`: what is measured, and where the result goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshnet.cli import options

if TYPE_CHECKING:
    from meshnet.cli.bench.paired_command import Order

FLATNESS_EXAMPLES = """
[bold]Example[/bold]

  meshnet bench flatness --tokens 1500 --json
"""

SPLIT_TAX_EXAMPLES = """
[bold]Example[/bold]

  meshnet bench split-tax --rounds 5
"""

PAIRED_EXAMPLES = """
[bold]Sides[/bold]

  mesh:2x1, mesh:3x1@bf16, engine:1, generate:2, llama:2, llama-rpc:2x1

[bold]Example[/bold]

  meshnet bench {name} --side mesh:2x1 --side llama-rpc:2x1 --rounds 5
"""

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


def bench_app() -> typer.Typer:
    """Return `meshnet bench`."""
    app = typer.Typer(
        help="Measure a mesh on this machine, beside its baselines.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    for name, command in PAIRED.items():
        app.command(name, epilog=PAIRED_EXAMPLES.format(name=name))(command)
    app.command("budget")(budget)
    app.command("latency")(latency)
    app.command("memory")(memory)
    app.command("exact")(exact)
    app.command("flatness", epilog=FLATNESS_EXAMPLES)(flatness)
    app.command("split-tax", epilog=SPLIT_TAX_EXAMPLES)(split_tax)
    return app


def decode(
    model: options.Model = None,
    side: SideNames = None,
    tokens: Annotated[int, typer.Option("--tokens", min=2)] = 128,
    weights: options.WeightsFlag = None,
    rounds: Rounds = 5,
    warmups: Warmups = 1,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """One session: tokens per second after the first token."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    chosen = options.settings_from({"model": model, "weights": weights}, config, settings)
    order = _order(side, rounds, warmups, cores, other_max, out)
    measure_paired(chosen, scenarios.decode(tokens), order, as_json=as_json)


def prefill(
    model: options.Model = None,
    side: SideNames = None,
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of the prompt.")] = 512,
    weights: options.WeightsFlag = None,
    rounds: Rounds = 5,
    warmups: Warmups = 1,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """A long prompt: tokens per second up to the first token."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    chosen = options.settings_from({"model": model, "weights": weights}, config, settings)
    order = _order(side, rounds, warmups, cores, other_max, out)
    measure_paired(chosen, scenarios.prefill(length), order, as_json=as_json)


def positions(
    model: options.Model = None,
    side: SideNames = None,
    early: Annotated[int, typer.Option("--early", min=1)] = 100,
    late: Annotated[int, typer.Option("--late", min=2)] = 1400,
    weights: options.WeightsFlag = None,
    rounds: Rounds = 3,
    warmups: Warmups = 0,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """One long answer: is a late token as quick as an early one?"""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    if late <= early:
        raise typer.BadParameter("--late: expected more than --early")
    chosen = options.settings_from({"model": model, "weights": weights}, config, settings)
    order = _order(side, rounds, warmups, cores, other_max, out)
    measure_paired(chosen, scenarios.positions(early, late), order, as_json=as_json)


def concurrency(
    model: options.Model = None,
    side: SideNames = None,
    sessions: Annotated[
        str, typer.Option("--sessions", metavar="A,B", help="How many at once.")
    ] = "1,2,4,8,16",
    tokens: Annotated[int, typer.Option("--tokens", min=2)] = 64,
    weights: options.WeightsFlag = None,
    rounds: Rounds = 5,
    warmups: Warmups = 1,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Many sessions at once, through the API: tokens per second of all."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    counts = _numbers("--sessions", sessions)
    if 0 in counts:
        raise typer.BadParameter("--sessions: expected at least one session")
    chosen = options.settings_from({"model": model, "weights": weights}, config, settings)
    order = _order(side, rounds, warmups, cores, other_max, out)
    measure_paired(chosen, scenarios.concurrency(counts, tokens), order, as_json=as_json)


def ttft(
    model: options.Model = None,
    side: SideNames = None,
    others: Annotated[int, typer.Option("--others", min=1, help="Sessions that decode.")] = 7,
    probes: Annotated[int, typer.Option("--probes", min=1)] = 5,
    weights: options.WeightsFlag = None,
    rounds: Rounds = 5,
    warmups: Warmups = 1,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """A short prompt's first token, alone and while others decode."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    chosen = options.settings_from({"model": model, "weights": weights}, config, settings)
    order = _order(side, rounds, warmups, cores, other_max, out)
    scenario = scenarios.ttft(others, probes, other_tokens=512)
    measure_paired(chosen, scenario, order, as_json=as_json)


def turns(
    model: options.Model = None,
    side: SideNames = None,
    length: Annotated[
        int, typer.Option("--length", min=8, help="Tokens of the first turn.")
    ] = 1450,
    answer: Annotated[int, typer.Option("--answer", min=1, help="Tokens of its answer.")] = 48,
    weights: options.WeightsFlag = None,
    rounds: Rounds = 5,
    warmups: Warmups = 1,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """The second turn of a long chat, against a cold prompt as long."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    chosen = options.settings_from({"model": model, "weights": weights}, config, settings)
    order = _order(side, rounds, warmups, cores, other_max, out)
    scenario = scenarios.turns(length, answer, question=24)
    measure_paired(chosen, scenario, order, as_json=as_json)


def budget(
    model: options.Model = None,
    nodes: options.Nodes = 2,
    tokens: Annotated[int, typer.Option("--tokens", min=8)] = 96,
    weights: options.WeightsFlag = None,
    threads: options.Threads = None,
    rounds: Rounds = 5,
    warmups: Warmups = 1,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Where the time of one token goes, and what meshnet itself costs of it."""
    from meshnet.cli.bench.budget_command import measure_budget

    flags = {"model": model, "weights": weights, "threads": threads}
    chosen = options.settings_from(flags, config, settings)
    order = _order(None, rounds, warmups, cores, other_max, out)
    measure_budget(chosen, order, nodes=nodes, tokens=tokens, as_json=as_json)


def latency(
    model: options.Model = None,
    nodes: options.Nodes = 3,
    delays: Annotated[
        str, typer.Option("--delays", metavar="A,B", help="One-way delays of every link, ms.")
    ] = "0,5,20,50,100",
    tokens: Annotated[int, typer.Option("--tokens", min=2)] = 24,
    weights: options.WeightsFlag = None,
    threads: options.Threads = None,
    rounds: Rounds = 3,
    warmups: Warmups = 1,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Tokens over long wires, against what the delay alone must cost."""
    from meshnet.cli.bench.latency import measure_latency

    flags = {"model": model, "weights": weights, "threads": threads}
    chosen = options.settings_from(flags, config, settings)
    order = _order(None, rounds, warmups, cores, other_max, out)
    delays_ms = [float(each) for each in _numbers("--delays", delays)]
    measure_latency(chosen, order, nodes=nodes, tokens=tokens, delays_ms=delays_ms, as_json=as_json)


def memory(
    model: options.Model = None,
    nodes: options.Nodes = 2,
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of the prompt.")] = 1000,
    weights: options.WeightsFlag = None,
    threads: options.Threads = None,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """What a node takes beside its weights and its K/V, and the most it took while loading."""
    from meshnet.cli.bench.memory import measure_memory

    flags = {"model": model, "weights": weights, "threads": threads}
    chosen = options.settings_from(flags, config, settings)
    order = _order(None, 1, 0, None, 0.0, out)
    measure_memory(chosen, order, nodes=nodes, length=length, as_json=as_json)


def exact(
    model: options.Model = None,
    tokens: Annotated[int, typer.Option("--tokens", min=4)] = 64,
    kills: Annotated[int, typer.Option("--kills", min=1, help="Answers with a death.")] = 20,
    weights: options.WeightsFlag = None,
    threads: options.Threads = None,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """One answer in every way there is: are they the same to the last bit?"""
    from meshnet.cli.bench.exact import measure_exact

    flags = {"model": model, "weights": weights, "threads": threads}
    chosen = options.settings_from(flags, config, settings)
    order = _order(None, 1, 0, None, 0.0, out)
    measure_exact(chosen, order, tokens=tokens, kills=kills, as_json=as_json)


def flatness(
    model: options.Model = None,
    nodes: options.Nodes = 2,
    tokens: Annotated[int, typer.Option("--tokens", min=64)] = 1500,
    weights: options.WeightsFlag = None,
    threads: options.Threads = None,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Tokens per second by position, cached and stateless, and what each hop costs."""
    from meshnet.cli.bench.flatness import measure_flatness

    flags = {"model": model, "weights": weights, "threads": threads}
    chosen = options.settings_from(flags, config, settings)
    measure_flatness(chosen, nodes=nodes, tokens=tokens, out=out, as_json=as_json)


def split_tax(
    model: options.Model = None,
    tokens: Annotated[int, typer.Option("--tokens", min=8)] = 128,
    rounds: Annotated[int, typer.Option("--rounds", min=1)] = 5,
    weights: options.WeightsFlag = None,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Two nodes against the unsplit engine on the same cores."""
    from meshnet.cli.bench.split_tax import measure_split_tax

    flags = {"model": model, "weights": weights}
    chosen = options.settings_from(flags, config, settings)
    measure_split_tax(chosen, tokens=tokens, rounds=rounds, out=out, as_json=as_json)


PAIRED: dict[str, Callable[..., None]] = {
    "decode": decode,
    "prefill": prefill,
    "positions": positions,
    "concurrency": concurrency,
    "ttft": ttft,
    "turns": turns,
}


def _order(
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


def _numbers(flag: str, text: str) -> list[int]:
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise typer.BadParameter(f"{flag}: expected whole numbers like 1,5,20, got {text!r}")
    return numbers
