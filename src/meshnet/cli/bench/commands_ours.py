"""The signatures of the measurements of meshnet alone."""

from __future__ import annotations

from typing import Annotated

import typer

from meshnet.cli import options
from meshnet.cli.bench.arguments import Asked, measurement, numbers_of


@measurement(rounds=None)
def exact(
    asked: Asked,
    tokens: Annotated[int, typer.Option("--tokens", min=4)] = 64,
    kills: Annotated[int, typer.Option("--kills", min=1, help="Answers with a death.")] = 20,
) -> None:
    """One answer in every way there is: is it the same to the last bit? Exits with 1 if not."""
    from meshnet.cli.bench.exact import measure_exact

    measure_exact(asked, tokens=tokens, kills=kills)


@measurement()
def budget(
    asked: Asked,
    nodes: options.Nodes = 2,
    tokens: Annotated[int, typer.Option("--tokens", min=8)] = 96,
) -> None:
    """Where the time of one token goes, and what meshnet itself costs of it."""
    from meshnet.cli.bench.budget_command import budget_report, budget_result
    from meshnet.cli.bench.results import publish

    result = budget_result(asked.settings, asked.order, nodes=nodes, tokens=tokens)
    publish(result, budget_report(result), asked)


@measurement()
def shard(
    asked: Asked,
    early: Annotated[int, typer.Option("--early", min=1)] = 100,
    late: Annotated[int, typer.Option("--late", min=2)] = 1400,
) -> None:
    """The engine alone: does a decode cost the same late as early, attention apart?"""
    from meshnet.cli.bench.results import publish
    from meshnet.cli.bench.shard_growth import growth_report, growth_result

    if late <= early:
        raise typer.BadParameter("--late: expected more than --early")
    result = growth_result(asked.settings, asked.order, early=early, late=late)
    publish(result, growth_report(result), asked)


@measurement(rounds=3)
def latency(
    asked: Asked,
    nodes: options.Nodes = 3,
    delays: Annotated[
        str, typer.Option("--delays", metavar="A,B", help="One-way delays of every link, ms.")
    ] = "0,5,20,50,100",
    tokens: Annotated[int, typer.Option("--tokens", min=2)] = 24,
) -> None:
    """Tokens over long wires, against what the delay alone must cost."""
    from meshnet.cli.bench.latency import latency_report, latency_result
    from meshnet.cli.bench.results import publish

    delays_ms = [float(each) for each in numbers_of("--delays", delays)]
    result = latency_result(
        asked.settings, asked.order, nodes=nodes, tokens=tokens, delays_ms=delays_ms
    )
    publish(result, latency_report(result), asked)


@measurement()
def plan(
    asked: Asked,
    seed: Annotated[int, typer.Option("--seed", help="Draws meshes and layouts.")] = 1,
    meshes: Annotated[int, typer.Option("--meshes", min=1)] = 3,
    tokens: Annotated[int, typer.Option("--tokens", min=2)] = 48,
) -> None:
    """Meshes of slow and far machines: as fast as predicted? Is the plan the best there is?"""
    from meshnet.cli.bench.plan import plan_report, plan_result
    from meshnet.cli.bench.results import publish

    result = plan_result(asked.settings, asked.order, seed=seed, meshes=meshes, tokens=tokens)
    publish(result, plan_report(result), asked)


@measurement(rounds=None)
def memory(
    asked: Asked,
    nodes: options.Nodes = 2,
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of the prompt.")] = 1000,
) -> None:
    """What a node takes beside its weights and its K/V, and the most it took while loading."""
    from meshnet.cli.bench.memory import memory_report, memory_result
    from meshnet.cli.bench.results import publish

    result = memory_result(asked.settings, asked.order, nodes=nodes, length=length)
    publish(result, memory_report(result), asked)


@measurement(chosen=())
def acceptance(
    asked: Asked,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="RUN", help="Repeatable; again even if it is there."),
    ] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Do not go on with what is there.")] = False,
) -> None:
    """Every run of the acceptance table, and the table: targets, figures, met or missed."""
    from meshnet.cli.bench.acceptance import measure_acceptance

    measure_acceptance(asked, only or (), anew=anew)


@measurement(rounds=1, warmups=0)
def flatness(
    asked: Asked,
    nodes: options.Nodes = 2,
    tokens: Annotated[int, typer.Option("--tokens", min=64)] = 1500,
) -> None:
    """Tokens per second by position, cached and stateless, and what each hop costs."""
    from meshnet.cli.bench.flatness import flatness_report, flatness_result
    from meshnet.cli.bench.results import publish

    result = flatness_result(asked.settings, asked.order, nodes=nodes, tokens=tokens)
    publish(result, flatness_report(result), asked)
