"""Every command of the docs is run as it stands there, or stands below with a reason."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.documented import EVERYWHERE, ROOT, Places, Section, SectionRun, Shell, pages, sections
from typer.main import get_command

from meshnet.cli.app import build_app

ELSEWHERE = {
    "docs/etcd-systemd.md": "tests/cluster/test_etcd_page.py",
    "docs/ray.md": "tests/ray/test_ray_page.py",
}
"""Pages, or sections of them, whose commands have a test of their own."""
NOT_RUN = {
    "make setup": "whoever runs this test has done it",
    "source ": "the environment is the one that runs this test",
    "make demo": "is `meshnet run` with a model of 93 MB",
    "make test": "suites of their own, this one among them",
    "make peers": "builds llama.cpp; tests/tools/test_peers.py",
    "meshnet bench ": "measures for minutes; tests/cli/bench",
    "python -m tools.chaos ": "storms for an hour; tests/chaos",
    "python -m pip install ": "`make test-wheel`",
    "meshnet --install-completion": "writes to a shell's files; tests/cli/test_completion.py",
}
"""Commands that no test runs as they stand, by how they begin, and why."""


def not_run(command: str) -> bool:
    return any(command.startswith(start) for start in NOT_RUN)


SECTIONS = [section for page in pages() for section in sections(page)]


def run_here(section: Section) -> bool:
    elsewhere = str(section).startswith(tuple(ELSEWHERE))
    return not elsewhere and not all(not_run(command) for command in section.commands)


@pytest.mark.slow
@pytest.mark.parametrize("section", [s for s in SECTIONS if run_here(s)], ids=str)
def test_a_section_does_what_it_says(section: Section, tiny_model_dir: Path, tmp_path: Path):
    places = Places()
    changes = {
        "smollm2-135m": str(tiny_model_dir),
        "./my-model": str(tiny_model_dir),
        "0-15": "0-2",
        "15-30": "2-4",
        "device=cuda": "device=cpu",
        "examples/": f"{ROOT}/examples/",
        "/etc/meshnet/tls": "certs/gateway",
        "…": "secret",
        "=...": "=secret",
    }
    told = tuple(
        (language, tuple(command for command in commands if not not_run(command)))
        for language, commands in section.blocks
    )
    with ExitStack() as stack:
        shell = Shell(tmp_path, stack, changes)
        shell.environment |= {
            "MESHNET_MODEL": str(tiny_model_dir), "MESHNET_PORT": places.gateway,
            "MESHNET_CACHE_DIR": str(tmp_path / "cache"), "MESHNET_THREADS": "1",
            "MESHNET_STATE_DIR": str(tmp_path / "state"), "MESHNET_MEASURE": "false",
            "MESHNET_SETTLE_SECONDS": "1", "MESHNET_NODES_MIN": str(nodes_of(section)),
        }  # fmt: skip
        SectionRun(shell, places).run(Section(section.page, section.title, told))


def nodes_of(section: Section) -> int:
    """How many nodes join in it."""
    joining = [c for c in section.commands if c.startswith("meshnet node --join")]
    return max(1, len(joining) + sum(1 for c in joining if EVERYWHERE.search(c)))


INLINE = re.compile(r"`((?:meshnet|make|python -m tools\.)[ a-z][^`]*)`")


def written() -> list[tuple[str, str]]:
    """Every command of a block, and every one within a sentence or a table."""
    blocks = [(str(section), command) for section in SECTIONS for command in section.commands]
    inline = [
        (page.name, command)
        for page in pages()
        for command in INLINE.findall(page.read_text(encoding="utf-8"))
    ]
    return blocks + inline


def test_every_command_is_one_that_meshnet_make_or_python_knows():
    known = get_command(build_app())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    wrong = []
    for where, command in written():
        words = shlex.split(command, comments=True)
        match [word for word in words if "=" not in word or word.startswith("-")]:
            case ["make", target, *_]:
                right = target in targets
            case ["python", "-m", module, *_] if module.startswith("tools."):
                right = (ROOT / f"{module.replace('.', '/')}.py").is_file()
            case ["meshnet", *rest]:
                right = knows(known, rest)
            case _:
                right = True
        wrong += [] if right else [f"{where}: {command}"]

    assert wrong == []


def knows(command: object, words: list[str]) -> bool:
    """Whether `command`, or what of it `words` name, has all their options."""
    for word in words:
        if word in getattr(command, "commands", {}):
            command = command.commands[word]  # type: ignore[attr-defined]
        elif word.startswith("--"):
            options = {n for option in command.params for n in option.opts}  # type: ignore[attr-defined]
            if word.partition("=")[0] not in {*options, "--install-completion"}:
                return False
        elif hasattr(command, "commands"):
            return False
    return True


def test_what_is_not_run_is_still_in_the_docs():
    commands = [command for section in SECTIONS for command in section.commands]

    assert [s for s in NOT_RUN if not any(c.startswith(s) for c in commands)] == []


@pytest.mark.parametrize("place", sorted(ELSEWHERE))
def test_what_has_a_test_of_its_own_is_there_and_so_is_the_test(place: str):
    assert any(str(section).startswith(place) for section in SECTIONS)
    assert (ROOT / ELSEWHERE[place]).is_file()
