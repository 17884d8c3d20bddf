"""A step that comes twice, or comes wrong, changes nothing of its session."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.node.bench import LAYERS, PROMPT, SESSION, Bench, decode, hidden, missed, refused, rows

from meshnet.core.protocol.messages import ActivationReply, Code, TokenReply
from meshnet.core.vocabulary import DType, MissReason, SamplingParams
from meshnet.simulation.toy_drawing import VOCABULARY
from meshnet.simulation.toy_shard import HIDDEN_SIZE, oracle


async def test_a_decode_sent_twice_is_a_miss_the_second_time(whole: Bench) -> None:
    """Pit C2: the reply was lost and the sender asks again; nothing is appended twice."""
    first, second = oracle(PROMPT, SamplingParams(), 2, LAYERS)
    await whole.prefilled()

    once = await whole.ask(decode(3, first))
    twice = await whole.ask(decode(3, first))
    told = whole.service.session(SESSION)
    after = await whole.ask(decode(4, second))

    assert isinstance(once, TokenReply)
    assert missed(twice) is MissReason.PAST_LENGTH
    assert told is not None
    assert told.length == 4
    assert isinstance(after, TokenReply)
    assert after.drawn is not None
    assert after.drawn.ids == oracle(PROMPT, SamplingParams(), 3, LAYERS)[2:]


STEP = decode(3, 7)
WRONG = {
    "two positions and one id": replace(STEP, activation=hidden(DType.FP32, 1, 2, HIDDEN_SIZE)),
    "another hidden size": replace(STEP, activation=hidden(DType.FP32, 1, 1, HIDDEN_SIZE + 1)),
    "two rows of a batch": replace(STEP, activation=hidden(DType.FP32, 2, 1, HIDDEN_SIZE)),
    "half a row": replace(STEP, raw=bytes(HIDDEN_SIZE * 4 - 1)),
    "another dtype than said": replace(STEP, raw=bytes(8), raw_dtype=DType.BF16),
    "nothing": STEP,
    "an id beyond the vocabulary": replace(decode(3, VOCABULARY), activation=rows(1)),
    "beyond the context": replace(decode(4096, 7), activation=rows(1)),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_decode_that_is_wrong_leaves_its_session_as_it_was(
    middle: Bench, what: str
) -> None:
    """Pit C6."""
    await middle.prefilled(activation=rows(len(PROMPT)))
    before = middle.service.session(SESSION)

    refused(await middle.ask(WRONG[what]), Code.BAD_REQUEST)

    assert middle.service.session(SESSION) == before
    assert isinstance(await middle.ask(replace(STEP, activation=rows(1))), ActivationReply)
