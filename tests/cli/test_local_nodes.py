"""What a node process of `meshnet up` is started with."""

from pathlib import Path

import pytest

from meshnet.cli.local_nodes import RUNS_KEPT, free_ports, local_launcher
from meshnet.cli.settings import Settings, load_settings
from meshnet.core.vocabulary import LayerRange
from meshnet.mesh.launcher import LocalLauncher

LAYERS = (LayerRange(0, 2), LayerRange(2, 4))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import os

    for name in [name for name in os.environ if name.startswith("MESHNET_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def launcher(tmp_path: Path, **flags: object) -> tuple[LocalLauncher, Settings]:
    settings = load_settings({"cache_dir": tmp_path / "cache", **flags})
    return local_launcher(settings, LAYERS, lambda event: None), settings


def close(made: LocalLauncher) -> None:
    for child in made.children:
        child.log.close()


def test_a_child_reads_the_settings_its_parent_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever file or flag they came from: the child reads them from its environment."""
    made, settings = launcher(
        tmp_path, kv_max_sessions=3, mesh_token="between us", api_keys="a,b", weights="bf16",
        threads=1, kv_max_bytes="64MiB", model="somewhere",
    )  # fmt: skip
    close(made)
    for name, value in made.children[0].spec.environment.items():
        monkeypatch.setenv(name, value)

    read, peers = load_settings({}).model_dump(), len(LAYERS)
    assert len(set(read.pop("peers"))) == peers, "it is told of all nodes of its machine"
    assert read == settings.model_dump(exclude={"peers"})


def test_every_node_is_told_the_addresses_that_all_of_them_listen_on(tmp_path: Path):
    made, _ = launcher(tmp_path)
    close(made)

    addresses = [f"http://127.0.0.1:{child.port}" for child in made.children]
    assert all(
        child.spec.environment["MESHNET_PEERS"].split(",") == addresses for child in made.children
    )


def test_ports_are_none_that_systems_hand_out_to_whoever_asks_for_any():
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert all(1024 < port < 32768 for port in ports)


def test_a_childs_command_names_its_layers_and_never_a_secret(tmp_path: Path):
    made, _ = launcher(tmp_path, mesh_token="between us")
    close(made)

    commands = [child.spec.command(4321) for child in made.children]

    assert [words[words.index("--layers") + 1] for words in commands] == ["0-2", "2-4"]
    assert all(words[words.index("--port") + 1] == "4321" for words in commands)
    assert not any("between us" in word for words in commands for word in words)


def test_nodes_of_one_machine_share_its_free_memory(tmp_path: Path):
    made, _ = launcher(tmp_path)
    close(made)

    shares = [int(c.spec.environment["MESHNET_KV_MAX_BYTES"]) for c in made.children]

    memory = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
    }
    assert 0 < sum(shares) < memory["MemTotal"]


def test_only_the_latest_logs_are_kept(tmp_path: Path):
    for _ in range(RUNS_KEPT + 5):
        close(launcher(tmp_path)[0])

    assert len(list((tmp_path / "cache" / "logs").iterdir())) == RUNS_KEPT
