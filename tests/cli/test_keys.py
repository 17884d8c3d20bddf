"""`meshnet keys`: what is kept of a key, and what a running gateway takes up."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshnet.cli.keys.commands import keys_app
from meshnet.cli.keys.file import KeyFile, KeyFileError, add_key, read_keys, revoke_key
from meshnet.gateway.allowance import digest_of

NO_LIMITS: dict[str, int | None] = {}


def looking(path: Path) -> KeyFile:
    """Looks at the file at each use."""
    passed = iter(range(10**9))
    return KeyFile(path, clock=lambda: float(next(passed)))


def test_only_the_digest_of_a_key_is_kept_and_only_its_owner_reads_it(tmp_path: Path):
    path = tmp_path / "new" / "keys.json"

    key = add_key(path, "alice", {"concurrent": 2})

    (kept,) = read_keys(path)
    assert kept.digest == digest_of(key)
    assert kept.concurrent == 2
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_are_long_and_never_the_same(tmp_path: Path):
    keys = {add_key(tmp_path / "keys.json", f"user-{number}", NO_LIMITS) for number in range(8)}

    assert len(keys) == 8
    assert min(map(len, keys)) >= 43


def test_a_running_gateway_takes_up_what_is_added_and_revoked(tmp_path: Path):
    path = tmp_path / "keys.json"
    add_key(path, "alice", NO_LIMITS)
    file = looking(path)

    add_key(path, "bob", NO_LIMITS)
    both = [key.name for key in file.known()]
    revoke_key(path, "alice")

    assert both == ["alice", "bob"]
    assert [key.name for key in file.known()] == ["bob"]


def test_a_file_that_broke_leaves_what_was(tmp_path: Path):
    path = tmp_path / "keys.json"
    add_key(path, "alice", NO_LIMITS)
    file = looking(path)

    path.write_text("{")

    assert [key.name for key in file.known()] == ["alice"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "keys"),
        ('{"keys": 1}', "keys"),
        ('{"keys": [{"name": "a", "sha256": "00"}]}', "64 hex digits"),
        ('{"keys": [{"name": "a", "sha256": "' + "0" * 64 + '", "concurrent": 0}]}', "concurrent"),
    ],
)
def test_a_wrong_file_is_told_with_its_field(content: str, told: str, tmp_path: Path):
    path = tmp_path / "keys.json"
    path.write_text(content)

    with pytest.raises(KeyFileError, match=told):
        KeyFile(path)


def test_a_gateway_does_not_start_without_its_file(tmp_path: Path):
    with pytest.raises(KeyFileError, match="meshnet keys add"):
        KeyFile(tmp_path / "none.json")


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a/b"])
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path):
    with pytest.raises(KeyFileError, match="NAME: expected"):
        add_key(tmp_path / "keys.json", name, NO_LIMITS)


def test_a_name_is_taken_once(tmp_path: Path):
    add_key(tmp_path / "keys.json", "alice", NO_LIMITS)

    with pytest.raises(KeyFileError, match="revoke"):
        add_key(tmp_path / "keys.json", "alice", NO_LIMITS)


def test_the_commands_do_what_they_say(tmp_path: Path):
    at = ["--file", str(tmp_path / "keys.json")]

    def told(*arguments: str) -> str:
        result = CliRunner().invoke(keys_app(), [*arguments, *at])
        assert result.exit_code == 0, result.output
        return result.output

    key = told("add", "alice", "--tokens-per-minute", "20000").strip()
    listed = told("list")
    told("revoke", "alice")

    assert key.startswith("mn-")
    assert listed == "alice  tokens_per_minute 20000\n"
    assert told("list") == ""
