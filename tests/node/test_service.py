"""What a node answers to steps it can serve, and by which rule it misses, on toy shards."""

from __future__ import annotations

from dataclasses import replace

from tests.node.bench import (
    LAYERS,
    PROMPT,
    SESSION,
    Bench,
    decode,
    missed,
    prefill,
    refused,
    rows,
    turn_caching_off,
)

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import (
    ActivationReply,
    Code,
    ForwardRequest,
    Mode,
    TokenReply,
)
from meshnet.core.vocabulary import (
    Capabilities,
    LayerRange,
    MissReason,
    SamplingParams,
    ShardStep,
)
from meshnet.simulation.toy_shard import (
    LAYER_BYTES_PER_TOKEN,
    ToyState,
    oracle,
)
from meshnet.telemetry.events import ForwardServed, SessionsHeld


async def generate(bench: Bench, count: int) -> list[int]:
    reply = await bench.prefilled()
    tokens = list(PROMPT)
    for _ in range(count):
        assert isinstance(reply, TokenReply)
        assert reply.drawn is not None
        assert reply.cached == len(tokens)
        tokens += reply.drawn.ids
        prefix = PrefixDigest.of(tokens[:-1]).hex
        reply = await bench.ask(replace(decode(len(tokens) - 1, tokens[-1]), prefix=prefix))
    return tokens[len(PROMPT) :]


async def test_prefill_and_decodes_give_the_tokens_of_the_uncached_model(whole: Bench) -> None:
    generated = await generate(whole, 8)

    assert tuple(generated) == oracle(PROMPT, SamplingParams(), 8, LAYERS)


async def test_a_decode_without_sampling_parameters_is_drawn_as_its_prefill_said(
    whole: Bench,
) -> None:
    """They travel with what starts a state (architecture, section 4); greedy would be wrong."""
    sampling = SamplingParams(temperature=2.0, seed=1, prompt_length=len(PROMPT))
    expected = oracle(PROMPT, sampling, 2, LAYERS)

    first = await whole.prefilled(sampling=sampling)
    second = await whole.ask(decode(len(PROMPT), expected[0]))

    assert isinstance(first, TokenReply)
    assert isinstance(second, TokenReply)
    assert first.drawn is not None
    assert second.drawn is not None
    assert first.drawn.ids + second.drawn.ids == expected
    greedy = oracle((*PROMPT, expected[0]), SamplingParams(), 1, LAYERS)
    assert greedy != expected[1:], "choose another seed: greedy would pass"


async def test_a_step_without_a_mode_is_stateless_and_confirms_nothing(whole: Bench) -> None:
    reply = await whole.ask(ForwardRequest(Mode.STATELESS, tokens=PROMPT))

    assert isinstance(reply, TokenReply)
    assert reply.drawn is not None
    assert reply.drawn.ids == oracle(PROMPT, SamplingParams(), 1, LAYERS)
    assert reply.cached is None
    assert whole.service.session(SESSION) is None


async def test_the_tail_tells_the_text_of_its_token(whole: Bench) -> None:
    reply = await whole.prefilled()

    assert isinstance(reply, TokenReply)
    assert reply.drawn is not None
    assert reply.text == whole.shard.text_of(reply.drawn.ids[0])


async def test_a_tail_that_is_asked_for_no_token_draws_none(whole: Bench) -> None:
    reply = await whole.prefilled(want_token=False)

    assert reply == TokenReply(None, "", cached=len(PROMPT))


async def test_the_body_of_an_adr_0022_head_is_read_in_the_shards_dtype(middle: Bench) -> None:
    described = await middle.ask(ForwardRequest(Mode.PREFILL, SESSION, activation=rows(3)))
    raw = ForwardRequest(Mode.PREFILL, SESSION, raw=bytes(rows(3).data))

    reply = await middle.ask(raw)

    assert isinstance(reply, ActivationReply)
    assert reply == described
    assert reply.cached == 3


async def test_a_second_prefill_chunk_is_a_decode_of_several_positions(whole: Bench) -> None:
    await whole.prefilled(tokens=PROMPT[:1], want_token=False)

    reply = await whole.ask(decode(1, *PROMPT[1:]))

    assert isinstance(reply, TokenReply)
    assert reply.drawn is not None
    assert reply.drawn.ids == oracle(PROMPT, SamplingParams(), 1, LAYERS)


async def test_a_part_of_the_held_layers_can_be_run(middle: Bench) -> None:
    part = replace(prefill(), layers=LayerRange(2, 3), activation=rows(3))

    reply = await middle.ask(part)

    assert isinstance(reply, ActivationReply)
    assert middle.shard.steps[0].layers == LayerRange(2, 3)


