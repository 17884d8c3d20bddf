"""Shards come into a node's service and leave it: loaded and tested first, told afterwards.

Invariants
    * torch is imported, loads and computes on the one compute thread, whose first job is to set
      its own thread count (torch keeps that number per thread);
    * a shard that is replaced is gone before the next is loaded: few nodes have room for two.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshnet.cli.machine import cores
from meshnet.cli.models import format_of, resolve_model
from meshnet.cli.settings import Settings, SettingsError, Weights, told
from meshnet.core.vocabulary import LayerRange, MeshnetError, ModelId
from meshnet.engine.heap import give_back
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.telemetry.events import Record, ShardDegraded, ShardFailed, ShardLoaded

if TYPE_CHECKING:
    from meshnet.engine.shard import TorchModelShard

Through = Callable[[Any], Any]
"""Stands between a shard and those who run it."""


@dataclass(frozen=True, slots=True)
class ShardChoice:
    """Layers of a model that a node is to hold; `model` as the user wrote it."""

    model: str
    layers: LayerRange

    @classmethod
    def of(cls, model: str, layers: str) -> ShardChoice:
        try:
            return cls(model, LayerRange.parse(layers))
        except ValueError as error:
            raise SettingsError(f"--layers: {told(error)}") from None

    @classmethod
    def parse(cls, text: str) -> ShardChoice:
        """Read `MODEL:A-B`. Raises SettingsError."""
        model, colon, layers = text.rpartition(":")
        if not colon or not model:
            raise SettingsError(f"--shard: expected MODEL:A-B, got {text!r}")
        return cls.of(model, layers)

    @classmethod
    def all_of(cls, model: str, layers: str | None, shards: Sequence[str]) -> list[ShardChoice]:
        """Read `--layers` of the model, then each `--shard`. Raises SettingsError."""
        first = [] if layers is None else [cls.of(model, layers)]
        return [*first, *map(cls.parse, shards)]


class ShardLoader:
    """Fills one node's service by its compute thread."""

    def __init__(
        self,
        settings: Settings,
        service: NodeService[Any],
        compute: ComputeThread,
        record: Record,
        through: Through,
    ) -> None:
        self._settings, self._service = settings, service
        self._compute, self._record, self._through = compute, record, through
        self._loaded: set[ShardChoice] = set()

    async def prepare(self) -> None:
        """Make the compute thread ready; comes first."""
        threads = self._settings.threads or cores()
        await self._compute.run(lambda: _set_threads(threads))

    async def load(self, choice: ShardChoice, weights: Weights | None = None) -> ModelId:
        """Load, test and serve a shard, in the weights asked for or those of the settings.

        Returns the model's id. Raises MeshnetError.
        """
        started = time.monotonic()
        wanted = self._settings.weights if weights is None else weights
        try:
            shard = await self._compute.run(lambda: self._load_shard(choice, wanted))
        except MeshnetError as error:
            self._record(ShardFailed(choice.model, str(choice.layers), str(error)))
            raise
        try:
            self._service.add(self._through(shard))
        except ValueError as error:
            raise SettingsError(f"--shard: {error}") from None
        told = shard.description
        shard.kv_sessions = self._service.kv_sessions(told.model)
        self._loaded.add(choice)
        self._record(
            ShardLoaded(
                model=told.model,
                layers=str(told.layers),
                kv_cache=told.capabilities.kv_cache,
                multi_token=told.capabilities.multi_token,
                weight_bytes=told.weight_bytes,
                bytes_read=told.bytes_read,
                load_s=time.monotonic() - started,
            )
        )
        # Half a million objects of libraries stay for good: no collection may visit them again,
        # neither between two tokens nor, for seconds, at the end of the process.
        gc.freeze()
        give_back()
        return told.model

    async def unload(self, model: ModelId) -> None:
        """Drop a shard, its sessions and its memory."""
        self._service.remove(model)
        self._loaded.clear()
        gc.unfreeze()
        await self._compute.run(_collect)

    def _load_shard(self, choice: ShardChoice, weights: Weights) -> TorchModelShard:
        from meshnet.engine.loading import load_shard

        source = resolve_model(choice.model, self._settings)

        def report(note: str) -> None:
            # Before it is loaded a shard tells what its self-test found; later, only that a
            # prefill left its cache empty.
            later = choice in self._loaded
            self._record(ShardDegraded(source.name, str(choice.layers), note, later))

        return load_shard(
            source.path,
            choice.layers,
            model=ModelId(source.name),
            weights=format_of(weights),
            device=self._settings.device,
            fast_prefill=self._settings.fast_prefill,
            report=report,
        )


def _collect() -> None:
    gc.collect()
    give_back()


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
