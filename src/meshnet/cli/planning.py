"""`meshnet plan`: who would run which layers, and how fast, before anything is loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from meshnet.cli.api_client import ApiError, NothingThere
from meshnet.cli.credentials import api_client, gateway_here
from meshnet.cli.machine import cores, machine_id
from meshnet.cli.models import format_of, resolve_shape
from meshnet.cli.options import print_json
from meshnet.cli.plan_file import NODES_MAX, mesh_of, read_file
from meshnet.cli.plan_running import Live, held_layers, running
from meshnet.cli.plan_shown import print_plan
from meshnet.cli.serving import run_loop
from meshnet.cli.settings import Settings, SettingsError
from meshnet.core.generation.chunking import Chunking
from meshnet.core.planning import (
    HopPrediction,
    Mesh,
    ModelShape,
    NoPlan,
    Plan,
    Wanted,
    assignments,
    plan,
)
from meshnet.core.protocol.fields import Fields
from meshnet.core.vocabulary import Capacity, MeshnetError, ModelId, NodeId, WeightFormat

CONTEXT = 2048
PROMPT = 512
HERE = NodeId("here")
CLOSE_S = 5.0


class NoPlanFound(MeshnetError):
    """The model cannot run on these nodes."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the mesh is to serve; None: as much as the model can, up to a usual size."""

    context: int | None
    sessions: int
    prompt: int | None


def show_plan(
    settings: Settings, ask: Ask, *, nodes: Path | None, url: str | None, as_json: bool
) -> None:
    """Print a plan for the nodes of a file, for those of a gateway, or for this machine.

    Raises MeshnetError.
    """
    shape = shape_of(settings)
    wanted = wanted_of(ask, shape)
    mesh, told = _mesh(settings, url) if nodes is None else (read_file(nodes), None)
    chunking, chain = Chunking(settings.prefill_chunk), settings.routes != "star"
    made = plan(shape, mesh, wanted, cutting=chunking.ends, chain=chain)
    if isinstance(made, NoPlan):
        raise NoPlanFound(made.reason)
    live = None
    if told is not None:
        held = held_layers(told)
        now = running(told, shape, mesh, wanted, cutting=chunking.ends, chain=chain)
        best = assignments(shape, mesh, wanted, held, cutting=chunking.ends, chain=chain)
        assert not isinstance(best, NoPlan), "there is a plan"
        live = Live(now, held, best)
    if as_json:
        print_json(plan_values(shape, wanted, made) | ({} if live is None else live.values()))
        return
    print_plan(Console(), shape, wanted, made)
    if live is not None:
        print(live)


def _mesh(settings: Settings, url: str | None) -> tuple[Mesh, Fields | None]:
    """Ask the gateway at `url`, or the one that runs here; where none does, measure.

    Return also what the gateway told.
    """
    asked = url or gateway_here(settings)
    try:
        return _told(settings, asked)
    except NothingThere:
        if url is not None:
            raise
    print(f"no gateway at {asked}: this machine alone is measured", file=sys.stderr)
    return Mesh({HERE: run_loop(lambda: _measured(settings))}, head_machine=machine_id()), None


def _told(settings: Settings, url: str) -> tuple[Mesh, Fields]:
    with api_client(settings, url) as client:
        told = Fields.of(client.mesh(), url)
    if not told.has("measured"):
        raise ApiError(f"{url} is of a version that tells nothing its nodes measured")
    measured = told.object("measured")
    if not measured.objects("nodes", count_max=NODES_MAX):
        raise ApiError(
            f"no node behind {url} has measured itself: start them with MESHNET_MEASURE=1"
        )
    return mesh_of(measured), told


async def _measured(settings: Settings) -> Capacity:
    from meshnet.cli.measured import measured_capacity
    from meshnet.node.compute import ComputeThread

    threads = settings.threads or cores()
    compute = ComputeThread(name="measure", on_start=lambda: _set_threads(threads))
    try:
        return await measured_capacity(settings, compute, threads=threads, model=settings.model)
    finally:
        compute.close(CLOSE_S)


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def shape_of(settings: Settings) -> ModelShape:
    """Return the shape of the model that is set. Raises MeshnetError."""
    from meshnet.engine.model_shape import model_shape

    found = resolve_shape(settings.model, settings)
    weights = format_of(settings.weights) or WeightFormat.INT8
    with Console(stderr=True).status(f"Reading the shape of {found.name}"):
        return model_shape(found.path, weights, model=ModelId(found.name))


def wanted_of(ask: Ask, shape: ModelShape) -> Wanted:
    """Raises SettingsError."""
    longest = shape.context_length
    context = min(CONTEXT, longest) if ask.context is None else ask.context
    if context > longest:
        raise SettingsError(f"--context: expected at most {longest}, got {context}")
    return Wanted(context, ask.sessions, min(PROMPT, context) if ask.prompt is None else ask.prompt)


def plan_values(shape: ModelShape, wanted: Wanted, made: Plan) -> dict[str, Any]:
    """Return a plan as `meshnet plan --json` prints it."""
    predicted = made.prediction
    return {
        "model": shape.model,
        "weights": shape.weights.value,
        "layers": len(shape.layers),
        "context": wanted.context,
        "sessions": wanted.sessions,
        "prompt": wanted.prompt,
        "kv_token_bytes": shape.kv_token_bytes,
        "hops": [_hop_values(hop) for hop in predicted.hops],
        "back_s": predicted.back_s,
        "head_s": predicted.head_s,
        "token_s": predicted.token_s,
        "tokens_per_s": predicted.tokens_per_s,
        "first_token_s": predicted.first_s,
        "together_tokens_per_s": predicted.together_tokens_per_s,
        "best": made.best,
        "left_out": [{"node": left.node, "reason": left.reason} for left in made.left_out],
    }


def _hop_values(hop: HopPrediction) -> dict[str, Any]:
    return {
        "node": hop.node,
        "layers": [hop.layers.start, hop.layers.stop],
        "weight_bytes": hop.weight_bytes,
        "kv_bytes": hop.kv_bytes,
        "room_bytes": hop.room_bytes,
        "token_s": hop.token_s,
        "way_s": hop.way_s,
        "step_s": hop.time.step_s,
        "layers_s": hop.time.layers_s,
        "reading_s": hop.time.reading_s,
        "products_s": hop.time.products_s,
        "attention_s": hop.time.attention_s,
    }
