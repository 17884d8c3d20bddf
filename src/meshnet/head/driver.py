"""Run generations: carry out what their machines ask, feed back what happened.

The driver knows no rule of the protocol. A generation runs in its consumer's task: between two
steps it waits for the consumer, and whatever ends the consumer's interest (closing the
iterator, cancelling the task) ends the calls that are in flight. Where there are several, the
head's task group owns them, as it owns release hints, which live longer.

Invariants
    * every path out of `generate` ends the machine in charge, which releases what its session
      holds exactly once;
    * a call whose answer is no longer wanted is cancelled, never awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from meshnet.core.generation.admission import Admission, AdmissionSpec
from meshnet.core.generation.limits import AdmissionLimits, GenerationLimits
from meshnet.core.generation.relocating import RelocatingGeneration
from meshnet.core.generation.states import GenerationSpec
from meshnet.core.generation.stopping import StopRules
from meshnet.core.generation.transcript import FailureCode, Release
from meshnet.core.vocabulary import ModelId, NodeId, Route, SessionId
from meshnet.head.admission_queue import AdmissionQueue
from meshnet.head.admit import AdmissionRun
from meshnet.head.background import Background
from meshnet.head.calls import Calls
from meshnet.head.client import HopClient
from meshnet.head.counters import HeadCounters
from meshnet.head.directory import Directory
from meshnet.head.hints import ReleaseHints
from meshnet.head.keeping import PlaceKeeper
from meshnet.head.lingering import Lingering, LingeringSessions, PrefixLimits, Taken
from meshnet.head.observation import Observation
from meshnet.head.run import GenerationRun
from meshnet.head.seam import FinishEvent, GenerationFailed, GenerationRequest, TokenEvent
from meshnet.telemetry.events import Record, record_nothing


@dataclass(frozen=True, slots=True)
class HeadLimits:
    generation: GenerationLimits = field(default_factory=GenerationLimits)
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    reserved_tokens_max: int = 512
    """Room reserved for the answer."""
    waiting_max: int = 256
    release_timeout_s: float = 2.0
    keep_places_s: float = 2.0
    """How often hops hear of a step that takes long; by itself a node keeps a place for 5 s."""
    prefixes: PrefixLimits = field(default_factory=PrefixLimits)


class Head:
    """Generate with one model over the nodes of a directory. Use it as an async context manager.

    Args:
        encode_text: ids of a text, for tails that name no token id (see Generation).
        new_session_id: unguessable, at least 128 bits, never the same twice.
        clock: monotonic seconds, the same clock the event loop runs on.
        jitter: numbers in [0, 1).
    """

    def __init__(
        self,
        client: HopClient,
        directory: Directory,
        *,
        model: ModelId,
        encode_text: Callable[[str], tuple[int, ...]],
        new_session_id: Callable[[], SessionId],
        clock: Callable[[], float],
        jitter: Callable[[], float],
        limits: HeadLimits | None = None,
        record: Record = record_nothing,
    ) -> None:
        self._client, self._directory, self._model = client, directory, model
        self._encode_text, self._new_session_id = encode_text, new_session_id
        self._clock, self._jitter, self._record = clock, jitter, record
        self._limits = limits or HeadLimits()
        self._queue = AdmissionQueue(waiting_max=self._limits.waiting_max)
        self._tasks = asyncio.TaskGroup()
        self._hints = ReleaseHints(client, self._tasks, timeout_s=self._limits.release_timeout_s)
        self._background = Background(self._tasks)
        self._keeper = PlaceKeeper(client, self._background, every_s=self._limits.keep_places_s)
        self._calls = Calls(client, directory, model=model, clock=clock)
        self._lingering = LingeringSessions(
            self._limits.prefixes, standing=directory.standing, let_go=self._let_go
        )
        self.counters = HeadCounters()

    @property
    def model(self) -> ModelId:
        return self._model

    @property
    def directory(self) -> Directory:
        return self._directory

    @property
    def ready(self) -> bool:
        """A route to the whole model is known."""
        return self._directory.ready(self._model)

    @property
    def waiting(self) -> int:
        """Requests behind the one that asks the nodes for a place."""
        return self._queue.waiting

    async def __aenter__(self) -> Head:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lingering.clear()
        self._hints.stop()
        self._background.stop()
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, trace)
        else:  # an error of the body stays what it is: a task group would wrap it
            await self._tasks.__aexit__(None, None, None)

    async def generate(
        self, request: GenerationRequest
    ) -> AsyncGenerator[TokenEvent | FinishEvent, None]:
        """Yield tokens as they are drawn, then one FinishEvent. Close it to stop (`aclosing`).

        Raises GenerationFailed: what was yielded before stays valid.
        """
        session = self._new_session_id()
        request = request.traced_as(session)
        deadline_at = self._clock() + request.deadline_s
        seen = Observation(
            self.counters, self._record, self._clock, session=session, request=request
        )
        route, taken = await self._admit(session, request, deadline_at, seen)
        run = GenerationRun(
            self._machine(session, request, deadline_at, route, taken),
            session=session,
            calls=self._calls.drawing(request.sampling),
            places=self._keeper.places(session, self._model, self._room(request)),
            background=self._background,
            release=partial(self._release, request),
            clock=self._clock,
            seen=seen,
        )
        seen.started(route, len(request.prompt))
        try:
            while not run.done:
                for item in await run.advance():
                    yield item
        finally:
            run.close()
            if taken is not None and not run.reused:
                self._lingering.forget(taken)

    async def _admit(
        self, session: SessionId, request: GenerationRequest, deadline_at: float, seen: Observation
    ) -> tuple[Route, Taken | None]:
        """Return the route that has room, and what it goes on from. Raises GenerationFailed."""
        admitted, taken = False, None
        try:
            self._refuse_undrawable(request)
            async with self._queue.front(request.deadline_s):
                taken = self._taken(request)
                spec = AdmissionSpec(
                    session,
                    self._room(request),
                    deadline_at,
                    None if taken is None else taken.lingering.session,
                )
                route = await self._admission(spec, request, taken, seen).admit()
            admitted = True
        except GenerationFailed as failed:
            seen.failed(failed.code.value)
            raise
        finally:
            if not admitted:
                seen.ended(None)
                if taken is not None:
                    self._lingering.put_back(taken)
        if taken is not None and route != taken.route:
            self._lingering.put_back(taken)
            taken = None
        return route, taken

    def _refuse_undrawable(self, request: GenerationRequest) -> None:
        """Raise GenerationFailed at once for what no last node here can do."""
        if lack := self._directory.lack(self._model, request.sampling):
            raise GenerationFailed(
                FailureCode.NO_ROUTE,
                f"no node that holds the last layers of {self._model} can {lack}: update them",
            )

    def _taken(self, request: GenerationRequest) -> Taken | None:
        """Return the ended session to go on from, if its last hop can draw what is asked."""
        taken = self._lingering.take(request.prefix_owner, request.prompt, self._clock())
        if taken is not None and not self._directory.draws(taken.route, request.sampling):
            self._lingering.put_back(taken)
            return None
        return taken

    def _admission(
        self,
        spec: AdmissionSpec,
        request: GenerationRequest,
        taken: Taken | None,
        seen: Observation,
    ) -> AdmissionRun:
        sampling = request.sampling
        known = (
            self._directory.route(self._model, sampling=sampling) if taken is None else taken.route
        )
        machine = Admission(
            spec,
            known if isinstance(known, Route) else None,
            limits=self._limits.admission,
            jitter=self._jitter,
        )
        return AdmissionRun(
            machine,
            calls=self._calls.drawing(sampling),
            place_freed=self._queue.place_freed,
            give_back=self._hints.send,
            clock=self._clock,
            seen=seen,
        )

    def _machine(
        self,
        session: SessionId,
        request: GenerationRequest,
        deadline_at: float,
        route: Route,
        taken: Taken | None,
    ) -> RelocatingGeneration:
        spec = GenerationSpec(
            session=session,
            prompt=request.prompt,
            sampling=request.sampling,
            stop=StopRules(request.stop_ids, request.tokens_max, len(request.sampling.forced)),
            deadline_at=deadline_at,
            reserved=route.kv_cache,
            trace=request.trace,
            traceparent=request.traceparent,
            owner=request.owner,
            adoption=None if taken is None else taken.adoption,
            lingers=request.prefix_owner is not None and self._limits.prefixes.sessions_max > 0,
        )
        return RelocatingGeneration(
            spec,
            route,
            limits=self._limits.generation,
            encode_text=self._encode_text,
            jitter=self._jitter,
        )

    def _room(self, request: GenerationRequest) -> int:
        """Positions to reserve; a longer answer grows its sessions as it goes."""
        forced = len(request.sampling.forced)
        answer = min(request.tokens_max - forced, self._limits.reserved_tokens_max)
        return len(request.prompt) + forced + answer

    def _release(self, request: GenerationRequest, release: Release) -> None:
        remains, linger_on = release.remains, frozenset[NodeId]()
        if remains is not None and self._lingering.keep(
            release.session, request.prefix_owner, remains, self._clock()
        ):
            linger_on = frozenset(hop.node for hop in remains.route.hops)
        self._hints.send(release, self._queue.tell_place_freed, linger_on)

    def _let_go(self, lingering: Lingering) -> None:
        nodes = tuple(hop.node for hop in lingering.remains.route.hops)
        self._hints.send(Release(lingering.session, nodes), self._queue.tell_place_freed)
