"""What a gateway's head adds to a token: its rules and its loop, over a node that costs nothing.

What a call takes at the caller's end is in the steps of nodes (served_step.py), and is not here.
While the nodes work, what the head needs leaves the caches; so they are emptied before each answer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import pairwise

from meshnet.cli.cold_caches import ColdCaches
from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.protocol.messages import (
    ForwardRequest,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
    TokenReply,
)
from meshnet.core.protocol.moving import TakeRequest
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    Drawn,
    HopLost,
    LayerRange,
    NodeDescription,
    NodeId,
    SampledToken,
    SamplingParams,
    SessionDescription,
    SessionId,
)
from meshnet.head import Directory, GenerationRequest, Head, HeadLimits, TokenEvent
from meshnet.simulation.toy_shard import TOY_MODEL, ToyShard

TOKENS = 32
WARMUPS = 8
PROMPT = (3, 1, 4)
DEADLINE_S = 30.0
NODE = NodeId("at once")
SESSION = SessionId("trial")
TOKEN = SampledToken(5)


class HeadCost:
    """`token_s` is 0 until somebody measures it: that takes part of a second."""

    def __init__(self) -> None:
        self.token_s = 0.0

    async def measure(self) -> None:
        self.token_s = await head_token_s(ColdCaches())


async def head_token_s(
    between: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median time between two tokens of a node that answers at once.

    `between` is called before each answer; its time is not counted.
    """
    client = AtOnce(between, clock)
    directory = Directory(client, (NODE,), clock=time.monotonic)
    await directory.refresh()
    head = Head(
        client,
        directory,
        model=TOY_MODEL,
        encode_text=lambda words: PROMPT,
        new_session_id=lambda: SESSION,
        clock=time.monotonic,
        jitter=lambda: 0.0,
        limits=HeadLimits(generation=GenerationLimits(drafts=0)),
    )
    request = GenerationRequest(
        prompt=PROMPT,
        tokens_max=TOKENS,
        sampling=SamplingParams(prompt_length=len(PROMPT)),
        stop_ids=frozenset(),
        deadline_s=DEADLINE_S,
    )
    arrived = []
    async with head, aclosing(head.generate(request)) as events:
        async for event in events:
            if isinstance(event, TokenEvent):
                arrived.append(clock() - client.between_s)
    gaps = [later - earlier for earlier, later in pairwise(arrived[WARMUPS:])]
    return statistics.median(gaps)


class AtOnce:
    """A HopClient whose one node has every answer ready."""

    def __init__(self, between: Callable[[], object], clock: Callable[[], float]) -> None:
        self._between, self._clock = between, clock
        self.between_s = 0.0

    async def forward(self, node: NodeId, request: ForwardRequest, timeout_s: float) -> Reply:
        began = self._clock()
        self._between()
        self.between_s += self._clock() - began
        drawn = Drawn((TOKEN,)) if request.want_token else None
        return TokenReply(drawn, "", request.past_length + len(request.tokens))

    async def chain(
        self, nodes: Sequence[NodeId], request: ForwardRequest, timeout_s: float
    ) -> tuple[NodeId | None, Reply | HopLost]:
        return nodes[-1], await self.forward(nodes[-1], request, timeout_s)

    async def reserve(
        self, node: NodeId, request: ReserveRequest, timeout_s: float
    ) -> Reserved | Refusal:
        return Reserved(request.session, request.tokens)

    async def session(
        self, node: NodeId, session: SessionId, timeout_s: float
    ) -> SessionDescription | None:
        return None

    async def release(
        self, node: NodeId, session: SessionId, timeout_s: float, *, linger: bool = False
    ) -> None:
        pass

    async def take(
        self, node: NodeId, request: TakeRequest, timeout_s: float
    ) -> SessionDescription | Refusal:
        raise HopLost(f"{node}: takes nothing over")

    async def describe(self, node: NodeId, timeout_s: float) -> NodeDescription:
        return NodeDescription(
            node=NODE,
            wire=WIRE_VERSION,
            pid=0,
            ready=True,
            shards=(ToyShard(LayerRange(0, 1), layers_total=1).description,),
            sessions=0,
            sessions_max=1,
            kv_bytes=0,
            kv_bytes_max=2**20,
            compute_s=0.0,
            steps=0,
        )
