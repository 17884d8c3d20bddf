"""The signatures of the measurements of meshnet alone."""

from __future__ import annotations

from typing import Annotated

import typer

from meshnet.cli import options
from meshnet.cli.bench.arguments import (
    RESULTS,
    Cores,
    OtherMax,
    Out,
    Rounds,
    Warmups,
    numbers_of,
    order_of,
)


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
    order = order_of(None, 1, 0, None, 0.0, out)
    measure_exact(chosen, order, tokens=tokens, kills=kills, as_json=as_json)


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
    order = order_of(None, rounds, warmups, cores, other_max, out)
    measure_budget(chosen, order, nodes=nodes, tokens=tokens, as_json=as_json)


def shard(
    model: options.Model = None,
    early: Annotated[int, typer.Option("--early", min=1)] = 100,
    late: Annotated[int, typer.Option("--late", min=2)] = 1400,
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
    """The engine alone: does a decode cost the same late as early, attention apart?"""
    from meshnet.cli.bench.shard_growth import measure_growth

    if late <= early:
        raise typer.BadParameter("--late: expected more than --early")
    flags = {"model": model, "weights": weights, "threads": threads}
    chosen = options.settings_from(flags, config, settings)
    order = order_of(None, rounds, warmups, cores, other_max, out)
    measure_growth(chosen, order, early=early, late=late, as_json=as_json)


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
    order = order_of(None, rounds, warmups, cores, other_max, out)
    delays_ms = [float(each) for each in numbers_of("--delays", delays)]
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
    order = order_of(None, 1, 0, None, 0.0, out)
    measure_memory(chosen, order, nodes=nodes, length=length, as_json=as_json)


def acceptance(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="RUN", help="Repeatable; default: all.")
    ] = None,
    rounds: Rounds = 5,
    warmups: Warmups = 1,
    cores: Cores = None,
    other_max: OtherMax = 0.12,
    out: Out = RESULTS,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Every run of the acceptance table, and the table: targets, figures, met or missed."""
    from meshnet.cli.bench.acceptance import measure_acceptance

    chosen = options.settings_from({}, config, settings)
    order = order_of(None, rounds, warmups, cores, other_max, out)
    measure_acceptance(chosen, order, only or (), as_json=as_json)


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