async def test_another_start_layer_is_a_miss(middle: Bench) -> None:
    await middle.prefilled(activation=rows(3))

    reply = await middle.ask(replace(decode(3, 1), layers=LayerRange(2, 3), activation=rows(1)))

    assert missed(reply) is MissReason.START_LAYER


async def test_an_unknown_session_is_a_miss(whole: Bench) -> None:
    assert missed(await whole.ask(decode(3, 1))) is MissReason.UNKNOWN_SESSION


async def test_another_past_length_is_a_miss(whole: Bench) -> None:
    await whole.prefilled()

    assert missed(await whole.ask(decode(2, 1))) is MissReason.PAST_LENGTH


async def test_equal_length_but_other_ids_is_a_miss(whole: Bench) -> None:
    """Pit C7."""
    await whole.prefilled()
    other = PrefixDigest.of((3, 1, 5)).hex

    assert missed(await whole.ask(replace(decode(3, 1), prefix=other))) is MissReason.PREFIX


async def test_a_late_prefill_of_an_older_attempt_is_never_run(whole: Bench) -> None:
    await whole.prefilled(attempt=2)

    refused(await whole.ask(prefill(attempt=1)), Code.STALE_ATTEMPT)

    assert len(whole.shard.steps) == 1


async def test_a_decode_where_caching_is_off_is_a_miss(whole: Bench) -> None:
    """Pit A71: running one position statelessly would answer garbage with 200 (ADR-0022)."""
    whole.shard.capabilities = Capabilities(kv_cache=False, multi_token=False)

    assert missed(await whole.ask(decode(3, 1))) is MissReason.CACHING_OFF
    assert whole.shard.steps == []


async def test_a_prefill_where_caching_is_off_runs_and_confirms_no_length(whole: Bench) -> None:
    whole.shard.capabilities = Capabilities(kv_cache=False, multi_token=False)

    reply = await whole.prefilled()

    assert isinstance(reply, TokenReply)
    assert reply.cached is None
    assert whole.service.session(SESSION) is None


async def test_a_first_prefill_that_fills_no_cache_is_answered_and_forgotten(whole: Bench) -> None:
    whole.shard.after = turn_caching_off(whole.shard)

    reply = await whole.prefilled()

    assert isinstance(reply, TokenReply)
    assert reply.cached is None
    assert whole.service.session(SESSION) is None


async def test_a_decode_that_finds_out_that_nothing_was_cached_is_a_miss(whole: Bench) -> None:
    await whole.prefilled()
    whole.shard.after = turn_caching_off(whole.shard)

    assert missed(await whole.ask(decode(3, 1))) is MissReason.CACHING_OFF
    assert whole.service.session(SESSION) is None


async def test_a_shard_counts_its_steps_tokens_and_seconds_by_the_given_clock(
    whole: Bench,
) -> None:
    def pass_time() -> None:
        whole.clock.now += 0.25

    whole.shard.after = pass_time

    reply = await whole.prefilled()
    await whole.ask(decode(3, 1))

    assert isinstance(reply, TokenReply)
    assert reply.compute_us == 250_000
    (work,) = whole.service.work()
    assert (work.steps, work.tokens, work.compute_s) == (2, 4, 0.5)
    described = whole.service.describe()
    assert (described.steps, described.compute_s) == (2, 0.5)
    assert described.kv_bytes == 4 * LAYERS * LAYER_BYTES_PER_TOKEN


async def test_every_request_is_told_with_its_outcome_and_without_its_ids(whole: Bench) -> None:
    await whole.prefilled(trace="r1")
    await whole.ask(decode(9, 1))

    served = [event for event in whole.events if isinstance(event, ForwardServed)]
    assert [(event.mode, event.outcome, event.request) for event in served] == [
        ("prefill", "ok", "r1"),
        ("decode", "cache_miss", None),
    ]
    assert SessionsHeld(1, 3 * LAYERS * LAYER_BYTES_PER_TOKEN, 2**20) in whole.events


async def test_sessions_end_by_time_and_the_node_tells_it(whole: Bench) -> None:
    """Pit C15."""
    await whole.prefilled()
    whole.clock.now += 601.0

    assert missed(await whole.ask(decode(3, 1))) is MissReason.UNKNOWN_SESSION

    assert whole.evicted() == ["ttl"]


async def test_the_history_of_the_tail_is_its_ids_so_far(tail: Bench) -> None:
    histories: list[list[int]] = []

    def look(step: ShardStep, state: ToyState | None) -> None:
        if state is not None:
            histories.append(list(state.history))

    tail.shard.hook = look
    await tail.prefilled(activation=rows(3))
    await tail.ask(replace(decode(3, 7), activation=rows(1)))
    await tail.ask(replace(decode(4, 8), activation=rows(1)))

    assert histories == [[], [3, 1, 4], [3, 1, 4, 7]]
