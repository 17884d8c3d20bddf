"""Run people's clients against a mesh of this machine, and write docs/clients.md.

    python -m tools.clients [--only anthropic,llm] [--write docs/clients.md]

Each suite of tests/clients has an environment of its own below `.venv-clients`, made from what
tests/clients/requirements names. All talk to one mesh: two nodes of the default model in fp32.
Exits 1 if a test of a suite fails, or a suite cannot be set up.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.processes import meshnet

from meshnet.cli.models import resolve_model
from meshnet.cli.settings import Settings

SUITES = Path("tests/clients")
ENVIRONMENTS = Path(".venv-clients")
KEY = "a-key-of-the-client-suites"
SETUP_DEADLINE_S, SUITE_DEADLINE_S = 1800.0, 1800.0
TITLES = {
    "openai": "openai-python", "anthropic": "anthropic", "litellm": "LiteLLM",
    "langchain": "LangChain's standard tests", "llm": "`llm`", "ai_sdk": "Vercel AI SDK",
    "lm_eval": "lm-eval", "schemathesis": "schemathesis",
}  # fmt: skip


@dataclass
class Outcome:
    """Of one suite: its tests by how they ended, and why some were skipped."""

    suite: str
    ended: dict[str, str] = field(default_factory=dict)
    """Test -> passed, skipped, failed."""
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.ended.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(TITLES), help="suites, by commas")
    parser.add_argument("--write", type=Path, help="where the table goes; else it is shown only")
    asked = parser.parse_args()
    names = asked.only.split(",")
    if unknown := set(names) - set(TITLES):
        parser.error(f"--only: expected some of {', '.join(TITLES)}, got {', '.join(unknown)}")
    with TemporaryDirectory() as folder:
        model = _with_tools(Path(folder))
        for name in names:
            _set_up(name)
        with meshnet(
            "up", "--model", str(model), "--nodes", "2", "--port", "0", "--json-ready",
            MESHNET_WEIGHTS="fp32", MESHNET_API_KEYS=KEY,
        ) as process:  # fmt: skip
            told = {
                "MESHNET_SUITE_URL": process.url,
                "MESHNET_SUITE_KEY": KEY,
                "MESHNET_SUITE_MODEL": str(model),
            }
            outcomes = [_run(name, told, Path(folder)) for name in names]
    page = page_of(outcomes)
    print(page)
    if asked.write:
        asked.write.write_text(page, encoding="utf-8")
    return int(any(outcome.counts["failed"] or not outcome.ended for outcome in outcomes))


def _with_tools(folder: Path) -> Path:
    """The default model, whose own template knows no tools, with one that does."""
    source = resolve_model("smollm2-135m", Settings()).path
    model = folder / source.name
    model.mkdir()
    for file in source.iterdir():
        (model / file.name).symlink_to(file)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    (model / "chat_template.jinja").write_text((SUITES / "chat_template.jinja").read_text())
    return model


def _set_up(name: str) -> None:
    """Make the environment of a suite, unless it is there and its requirements are the same."""
    home, wanted = ENVIRONMENTS / name, SUITES / "requirements" / f"{name}.txt"
    stamp = home / "requirements.txt"
    package = SUITES / name / "package.json"
    text = wanted.read_text() + (package.read_text() if package.exists() else "")
    if stamp.exists() and stamp.read_text() == text:
        return
    print(f"setting up {home}", flush=True)
    _call([sys.executable, "-m", "venv", home])
    if name == "lm_eval":  # it compares with the very torch and transformers that nodes use
        here = Path(os.__file__).parent.name
        shared = next(each for each in sys.path if each.endswith("site-packages"))
        (home / "lib" / here / "site-packages" / "project.pth").write_text(shared + "\n")
    _call([home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check",
           "-r", wanted])  # fmt: skip
    if package.exists():
        (home / "package.json").write_text(package.read_text())
        _call(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", home])
    stamp.write_text(text)


def _call(command: Sequence[str | Path]) -> None:
    try:
        subprocess.run([*map(str, command)], check=True, timeout=SETUP_DEADLINE_S)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]}: not found; install it (Debian: nodejs, npm)") from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"could not set up a suite: {error}") from None


def _run(name: str, told: dict[str, str], folder: Path) -> Outcome:
    results, home = folder / f"{name}.xml", (ENVIRONMENTS / name).resolve()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MESHNET_")}
    words = [
        home / "bin" / "python", "-m", "pytest", "-q", "-c", SUITES / "pytest.ini", "--noconftest",
        "--rootdir", SUITES, "-p", "no:cacheprovider", SUITES / f"suite_{name}.py",
        f"--junitxml={results}",
    ]  # fmt: skip
    subprocess.run(
        [*map(str, words)],
        env={**kept, **told, "MESHNET_SUITE_HOME": str(home), "HF_HUB_OFFLINE": "1"},
        check=False,
        timeout=SUITE_DEADLINE_S,
    )
    return outcome_of(name, results)


def outcome_of(suite: str, results: Path) -> Outcome:
    """Read what pytest left; a suite that left nothing has no tests, which is a failure."""
    outcome = Outcome(suite)
    if not results.exists():
        return outcome
    for case in ET.parse(results).iter("testcase"):
        name = case.get("name", "")
        alike = sum(known.partition(" #")[0] == name for known in outcome.ended)
        name += f" #{alike + 1}" if alike else ""  # subtests bear the name of their test
        kinds = {child.tag: child for child in case}
        skipped = kinds.get("skipped")
        if skipped is not None:
            outcome.ended[name] = "skipped"
            outcome.reasons[name] = skipped.get("message", "")
        else:
            outcome.ended[name] = "failed" if {"failure", "error"} & set(kinds) else "passed"
    return outcome


def page_of(outcomes: Sequence[Outcome]) -> str:
    """Return docs/clients.md."""
    lines = [
        "# Clients",
        "",
        "Which programs were tried against a mesh of two nodes, and with what. `make test-clients`",
        "runs all of it again, and writes this page. SmolLM2-135M, fp32.",
        "",
        "| client | passed | skipped | failed |",
        "| --- | ---: | ---: | ---: |",
    ]
    for each in outcomes:
        counts = (each.counts[kind] for kind in ("passed", "skipped", "failed"))
        lines.append(f"| {TITLES[each.suite]} | {' | '.join(map(str, counts))} |")
    return "\n".join([*lines, "", *_features(outcomes), *_skipped(outcomes)])


def _features(outcomes: Sequence[Outcome]) -> list[str]:
    """What suites of our own try, by the names of their tests."""
    own = [each for each in outcomes if each.suite not in ("langchain", "schemathesis")]
    names = dict.fromkeys(name for each in own for name in each.ended)
    lines = [
        "| | " + " | ".join(TITLES[each.suite] for each in own) + " |",
        "| --- |" + " --- |" * len(own),
    ]
    for name in names:
        cells = (each.ended.get(name, "") for each in own)
        lines.append(f"| {name.removeprefix('test_').replace('_', ' ')} | {' | '.join(cells)} |")
    return [*lines, ""]


def _skipped(outcomes: Sequence[Outcome]) -> list[str]:
    reasons = {
        (TITLES[each.suite], re.sub(r"\s+", " ", reason)): [
            name for name, why in each.reasons.items() if why == reason
        ]
        for each in outcomes
        for reason in each.reasons.values()
    }
    if not reasons:
        return []
    lines = ["| skipped | why | tests |", "| --- | --- | ---: |"]
    lines += [f"| {title} | {why} | {len(names)} |" for (title, why), names in reasons.items()]
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(main())
