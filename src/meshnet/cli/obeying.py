"""A node that is told by its mesh what to hold, and holds it.

    joining ──told──▶ loading ──loaded, tested──▶ ready ──told otherwise──▶ loading
                         └──cannot──▶ failed: said why, tried again after a while

Invariants
    * what it holds already is not loaded again, whatever the epoch;
    * while it drains it obeys nobody, for chats are there; afterwards, what it was told last;
    * while it loads it is not ready, and its sessions are gone: heads refill elsewhere;
    * a failure ends nothing: the mesh hears of it until the layers are held, and may tell others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshnet.cli.joining import MeshPlace
from meshnet.cli.settings import Settings, Weights
from meshnet.cli.shard_loading import ShardChoice, ShardLoader
from meshnet.core.vocabulary import (
    Assignment,
    LayerRange,
    MemberState,
    MeshnetError,
    ModelError,
    ModelId,
)
from meshnet.node.service import NodeService

RETRY_MIN_S, RETRY_MAX_S = 5.0, 60.0
LOOK_S = 0.1
"""How often a node that drains looks whether it still does."""

Held = tuple[ModelId, LayerRange, str]


class Obedience:
    """Of one node process."""

    def __init__(
        self,
        settings: Settings,
        place: MeshPlace,
        service: NodeService[Any],
        loader: ShardLoader,
    ) -> None:
        self._settings, self._place = settings, place
        self._service, self._loader = service, loader
        self._held: Held | None = None

    async def run(self, first_ready: Callable[[], None]) -> None:
        """Hold what is told until cancelled; `first_ready` is called once."""
        told = await self._place.newer_than(0)
        retry_s, was_ready, failure = RETRY_MIN_S, False, ""
        while True:
            told = await self._undrained(told)
            failure = await self._tried(told, failure)
            if failure:
                try:
                    async with asyncio.timeout(retry_s):
                        told, failure = await self._place.newer_than(told.epoch), ""
                except TimeoutError:
                    retry_s = min(RETRY_MAX_S, 2 * retry_s)
                continue
            if not was_ready:
                was_ready = True
                first_ready()
            retry_s = RETRY_MIN_S
            told = await self._place.newer_than(told.epoch)

    async def _undrained(self, told: Assignment) -> Assignment:
        """Return what is to be held, once this node does not drain."""
        while self._service.moves.draining:
            await asyncio.sleep(LOOK_S)
            told = await self._place.newer_than(told.epoch - 1)
        return told

    async def _tried(self, told: Assignment, failure: str) -> str:
        """Try to hold what is told, having failed with `failure`; return why not, or nothing."""
        try:
            await self._hold(told, failure)
        except (MeshnetError, OSError, MemoryError) as error:
            failure = str(error) or repr(error)
            self._announce(MemberState.JOINING, told, failure=failure)
            return failure
        return ""

    async def _hold(self, told: Assignment, failure: str) -> None:
        wanted = (told.model, told.layers, told.weights)
        if self._held != wanted:
            self._service.ready = False
            self._announce(MemberState.LOADING, told, failure=failure)
            await self._replace(told)
            self._held = wanted
            self._service.ready = True
        self._announce(MemberState.READY, told)

    async def _replace(self, told: Assignment) -> None:
        if self._held is not None:
            model, self._held = self._held[0], None
            await self._loader.unload(model)
        choice = ShardChoice(source_for(told, self._settings.model), told.layers)
        model = await self._loader.load(choice, _weights(told.weights))
        if model != told.model:
            await self._loader.unload(model)
            raise ModelError(f"{choice.model}: expected the model {told.model}, got {model}")

    def _announce(self, state: MemberState, told: Assignment, *, failure: str = "") -> None:
        held = None if failure else (told.model, told.layers)
        described = self._service.describe()
        self._place.announce(state, described, held, epoch=told.epoch, failure=failure)


def source_for(told: Assignment, own: str) -> str:
    """Return what this machine calls the model: its own directory or file of that name, if any."""
    path = Path(own).expanduser()
    if path.exists() and path.resolve().name.removesuffix(".gguf") == told.model:
        return own
    return told.source


def _weights(text: str) -> Weights | None:
    """Return the format that is told; None leaves it to this node's own settings.

    Raises ModelError for a format of a later version.
    """
    try:
        return None if text == Weights.AUTO.value else Weights(text)
    except ValueError:
        known = ", ".join(each.value for each in Weights)
        raise ModelError(f"weights: expected one of {known}, got {text!r}") from None
