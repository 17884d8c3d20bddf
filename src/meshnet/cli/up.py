"""`meshnet up`: node processes and the gateway, until asked to stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from importlib.util import find_spec

from meshnet.cli.gateway_process import (
    refuse_exposed,
    refuse_taken_port,
    serve_api,
)
from meshnet.cli.local_mesh import local_mesh
from meshnet.cli.local_nodes import local_launcher, split_layers
from meshnet.cli.models import resolve_model
from meshnet.cli.options import print_ready
from meshnet.cli.serving import run_loop, stop_on_signals
from meshnet.cli.settings import Settings, SettingsError
from meshnet.cli.telling import Telling
from meshnet.core.vocabulary import LayerRange
from meshnet.engine.models.pull import LocalModel


def up(
    settings: Settings, *, nodes: int, split: str | None, ray: str | None = None, as_json: bool
) -> None:
    """Run a mesh on this machine, or with its nodes on those of a Ray. Raises MeshnetError."""
    if ray is not None and split is not None:
        raise SettingsError("--split: expected none with --ray, where the gateway cuts the layers")
    refuse_exposed(settings)
    refuse_taken_port(settings)
    if ray is not None and find_spec("ray") is None:
        raise SettingsError("--ray: expected Ray beside meshnet: pip install 'meshnet[ray]'")
    source = resolve_model(settings.model, settings)
    if ray is not None:
        from meshnet.cli.ray_mesh import up_on_ray  # Ray costs seconds

        up_on_ray(settings, source, ray, nodes, partial(_tell_ready, as_json=as_json))
        return
    run_loop(lambda: _up(settings, source, nodes, split, as_json))


async def _up(
    settings: Settings, source: LocalModel, nodes: int, split: str | None, as_json: bool
) -> None:
    layers = split_layers(source, nodes=nodes, split=split)
    with closing(Telling(settings)) as telling, stop_on_signals() as stop:
        telemetry = telling.telemetry
        launcher = local_launcher(settings, layers, telemetry.record)
        announce_start(source.name, layers)
        print(f"logs of the nodes: {launcher.log_dir}", file=sys.stderr)
        async with local_mesh(
            settings, source, launcher, telemetry.record, stop, through=telling.watching
        ) as composition:
            if composition is not None:
                await serve_api(
                    settings,
                    composition,
                    telemetry,
                    telling.live,
                    stop,
                    lambda url: _tell_ready(url, as_json=as_json),
                )


def announce_start(model: str, layers: Sequence[LayerRange]) -> None:
    """Say on standard error what takes the next seconds."""
    held = ", ".join(map(str, layers))
    print(f"starting {len(layers)} nodes of {model}, layers {held}", file=sys.stderr)


def _tell_ready(url: str, *, as_json: bool) -> None:
    print_ready("up", url, os.getpid(), as_json=as_json)
    if not as_json:
        print(f"  in a browser: {url}\n  talk to it:   meshnet chat --url {url}")
        print(f"  OpenAI API:   {url}/v1", flush=True)
