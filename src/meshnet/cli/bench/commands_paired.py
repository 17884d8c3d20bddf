"""The signatures of the paired measurements: sides that take turns at one scenario."""

from __future__ import annotations

from typing import Annotated

import typer

from meshnet.cli.bench.arguments import Asked, Command, measurement, numbers_of

FORMAT = ("model", "weights")
"""Threads stand in the names of the sides."""


@measurement(sides=True, chosen=FORMAT)
def decode(asked: Asked, tokens: Annotated[int, typer.Option("--tokens", min=2)] = 128) -> None:
    """One session: tokens per second after the first token."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    measure_paired(asked, scenarios.decode(tokens))


@measurement(sides=True, chosen=FORMAT)
def prefill(
    asked: Asked,
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of the prompt.")] = 512,
) -> None:
    """A long prompt: tokens per second up to the first token."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    measure_paired(asked, scenarios.prefill(length))


@measurement(sides=True, chosen=FORMAT, rounds=3, warmups=0)
def positions(
    asked: Asked,
    early: Annotated[int, typer.Option("--early", min=1)] = 100,
    late: Annotated[int, typer.Option("--late", min=2)] = 1400,
) -> None:
    """One long answer: is a late token as quick as an early one?"""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    if late <= early:
        raise typer.BadParameter("--late: expected more than --early")
    measure_paired(asked, scenarios.positions(early, late))


@measurement(sides=True, chosen=FORMAT)
def concurrency(
    asked: Asked,
    sessions: Annotated[
        str, typer.Option("--sessions", metavar="A,B", help="How many at once.")
    ] = "1,2,4,8,16",
    tokens: Annotated[int, typer.Option("--tokens", min=2)] = 64,
) -> None:
    """Many sessions at once, through the API: tokens per second of all."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    counts = numbers_of("--sessions", sessions)
    if 0 in counts:
        raise typer.BadParameter("--sessions: expected at least one session")
    measure_paired(asked, scenarios.concurrency(counts, tokens))


@measurement(sides=True, chosen=FORMAT)
def ttft(
    asked: Asked,
    others: Annotated[int, typer.Option("--others", min=1, help="Sessions that decode.")] = 7,
    probes: Annotated[int, typer.Option("--probes", min=1)] = 5,
) -> None:
    """A short prompt's first token, alone and while others decode."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    measure_paired(asked, scenarios.ttft(others, probes, other_tokens=512))


@measurement(sides=True, chosen=FORMAT)
def turns(
    asked: Asked,
    length: Annotated[
        int, typer.Option("--length", min=8, help="Tokens of the first turn.")
    ] = 1450,
    answer: Annotated[int, typer.Option("--answer", min=1, help="Tokens of its answer.")] = 48,
) -> None:
    """The second turn of a long chat, against a cold prompt as long."""
    from meshnet.cli.bench import scenarios
    from meshnet.cli.bench.paired_command import measure_paired

    measure_paired(asked, scenarios.turns(length, answer, question=24))


@measurement(chosen=FORMAT)
def split_tax(asked: Asked, tokens: Annotated[int, typer.Option("--tokens", min=8)] = 128) -> None:
    """Two nodes against one, and against the engine alone, on the same cores."""
    from meshnet.cli.bench.paired_command import measure_paired
    from meshnet.cli.bench.split_tax import split_tax_order, split_tax_scenario

    order = split_tax_order(asked.order)
    measure_paired(Asked(asked.settings, order, asked.as_json), split_tax_scenario(tokens))


PAIRED: dict[str, Command] = {
    "decode": decode,
    "prefill": prefill,
    "positions": positions,
    "concurrency": concurrency,
    "ttft": ttft,
    "turns": turns,
}
