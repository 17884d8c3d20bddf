"""A step that comes twice, or comes wrong, changes nothing of its session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    TokenReply,
)
from meshnet.core.vocabulary import (
    HIDDEN,
    Activation,
    DType,
    LayerRange,
    MissReason,
    NodeId,
    SamplingParams,
    SessionId,
    TensorSpec,
)
from meshnet.node.compute import ComputeThread
from meshnet.node.service import NodeService
from meshnet.node.shards import NodeLimits
from meshnet.simulation.toy_shard import (
    HIDDEN_SIZE,
    VOCABULARY,
    ToyShard,
    embed,
    oracle,
    pack_rows,
)

SESSION = SessionId("s")
PROMPT = (3, 1, 4)
LAYERS = 4


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread(name="replayed", jobs_max=4)
    yield thread
    assert thread.close(deadline_s=30.0)


def node(compute: ComputeThread, layers: LayerRange) -> NodeService:  # type: ignore[type-arg]
    return NodeService(
        node=NodeId("n"),
        pid=1,
        shards=[ToyShard(layers, layers_total=LAYERS)],
        compute=compute,
        limits=NodeLimits(kv_bytes_max=2**20),
        clock=lambda: 0.0,
    )


def prefill(**fields: object) -> ForwardRequest:
    asked = ForwardRequest(Mode.PREFILL, SESSION, attempt=1, wire=1, tokens=PROMPT)
    return replace(asked, **fields)  # type: ignore[arg-type]


def decode(past: int, *tokens: int, **fields: object) -> ForwardRequest:
    asked = ForwardRequest(Mode.DECODE, SESSION, past_length=past, attempt=1, wire=1, tokens=tokens)
    return replace(asked, **fields)  # type: ignore[arg-type]


async def test_a_decode_sent_twice_is_a_miss_the_second_time(compute: ComputeThread) -> None:
    """Pit C2: the reply was lost and the sender asks again; nothing is appended twice."""
    whole = node(compute, LayerRange(0, LAYERS))
    first, second = oracle(PROMPT, SamplingParams(), 2, LAYERS)
    await whole.forward(prefill())

    once = await whole.forward(decode(3, first))
    twice = await whole.forward(decode(3, first))
    told = whole.session(SESSION)
    after = await whole.forward(decode(4, second))

    assert isinstance(once, TokenReply)
    assert isinstance(twice, Refusal)
    assert (twice.code, twice.reason) == (Code.CACHE_MISS, MissReason.PAST_LENGTH)
    assert told is not None
    assert told.length == 4
    assert isinstance(after, TokenReply)
    assert after.token is not None
    assert (after.token.token_id,) == oracle(PROMPT, SamplingParams(), 3, LAYERS)[2:]


def hidden(dtype: DType, *shape: int) -> Activation:
    spec = TensorSpec(HIDDEN, dtype, shape)
    return Activation((spec,), bytes(spec.nbytes))


ROW = pack_rows([embed(7)])
WRONG = {
    "two positions and one id": decode(3, 7, activation=hidden(DType.FP32, 1, 2, HIDDEN_SIZE)),
    "another hidden size": decode(3, 7, activation=hidden(DType.FP32, 1, 1, HIDDEN_SIZE + 1)),
    "two rows of a batch": decode(3, 7, activation=hidden(DType.FP32, 2, 1, HIDDEN_SIZE)),
    "half a row": decode(3, 7, raw=bytes(HIDDEN_SIZE * 4 - 1)),
    "another dtype than said": decode(3, 7, raw=bytes(8), raw_dtype=DType.BF16),
    "nothing": decode(3, 7),
    "an id beyond the vocabulary": decode(3, VOCABULARY, activation=ROW),
    "beyond the context": decode(4096, 7, activation=ROW),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_decode_that_is_wrong_leaves_its_session_as_it_was(
    compute: ComputeThread, what: str
) -> None:
    """Pit C6."""
    middle = node(compute, LayerRange(1, 3))
    rows = pack_rows([embed(token) for token in PROMPT])
    await middle.forward(prefill(activation=rows))
    before = middle.session(SESSION)

    reply = await middle.forward(WRONG[what])

    assert isinstance(reply, Refusal)
    assert reply.code is Code.BAD_REQUEST
    assert middle.session(SESSION) == before
    assert isinstance(await middle.forward(decode(3, 7, activation=ROW)), ActivationReply)
