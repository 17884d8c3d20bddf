"""One node lost in the middle of a stream, again and again, with a spare of its layers there.

a ── b ── c        b and spare hold the same layers; whichever of the two the stream runs
   spare           through is the victim

Where everything is to be refilled, c is lost instead, and nobody keeps activations: then a and b
must run all positions again for what stands for c.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.chats import Answer, Ask, Verdict, judge, stream
from tests.chaos.fault_proxy import CLEAR, HALF_THEN_RESET, HALF_THEN_SHUT, SHUT, TRICKLE
from tests.chaos.lab import CONTINUE, KILL, STOP, Lab, Mesh
from tests.chaos.subjects import Subject

HEAD = "head-1"
PROMPT = "Explain in a few sentences why the sky is blue."
WORD = "sky "
READY_DEADLINE_S = 120.0
HOP_TIMEOUT_S = 2.0
AFTER_A_STOP_TOKENS = 8
"""So many tokens later a stopped node goes on, and what it had begun comes late."""

STUCK = {
    "nothing passes": SHUT,
    "half a message, then silence": HALF_THEN_SHUT,
    "half a message, then a reset": HALF_THEN_RESET,
    "one byte a second": TRICKLE,
}
STOPPED = "stopped, and continued"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """What a node did, by its own counters; positions are those that its layers ran."""

    steps: int = 0
    compute_s: float = 0.0
    positions: int = 0

    def since(self, before: Done) -> Done:
        """Return what was done in between; of a process started anew, what it has done since."""
        if self.steps < before.steps:
            return self
        return Done(
            self.steps - before.steps,
            round(self.compute_s - before.compute_s, 4),
            self.positions - before.positions,
        )


Work = dict[str, Done]
"""By node."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One stream that lost a node; `work` is that of each node during it."""

    fault: str
    victim: str
    at_token: int
    gap_s: float
    """The longest pause between two tokens from then on."""
    refills: int
    partial: int
    """Those of them in which nodes kept what they held."""
    positions: int
    """That were run again, those of each hop counted."""
    work: Work
    survivors: tuple[str, ...]
    equal: bool


@dataclass(frozen=True, slots=True)
class Calm:
    """The stream when nothing happens to it."""

    answer: Answer
    work: Work

    @property
    def gap_s(self) -> float:
        return max(self.answer.gaps_s)

    @property
    def prompt_tokens(self) -> int:
        return int(self.answer.told.usages[0]["prompt_tokens"])


class Stage:
    """A mesh with a spare, and a stream through it that can be disturbed."""

    def __init__(self, lab: Lab, ask: Ask, victim: str = "b") -> None:
        """`victim`: whose layers the spare holds."""
        self.lab, self._ask = lab, ask
        self._twins = (victim, "spare")
        self._calm: Calm | None = None
        self._read = 0
        self._awaited: tuple[int, asyncio.Event] | None = None

    async def calm(self) -> Calm:
        """Run the stream undisturbed, the first time; later ones must be equal to it."""
        if self._calm is None:
            before = await self._work()
            answer = await self._stream(lambda count: None)
            assert answer.told.finishes == ["length"], answer.told.errors or answer.refusal
            self._calm = Calm(answer, _since(before, await self._work()))
        return self._calm

    async def again(self) -> bool:
        """Run the stream undisturbed once more; tell whether it is as it was."""
        calm = await self.calm()
        return self._equal(await self._stream(lambda count: None), calm)

    async def lose(self, fault: str, at: int, strike: Callable[[str], Awaitable[None]]) -> Loss:
        """Run the stream, and strike a node that has a spare once token `at` was read."""
        calm = await self.calm()
        before, told = await self._work(), len(self.lab.told("refilled"))
        victim, struck_at = "", 0
        async with asyncio.TaskGroup() as group:
            finding: asyncio.Task[str] | None = None

            def seen(count: int) -> None:
                nonlocal finding, victim, struck_at
                self._note(count)
                if finding is None:
                    finding = group.create_task(self._victim(before))
                elif count >= at and finding.done() and not victim:
                    victim, struck_at = finding.result(), count
                    group.create_task(strike(victim))

            answer = await self._stream(seen)
            self._note(self._ask.tokens)  # nobody may wait for more
        refilled = self.lab.told("refilled")[told:]
        return Loss(
            fault=fault,
            victim=victim,
            at_token=struck_at,
            gap_s=round(max(answer.gaps_s[struck_at - 1 :], default=0.0), 3),
            refills=len(refilled),
            partial=sum(bool(each.get("partial")) for each in refilled),
            positions=sum(each.get("positions", 0) for each in refilled),
            work=_since(before, await self._work()),
            survivors=tuple(name for name in self.lab.mesh.nodes if name not in self._twins),
            equal=self._equal(answer, calm),
        )

    async def more(self, tokens: int) -> None:
        """Return once the stream has so many tokens more than now, or has ended."""
        reached = asyncio.Event()
        self._awaited = (min(self._read + tokens, self._ask.tokens), reached)
        await reached.wait()

    def _note(self, count: int) -> None:
        self._read = count
        if self._awaited is not None and count >= self._awaited[0]:
            self._awaited[1].set()

    async def restore(self, name: str) -> None:
        """Start the victim again, if it is gone, and wait until the head knows of it."""
        if not self.lab.lives(name):
            await self.lab.start(name)
        pid = self.lab.pid(name)

        async def known() -> bool:
            told = (await self.lab.client.get(f"{self.lab.front(HEAD)}/mesh")).json()
            return pid in [node["pid"] for node in told["nodes"]]

        await self.lab.until(known, f"the head knows {name} again", READY_DEADLINE_S)

    async def _stream(self, seen: Callable[[int], None]) -> Answer:
        return await stream(
            self.lab.client,
            self._ask,
            head=HEAD,
            url=self.lab.front(HEAD),
            deadline_s=self.lab.mesh.request_deadline_s,
            seen=seen,
        )

    def _equal(self, answer: Answer, calm: Calm) -> bool:
        return judge(answer, calm.answer.told, head_died=False)[0] is Verdict.RIGHT

    async def _victim(self, before: Work) -> str:
        """The one of the two whom the stream runs through: what it holds may be older."""
        steps = {name: (await self.lab.node(name))["steps"] for name in self._twins}
        return max(self._twins, key=lambda name: steps[name] - before[name].steps)

    async def _work(self) -> Work:
        found = dict.fromkeys(self.lab.mesh.nodes, Done())
        for name in filter(self.lab.lives, found):
            told = await self.lab.node(name)
            positions = await self.lab.counted(name, "meshnet_positions_total")
            found[name] = Done(told["steps"], told["compute_s"], positions)
        return found


