"""What each scenario concludes from a side whose times are known, told by a side of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from meshnet.cli.bench import scenarios
from meshnet.cli.bench.mesh import BenchError
from meshnet.cli.bench.paired import Values
from meshnet.cli.bench.prompts import Prompts
from meshnet.cli.bench.scenarios import Scenario
from meshnet.cli.bench.side import Stream, unheard

PREFILL_S = 0.01
"""Of one prompt token that is not in the cache."""
DECODE_S = 0.1


@dataclass
class KnownSide:
    """Counts 0.01 s per prompt token that it has not seen, 0.1 s per token; others slow it down."""

    slower_with_each: float = 0.0
    slower_after: int = 10**9
    remembers: bool = False
    endless: bool = True
    name: str = "known"
    decoding: int = 0
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def pids(self) -> Sequence[int]:
        return ()

    async def decode(
        self, prompt: Sequence[int], tokens: int, heard: Callable[[], None] = unheard
    ) -> Stream:
        known = max((common(prompt, old) for old in self.prompts), default=0)
        new = len(prompt) - (known if self.remembers else 0)
        factor = 1.0 + self.slower_with_each * self.decoding
        ids = tuple(range(tokens))
        self.prompts.append((*prompt, *ids))
        first = PREFILL_S * new * factor
        gaps = [DECODE_S * (2.0 if at > self.slower_after else 1.0) for at in range(1, tokens)]
        at_s = tuple(first + sum(gaps[:index]) for index in range(tokens))
        self.decoding += 1
        try:
            heard()
            await asyncio.sleep(0)
            if tokens == OTHER_TOKENS and self.endless:
                await asyncio.Event().wait()
        finally:
            self.decoding -= 1
        return Stream(tokens, at_s, token_ids=ids)


OTHER_TOKENS = 77


def common(left: Sequence[int], right: Sequence[int]) -> int:
    return next(
        (at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )


async def measured(scenario: Scenario, side: KnownSide) -> Values:
    values = await scenario.measure(side, Prompts(lambda text: list(text.encode())), 3)
    assert set(values) == {metric.name for metric in scenario.metrics}
    return values


async def test_decode_tells_the_rate_without_the_prefill():
    values = await measured(scenarios.decode(20), KnownSide())

    assert values == pytest.approx({"tokens_per_s": 10.0, "ttft_ms": 320.0})


async def test_prefill_tells_the_prompt_per_second():
    values = await measured(scenarios.prefill(512), KnownSide())

    assert values == pytest.approx({"tokens_per_s": 100.0, "ttft_ms": 5120.0})


async def test_positions_tell_that_a_late_token_is_slower():
    values = await measured(scenarios.positions(50, 200), KnownSide(slower_after=120))

    assert values == pytest.approx(
        {"tokens_per_s@50": 10.0, "tokens_per_s@200": 5.0, "flatness": 0.5}
    )


async def test_concurrency_tells_the_tokens_of_all_with_their_prefill():
    values = await measured(scenarios.concurrency([1, 4], 11), KnownSide())

    alone = 11 / (0.32 + 1.0)
    assert values["tokens_per_s@1"] == pytest.approx(alone)
    assert values["tokens_per_s@4"] == pytest.approx(4 * alone)
    assert values["gain"] == pytest.approx(4.0)
    assert values["ttft_ms@4"] == pytest.approx(320.0)


async def test_concurrency_waits_for_the_slowest():
    values = await measured(scenarios.concurrency([1, 2], 11), KnownSide(slower_with_each=1.0))

    assert values["tokens_per_s@2"] == pytest.approx(2 * 11 / (0.64 + 1.0))


async def test_a_first_token_is_measured_while_all_the_others_decode():
    side = KnownSide(slower_with_each=0.1)

    values = await measured(scenarios.ttft(7, 3, OTHER_TOKENS), side)

    assert values == pytest.approx({"alone_ms": 320.0, "busy_ms": 320.0 * 1.7, "ratio": 1.7})
    assert side.decoding == 0


async def test_others_that_ended_early_are_no_crowd():
    with pytest.raises(BenchError, match="ended early"):
        await measured(scenarios.ttft(2, 3, OTHER_TOKENS), KnownSide(endless=False))


async def test_a_second_turn_is_measured_against_a_cold_prompt_as_long():
    forgetful = await measured(scenarios.turns(300, 8, 20), KnownSide())
    remembering = await measured(scenarios.turns(300, 8, 20), KnownSide(remembers=True))

    assert forgetful["ratio"] == pytest.approx(1.0)
    assert forgetful["cold_ms"] == pytest.approx(3280.0)
    assert remembering["second_ms"] == pytest.approx(200.0)
    assert remembering["ratio"] < 0.07


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.decode(4),
        scenarios.prefill(40),
        scenarios.concurrency([1, 2, 4], 4),
        scenarios.ttft(3, 2, OTHER_TOKENS),
    ],
    ids=lambda scenario: scenario.name,
)
async def test_no_prompt_is_sent_twice_over_the_turns(scenario: Scenario):
    side, prompts = KnownSide(), Prompts(lambda text: list(text.encode()))

    for number in range(4):
        await scenario.measure(side, prompts, number)

    beginnings = [prompt[:8] for prompt in side.prompts]
    assert len(set(beginnings)) == len(beginnings)


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.decode(4),
        scenarios.prefill(40),
        scenarios.positions(30, 60),
        scenarios.concurrency([1, 2], 4),
        scenarios.turns(40, 4, 9),
    ],
    ids=lambda scenario: scenario.name,
)
async def test_a_scenario_says_how_long_its_longest_sequence_is(scenario: Scenario):
    side = KnownSide()

    await measured(scenario, side)

    assert max(map(len, side.prompts)) <= scenario.positions
