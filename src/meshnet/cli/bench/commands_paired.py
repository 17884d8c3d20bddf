"""The signatures of the paired measurements: sides that take turns at one scenario."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from meshnet.cli import options
from meshnet.cli.bench.arguments import (
    RESULTS,
    Cores,
    OtherMax,
    Out,
    Rounds,
    SideNames,
    Warmups,
    numbers_of,
    order_of,
)


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
    order = order_of(side, rounds, warmups, cores, other_max, out)
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
    order = order_of(side, rounds, warmups, cores, other_max, out)
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
    order = order_of(side, rounds, warmups, cores, other_max, out)
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

    counts = numbers_of("--sessions", sessions)
    if 0 in counts:
        raise typer.BadParameter("--sessions: expected at least one session")
    chosen = options.settings_from({"model": model, "weights": weights}, config, settings)
    order = order_of(side, rounds, warmups, cores, other_max, out)
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
    order = order_of(side, rounds, warmups, cores, other_max, out)
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
    order = order_of(side, rounds, warmups, cores, other_max, out)
    scenario = scenarios.turns(length, answer, question=24)
    measure_paired(chosen, scenario, order, as_json=as_json)


PAIRED: dict[str, Callable[..., None]] = {
    "decode": decode,
    "prefill": prefill,
    "positions": positions,
    "concurrency": concurrency,
    "ttft": ttft,
    "turns": turns,
}
