"""The node processes of one machine: which layers each holds and how each is started."""

from __future__ import annotations

import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path

from pydantic import SecretStr

from meshnet.cli.machine import cores, free_memory_bytes, url_here
from meshnet.cli.settings import ENVIRONMENT_PREFIX, Settings, SettingsError, told
from meshnet.core.routing import parse_split, partition
from meshnet.core.vocabulary import BadField, LayerRange
from meshnet.engine.models.depth import depth
from meshnet.engine.models.pull import LocalModel
from meshnet.mesh.launcher import ChildSpec, LocalLauncher
from meshnet.mesh.restart import RestartPolicy
from meshnet.mesh.threads import thread_environment, threads_each
from meshnet.telemetry.events import Record

RUNS_KEPT = 10
HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below those that systems hand out to whoever asks for any: one of those may be somebody's
before the child that was told of it listens."""


def split_layers(source: LocalModel, *, nodes: int, split: str | None) -> tuple[LayerRange, ...]:
    """Return each node's layers: cuts as the user wrote them, else as even as can be.

    Raises SettingsError, ModelError.
    """
    total, runs = depth(source.path)
    try:
        if split is not None:
            return parse_split(split, total, runs)
        return partition(total, nodes, inseparable=runs)
    except BadField as error:
        flag = "--nodes" if split is None else "--split"
        raise SettingsError(f"{flag}: {told(error)}") from None


def local_launcher(
    settings: Settings,
    layers: Sequence[LayerRange],
    record: Record,
    *,
    ports: Sequence[int] | None = None,
    peers: Sequence[str] | None = None,
) -> LocalLauncher:
    """Return a launcher of one node process per range.

    `ports` are theirs, and `peers` the URLs by which they and their head know each other, if
    something stands before each of them.
    """
    environment = _environment(settings, nodes=len(layers))
    ports = free_ports(len(layers)) if ports is None else ports
    tls = settings.tls_dir is not None
    known = [url_here(HOST, port, tls=tls) for port in ports] if peers is None else peers
    environment[f"{ENVIRONMENT_PREFIX}PEERS"] = ",".join(known)
    return LocalLauncher(
        [
            _spec(f"node-{place}", held, environment, port)
            for place, (held, port) in enumerate(zip(layers, ports, strict=True), start=1)
        ],
        log_dir=log_dir(settings.cache_dir / "logs"),
        record=record,
        policy=RestartPolicy(ready_timeout_s=settings.start_timeout_seconds),
    )


def free_ports(count: int) -> list[int]:
    """Choose ports of loopback that nobody listens on now: each node is told those of the others.

    A child whose port was taken meanwhile does not start, and is started again.
    """
    chosen: list[int] = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(chosen) == count:
                break
            with suppress(OSError):
                held.enter_context(socket.create_server((HOST, port)))
                chosen.append(port)
    return chosen


def _spec(name: str, layers: LayerRange, environment: dict[str, str], port: int) -> ChildSpec:
    def command(port: int) -> Sequence[str]:
        return (
            *(sys.executable, "-m", "meshnet", "node"),
            *("--layers", str(layers), "--host", HOST, "--port", str(port)),
            *("--json-ready", "--end-with-stdin"),
        )

    return ChildSpec(name, command, environment, port)


def _environment(settings: Settings, *, nodes: int) -> dict[str, str]:
    """Return a child's environment: this one, with every setting of ours made explicit."""
    threads = settings.threads or threads_each(cores=cores(), nodes=nodes)
    own = settings_environment(settings)
    own[f"{ENVIRONMENT_PREFIX}THREADS"] = str(threads)
    if settings.kv_max_bytes is None and settings.device == "cpu":
        # Each node would claim half of the memory that all of them share.
        own[f"{ENVIRONMENT_PREFIX}KV_MAX_BYTES"] = str(max(1, free_memory_bytes() // 2 // nodes))
    return {
        **os.environ,
        **own,
        **thread_environment(cores=cores(), nodes=nodes, threads=threads),
    }


def settings_environment(settings: Settings) -> dict[str, str]:
    """Return the variables by which another process reads these settings."""
    return {
        f"{ENVIRONMENT_PREFIX}{name.upper()}": _text(value)
        for name, value in settings
        if value is not None and value != ()
    }


def _text(value: object) -> str:
    match value:
        case Enum():
            return str(value.value)
        case SecretStr():
            return value.get_secret_value()
        case tuple():
            return ",".join(_text(part) for part in value)
        case _:
            return str(value)


def log_dir(logs: Path) -> Path:
    """Make this run's directory and forget all but the latest few. Raises SettingsError."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        _forget(logs)
        return Path(tempfile.mkdtemp(prefix=f"{time.strftime('%Y%m%dT%H%M%S')}-", dir=logs))
    except OSError as error:
        raise SettingsError(
            f"{logs}: cannot keep the logs of the nodes: {error.strerror}. "
            "Choose another cache_dir (MESHNET_CACHE_DIR)."
        ) from None


def _forget(logs: Path) -> None:
    runs = sorted((path for path in logs.iterdir() if path.is_dir()), key=lambda path: path.name)
    for old in runs[: -RUNS_KEPT + 1]:
        shutil.rmtree(old, ignore_errors=True)
