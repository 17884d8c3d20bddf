"""What all measurements share comes from one place, and every command has it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from meshnet.cli.bench.arguments import Asked, measurement
from meshnet.cli.bench.commands import bench_app

EVERYWHERE = ("--cores", "--out", "--json", "--config", "--set")
GROUP: Any = typer.main.get_command(bench_app())
COMMANDS = dict(GROUP.commands)


def asked_by(*arguments: str, **choices: object) -> tuple[Asked, int]:
    seen: list[tuple[Asked, int]] = []

    @measurement(**choices)  # type: ignore[arg-type]
    def command(asked: Asked, tokens: Annotated[int, typer.Option("--tokens")] = 7) -> None:
        """Measure."""
        seen.append((asked, tokens))

    app = typer.Typer()
    app.command()(command)
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    return seen[0]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_measurement_has_the_shared_options(name: str):
    flags = {flag for option in COMMANDS[name].params for flag in option.opts}

    assert set(EVERYWHERE) <= flags
    assert COMMANDS[name].help


def test_options_become_what_is_asked():
    asked, tokens = asked_by(
        *("--tokens", "3", "--model", "toy", "--weights", "int8", "--rounds", "2"),
        *("--warmups", "0", "--other-max", "0.5", "--cores", "0", "--out", "there", "--json"),
        *("--set", "kv_max_sessions=2", "--threads", "1"),
    )

    assert tokens == 3
    assert (asked.settings.model, asked.settings.weights.value) == ("toy", "int8")
    assert (asked.settings.threads, asked.settings.kv_max_sessions) == (1, 2)
    rules = asked.order.rules
    assert (rules.rounds, rules.warmups, rules.other_max) == (2, 0, 0.5)
    assert (asked.order.cores, asked.order.out) == ("0", Path("there"))
    assert asked.as_json


def test_defaults_are_the_commands_own():
    asked, tokens = asked_by(rounds=3, warmups=0)

    assert tokens == 7
    assert (asked.order.rules.rounds, asked.order.rules.warmups) == (3, 0)
    assert not asked.as_json


def test_sides_are_named_where_there_are_any():
    asked, _ = asked_by("--side", "mesh:3x1", "--side", "engine:1", sides=True, chosen=())

    assert [str(side) for side in asked.order.sides] == ["mesh:3x1", "engine:1"]
