"""Every command of docs/etcd-systemd.md that needs no systemd, as it stands there."""

from __future__ import annotations

import asyncio
import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.cluster.joining import free_port
from tests.documented import ROOT, Shell, sections
from tests.mesh.etcd import etcd, needs_etcd
from typer.main import get_command

from meshnet.cli.app import build_app
from meshnet.core.vocabulary import MemberState
from meshnet.mesh.registry.etcd import EtcdRegistry
from meshnet.mesh.registry.etcd_gateway import EtcdAccess, EtcdGateway
from meshnet.mesh.registry.ports import RegistryLost

PAGE = ROOT / "docs" / "etcd-systemd.md"
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
SHARED = ("User", "CacheDirectory", "StateDirectory")


def commands() -> list[list[str]]:
    """The commands of each block of the page."""
    return [list(c) for section in sections(PAGE) for _, c in section.blocks]


@contextmanager
def shell(directory: Path, changes: dict[str, str]) -> Iterator[Shell]:
    with ExitStack() as stack:
        yield Shell(directory, stack, changes)


def etcd_at(client: str, peer: str) -> dict[str, str]:
    """What makes an `etcd` without arguments listen on these ports."""
    own, others = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    return {
        "ETCD_LISTEN_CLIENT_URLS": own,
        "ETCD_ADVERTISE_CLIENT_URLS": own,
        "ETCD_LISTEN_PEER_URLS": others,
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": others,
        "ETCD_INITIAL_CLUSTER": f"default={others}",
        "ETCD_LOGGER": "zap",
    }


async def until_ready(port: str, count: int) -> None:
    async with EtcdGateway((f"http://127.0.0.1:{port}",), EtcdAccess()) as gateway:
        registry = EtcdRegistry(gateway, "meshnet")
        async with asyncio.timeout(120):
            while True:
                with suppress(RegistryLost):
                    members = (await registry.snapshot()).members.values()
                    if [m.member.state for m in members] == [MemberState.READY] * count:
                        return
                await asyncio.sleep(0.2)


@pytest.mark.etcd
async def test_the_commands_for_one_machine_do_what_the_page_says(
    tiny_model_dir: Path, tmp_path: Path
):
    needs_etcd()
    ports = {port: str(free_port()) for port in ("2379", "2380", "9001", "9002")}
    with shell(tmp_path, {**ports, "/tmp/meshnet-etcd": str(tmp_path / "etcd")}) as page:
        page.environment |= etcd_at(ports["2379"], ports["2380"]) | {
            "MESHNET_MODEL": str(tiny_model_dir), "MESHNET_PORT": "0", "MESHNET_NODES_MIN": "2",
            "MESHNET_CACHE_DIR": str(tmp_path / "cache"), "MESHNET_MEASURE": "false",
            "MESHNET_SETTLE_SECONDS": "1", "MESHNET_WEIGHTS": "fp32", "MESHNET_THREADS": "1",
        }  # fmt: skip
        *background, status, drain = commands()[0]
        first = [page.start(line) for line in background][2]
        await until_ready(ports["2379"], 2)

        shown = page.run(status)
        page.run(drain)

        assert "2 members" in shown
        assert shown.count(" ready ") == 2
        assert first.wait(timeout=60) == 0
        assert "1 members" in page.run(status)


@pytest.mark.etcd
def test_the_commands_for_users_let_a_user_in_and_nobody_else(tmp_path: Path):
    if shutil.which("etcdctl") is None:
        pytest.skip("there is no etcdctl here: install Debian's etcd-client")
    with etcd() as cluster, shell(tmp_path, {"127.0.0.1:2379": cluster.url[7:]}) as page:
        page.environment["ETCDCTL_ENDPOINTS"] = cluster.endpoints[0]
        for name in ("root", "meshnet"):
            (tmp_path / f"{name}-password").write_text(f"secret-of-{name}")
        *roles, status = commands()[1]
        for line in roles:
            page.run(line)

        assert "0 members" in page.run(status)
        with pytest.raises(AssertionError, match="user name is empty"):
            page.run(status.rpartition('" ')[2])


def test_the_commands_for_many_machines_put_everything_in_its_place(tmp_path: Path):
    lines = commands()[2]
    with shell(tmp_path, {"deploy/": f"{ROOT}/deploy/", "examples/": f"{ROOT}/examples/"}) as page:
        page.environment["DESTDIR"] = str(tmp_path)
        for line in lines:
            if not line.startswith("sudo systemctl "):
                page.run(line)

    assert len(commands()) == 3
    placed = tmp_path / "etc/systemd/system"
    assert sorted(path.name for path in placed.iterdir()) == [path.name for path in UNITS]
    assert (tmp_path / "etc/meshnet/meshnet.toml").stat().st_mode & 0o777 == 0o600
    assert "HOST=0.0.0.0" in (tmp_path / "etc/meshnet/gateway.env").read_text()


def test_units_that_share_directories_share_their_user_and_start_again_however_often():
    said = []
    for unit in UNITS:
        read = configparser.ConfigParser(strict=False, interpolation=None)
        read.optionxform = str  # type: ignore[assignment,method-assign]
        read.read_string(unit.read_text(encoding="utf-8"))
        said.append({name: read["Service"].get(name) for name in SHARED})
        assert read["Unit"]["StartLimitIntervalSec"] == "0"

    assert said[0] == said[1]
    assert None not in said[0].values()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_units_and_finds_little_exposed(unit: Path, tmp_path: Path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    text = unit.read_text(encoding="utf-8")
    assert "/opt/meshnet/bin/meshnet" in text
    here = tmp_path / unit.name
    here.write_text(text.replace("/opt/meshnet/bin/meshnet", sys.executable))

    for ask in (["verify"], ["security", "--offline=true", "--no-pager", "--threshold=20"]):
        told = subprocess.run(
            ["systemd-analyze", *ask, str(here)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
        assert unit.name not in told.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_command_of_a_unit_is_one_that_meshnet_knows(unit: Path):
    line = re.search(r"ExecStart=\S+ (.*)", unit.read_text(encoding="utf-8"))
    assert line is not None
    command, *arguments = shlex.split(line[1])
    known = {name for option in get_command(build_app()).commands[command].params
             for name in option.opts}  # fmt: skip

    assert {word for word in arguments if word.startswith("--")} <= known
