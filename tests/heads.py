"""A head over running nodes, put together as the gateway's process does it."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import ModelId, NodeId, SamplingParams, SessionId
from meshnet.head import Directory, GenerationRequest, Head, HeadLimits
from meshnet.wire.http_client import HttpHopClient


def no_text(text: str) -> tuple[int, ...]:
    raise AssertionError("every tail here names its token ids")


@asynccontextmanager
async def head_over(
    urls: Sequence[str],
    *,
    kv_cache: bool = True,
    limits: HeadLimits | None = None,
    encode_text: Callable[[str], tuple[int, ...]] = no_text,
) -> AsyncIterator[Head]:
    """A head of the one model that the nodes serve."""
    async with HttpHopClient({NodeId(url): url for url in urls}, limits=Limits()) as client:
        directory = Directory(
            client, [NodeId(url) for url in urls], clock=time.monotonic, kv_cache=kv_cache
        )
        await directory.refresh()
        models: set[ModelId] = {
            shard.model for node in directory.snapshot() for shard in node.shards
        }
        (model,) = models
        head = Head(
            client,
            directory,
            model=model,
            encode_text=encode_text,
            new_session_id=lambda: SessionId(secrets.token_hex(24)),
            clock=time.monotonic,
            jitter=random.Random(0).random,
            limits=limits,
        )
        async with directory, head:
            yield head


def greedy(prompt: Sequence[int], tokens: int) -> GenerationRequest:
    """Exactly `tokens` tokens: nothing stops it before."""
    return GenerationRequest(
        prompt=tuple(prompt),
        tokens_max=tokens,
        sampling=SamplingParams(),
        stop_ids=frozenset(),
        deadline_s=300.0,
    )