def _since(before: Work, after: Work) -> Work:
    return {name: done.since(before[name]) for name, done in after.items()}


def mesh_with_spare(subject: Subject, model: Path, victim: str = "b", **settings: str) -> Mesh:
    """Three equal nodes, and a spare of one of them."""
    return Mesh(
        model,
        subject.weights,
        {**{name: subject.nodes[name] for name in "abc"}, "spare": subject.nodes[victim]},
        heads=(HEAD,),
        settings={"MESHNET_PREFILL_CHUNK": "512", **settings},
        request_deadline_s=300.0,
        session_ttl_s=600.0,
        hop_timeout_s=HOP_TIMEOUT_S,
    )


async def kills(
    subject: Subject, model: Path, *, tries: Iterable[int], tokens: int, seed: int, tell: Tell
) -> tuple[Calm, list[Loss]]:
    """Kill the middle node at tokens drawn from the seed."""
    drawn, losses = random.Random(seed), []
    async with Lab(mesh_with_spare(subject, model), network="direct") as lab:
        stage = Stage(lab, Ask(PROMPT, tokens))
        calm = await stage.calm()
        for _ in tries:
            at = drawn.randrange(3, tokens * 3 // 4)
            loss = await stage.lose("killed", at, lambda victim: lab.end(victim, KILL))
            tell(str(loss))
            losses.append(loss)
            await stage.restore(loss.victim)
    return calm, losses


async def refills(
    subject: Subject,
    model: Path,
    *,
    tries: Iterable[int],
    tokens: int,
    prompt: int,
    threads: int,
    tell: Tell,
) -> dict[str, tuple[Calm, list[Loss]]]:
    """Kill a node behind a long prompt, in turns: its span is refilled, or everything is."""
    ways = {"lost span": ("b", "true"), "everything": ("c", "false")}
    computing = {"OMP_NUM_THREADS": str(threads), "MESHNET_THREADS": str(threads)}
    found: dict[str, tuple[Calm, list[Loss]]] = {}
    async with AsyncExitStack() as stack:
        stages = {}
        for way, (victim, keep) in ways.items():
            mesh = mesh_with_spare(
                # Drafts go by time, and positions are to be counted.
                subject, model, victim, MESHNET_KEEP_ACTIVATIONS=keep, MESHNET_DRAFTS="off",
                **computing,
            )  # fmt: skip
            lab = await stack.enter_async_context(Lab(mesh, network="direct"))
            stages[way] = Stage(lab, Ask(WORD * prompt, tokens), victim)
            found[way] = (await stages[way].calm(), [])
        for number in tries:
            for way, stage in stages.items():
                strike = _killing(stage.lab)
                loss = await stage.lose(f"killed; {way}", tokens // 2 + number, strike)
                tell(str(loss))
                found[way][1].append(loss)
                await stage.restore(loss.victim)
    return found


def _killing(lab: Lab) -> Callable[[str], Awaitable[None]]:
    return lambda victim: lab.end(victim, KILL)


async def stuck(
    subject: Subject, model: Path, *, tries: Iterable[int], tokens: int, seed: int, tell: Tell
) -> tuple[Calm, list[Loss]]:
    """Stop the middle node, and break its links, for as long as the stream lasts."""
    drawn, losses = random.Random(seed), []
    async with Lab(mesh_with_spare(subject, model)) as lab:
        stage = Stage(lab, Ask(PROMPT, tokens))
        calm = await stage.calm()
        for _ in tries:
            for fault in (STOPPED, *STUCK):
                at = drawn.randrange(3, tokens // 2)
                loss = await _stick(stage, fault, at)
                # What comes late of the victim may change no other stream, and trip nobody.
                well = await stage.again() and not lab.told("fault")
                losses.append(replace(loss, equal=loss.equal and well))
                tell(str(losses[-1]))
    return calm, losses


async def _stick(stage: Stage, fault: str, at: int) -> Loss:
    lab = stage.lab

    async def strike(victim: str) -> None:
        if fault == STOPPED:
            lab.send(victim, STOP)
            await stage.more(AFTER_A_STOP_TOKENS)
            lab.send(victim, CONTINUE)
        else:
            for link in lab.network.links_of(victim):
                link.turn(STUCK[fault])

    loss = await stage.lose(fault, at, strike)
    for link in lab.network.links_of(loss.victim):
        link.turn(CLEAR)
    await stage.restore(loss.victim)
    return loss
