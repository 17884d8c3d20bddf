"""What a node does with a request: check, lease, run, then commit or forget.

    forward ──check──▶ lease ──compute.step──▶ commit ──▶ reply
               │         │          │             └─superseded──▶ refusal, result discarded
               └refusal  └refusal   └failed──▶ abandon, refusal

Invariants
    * a lease is ended on every way out, also when the caller is cancelled;
    * a step that ran decides its session by how it ended, whoever still waits for it;
    * what a peer can do is answered with a Refusal, never raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, assert_never

from meshnet.core.protocol.messages import (
    Code,
    ForwardRequest,
    Mode,
    Refusal,
    Reply,
    Reserved,
    ReserveRequest,
)
from meshnet.core.protocol.refusals import refusal_of
from meshnet.core.scheduling.steps import WaitingStep
from meshnet.core.sessions.entry import EvictionReason, Lease
from meshnet.core.sessions.store import SessionCacheStore
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    BadField,
    Capacity,
    KVCacheMiss,
    MeshnetError,
    MissReason,
    ModelId,
    NodeDescription,
    NodeId,
    NoRoom,
    SessionDescription,
    SessionId,
    ShardStep,
)
from meshnet.node.checking import check_fingerprint, layers_of, new_positions, step_of
from meshnet.node.compute import Compute
from meshnet.node.moving import NOBODY, Givers, SessionMoves
from meshnet.node.refusing import RETRY_AFTER_S, Refused, draining, not_ready, spent
from meshnet.node.replaying import replay
from meshnet.node.shard import S, Shard
from meshnet.node.shards import LoadedShards, NodeLimits, ShardWork
from meshnet.node.steps import UNSPENT, Done, Failed, Kept, Spent, StepJob, Unwanted
from meshnet.node.visit import Visit
from meshnet.telemetry.events import Fault, ForwardServed, Record, record_nothing


class NodeService(Generic[S]):
    """Serves the shards of one device to whoever carries the messages.

    `ready` may be switched off by the owner, while shards load or the process stops; `capacity` is
    what the owner measured, and is told as it is.
    """

    def __init__(
        self,
        *,
        node: NodeId,
        pid: int,
        shards: Sequence[Shard[S]],
        compute: Compute,
        limits: NodeLimits,
        clock: Callable[[], float],
        record: Record = record_nothing,
        device: str = "cpu",
        givers: Givers = NOBODY,
    ) -> None:
        self.ready = True
        self.capacity: Capacity | None = None
        self._node = node
        self._pid = pid
        self._compute = compute
        self._clock = clock
        self._record = record
        self._device = device
        self._limits = limits
        self._shards: LoadedShards[S] = LoadedShards(limits)
        self.moves = SessionMoves(
            self._shards,
            compute,
            givers,
            clock=clock,
            record=record,
            ready=lambda: self.ready,
            bytes_per_s=limits.move_bytes_per_s,
        )
        for shard in shards:
            self.add(shard)

    def add(self, shard: Shard[S]) -> None:
        """Serve one more shard. Raises ValueError for a second of its model, or one too many."""
        self._shards.add(shard)

    def remove(self, model: ModelId) -> None:
        """Drop a shard with all its sessions; what still runs there is discarded."""
        self._shards.remove(model)

    def kv_sessions(self, model: ModelId) -> SessionCacheStore[Kept[S]]:
        """Return the book of sessions of one shard (ADR-0022 names it after the shard's)."""
        return self._shards.of(model).store

    async def forward(self, request: ForwardRequest) -> Reply:
        """Run one step of a session, or say why not. Raises nothing but cancellation."""
        arrived = self._clock()
        visit: Visit[S] | None = None
        outcome = "cancelled"
        try:
            visit = self._resolve(request, arrived)
            if request.replay:
                reply: Reply = replay(request, visit.loaded, visit.layers, arrived)
                outcome = "ok"
                return reply
            job = self._job(visit, arrived)
            try:
                await self._compute.step(job)
            except NoRoom:
                if job.lease is not None:
                    visit.loaded.store.withdraw(job.lease)
                raise
            except BaseException:  # cancelled, most of all: the lease ends on every way out
                self._settle(visit, job)
                raise
            else:
                reply = self._settle(visit, job)
            finally:
                job.let_go()
            outcome = reply.code.wire_name if isinstance(reply, Refusal) else "ok"
            return reply
        except Refused as refused:
            outcome = refused.refusal.code.wire_name
            return refused.refusal
        except MeshnetError as error:
            refusal = refusal_of(error)
            outcome = refusal.code.wire_name
            return refusal
        finally:
            self._tell(request, outcome, arrived, UNSPENT if visit is None else visit.spent)

    async def reserve(self, request: ReserveRequest) -> Reserved | Refusal:
        """Take a place with room for `request.tokens` positions, or say when to ask again."""
        if not self.ready:
            return not_ready()
        if self.moves.closed_to(request.session):
            return draining()
        try:
            running = self._reserve(request)
        except MeshnetError as error:
            return refusal_of(error)
        return Reserved(request.session, request.tokens, running)

    def release(
        self, session: SessionId, model: ModelId | None = None, *, linger: bool = False
    ) -> None:
        """Forget a session; without a model, on every shard. Unknown sessions are no error.

        With `linger` it stays until somebody needs its room, since another may adopt it.
        """
        self._shards.release(session, model, self._clock(), linger=linger)
        self._shards.tell(self._record, self._clock())

    def pin(self, session: SessionId) -> None:
        """Keep the session's place while a stream of it is open; `unpin` ends it."""
        self._shards.pin(session)

    def unpin(self, session: SessionId) -> None:
        """End one `pin`: the session stays until somebody needs its place."""
        self._shards.unpin(session)

    @property
    def pinned(self) -> int:
        """Sessions with an open stream."""
        return self._shards.pinned

    def session(self, session: SessionId) -> SessionDescription | None:
        return self._shards.session(session, self._clock())

    def describe(self) -> NodeDescription:
        work = self._shards.work()
        return NodeDescription(
            node=self._node,
            wire=WIRE_VERSION,
            pid=self._pid,
            ready=self.ready,
            shards=self._shards.descriptions(),
            sessions=self._shards.sessions(self._clock()),
            sessions_max=self._shards.sessions_max,
            kv_bytes=self._shards.kv_bytes,
            kv_bytes_max=self._limits.kv_bytes_max,
            replay=True,
            compute_s=sum(each.compute_s for each in work),
            steps=sum(each.steps for each in work),
            device=self._device,
            draining=self.moves.draining,
            capacity=self.capacity,
        )

    def work(self) -> tuple[ShardWork, ...]:
        """Return what each shard has done so far."""
        return self._shards.work()

    def check_integrity(self) -> None:
        """Assert what must hold of the sessions between any two calls."""
        self._shards.check_integrity()

    def _reserve(self, request: ReserveRequest) -> bool:
        loaded = self._shards.of(request.model)
        held = loaded.description
        layers = layers_of(request.layers, held)
        if request.tokens < 1:
            raise BadField("tokens", "at least 1", request.tokens)
        if held.capabilities.kv_cache:
            tokens = min(request.tokens, held.context_length)
            loaded.store.reserve(
                request.session,
                layers=layers,
                bytes_needed=held.kv_bytes.of(tokens),
                spare_bytes=held.kv_bytes.spare_of(tokens),
                attempt=request.attempt,
                now=self._clock(),
                adopt=request.adopt,
            )
        return loaded.store.running(request.session)

    def _resolve(self, request: ForwardRequest, arrived: float) -> Visit[S]:
        """Find out what is asked of which shard. Raises Refused, MeshnetError."""
        if not self.ready:
            raise Refused(not_ready())
        if request.mode is not Mode.DECODE and self.moves.closed_to(request.session):
            raise Refused(draining())
        deadline = None
        if request.deadline_ms is not None:
            deadline = arrived + request.deadline_ms / 1000
            if deadline <= arrived:
                raise Refused(spent())
        loaded = self._shards.of(request.model)
        held = loaded.description
        check_fingerprint(request.fingerprint, held)
        return Visit(request, loaded, held, layers_of(request.layers, held), deadline)

    def _job(self, visit: Visit[S], arrived: float) -> StepJob[S]:
        """Check what needs no lease, take one, and word the step. Raises MeshnetError."""
        request, loaded, held = visit.request, visit.loaded, visit.held
        activation, length = new_positions(request, visit.layers, held)
        lease = self._lease(visit, length, arrived)
        sampling = request.sampling
        if lease is not None and lease.state is not None and sampling is None:
            # A decode's sampling parameters came with its session.
            sampling = None if request.adopt is not None else lease.state.sampling
        waiting = WaitingStep(  # without an owner a session is its own
            model=held.model,
            layers=visit.layers,
            session=request.session,
            owner=request.owner or request.session or "",
            positions=length,
            merges=lease is not None and held.capabilities.batch,
            stages=request.stages,
            deadline=visit.deadline,
        )
        return StepJob(
            loaded.shard,
            step_of(request, visit.layers, activation, length, sampling),
            lease,  # the job alone holds it, and lets it go
            waiting,
            wanted=loaded.store.holds,
            clock=self._clock,
            row_bytes=held.kv_bytes.spare,
        )

    def _lease(self, visit: Visit[S], length: int, now: float) -> Lease[Kept[S]] | None:
        """Lease the session for the step; None where nothing is cached. Raises MeshnetError."""
        request, held, loaded = visit.request, visit.held, visit.loaded
        if request.mode is Mode.STATELESS:
            return None
        if request.session is None:
            raise BadField("session", "a session id with a cache mode", None)
        if not held.capabilities.kv_cache:
            if request.mode is Mode.DECODE:
                raise KVCacheMiss(MissReason.CACHING_OFF, "this shard does not cache")
            return None
        after = request.past_length + length
        bytes_needed, spare_bytes = held.kv_bytes.of(after), held.kv_bytes.spare_of(after)
        if request.mode is Mode.PREFILL:
            return loaded.store.prefill(
                request.session,
                layers=visit.layers,
                tokens=length,
                attempt=request.attempt,
                wire=request.wire,
                bytes_needed=bytes_needed,
                spare_bytes=spare_bytes,
                now=now,
            )
        lease = loaded.store.decode(
            request.session,
            layers=visit.layers,
            past_length=request.past_length,
            tokens=length,
            prefix=request.prefix,
            attempt=request.attempt,
            bytes_needed=bytes_needed,
            spare_bytes=spare_bytes,
            now=now,
            truncate=request.truncate and held.capabilities.shortens,
            adopt=request.adopt,
        )
        assert lease.state is not None, "a decode is leased on committed positions only"
        return lease

    def _settle(self, visit: Visit[S], job: StepJob[S]) -> Reply:
        """End the lease by how the step ended, and say so."""
        store, lease, outcome = visit.loaded.store, job.lease, job.outcome
        match outcome:
            case None:
                if lease is not None:
                    store.abandon(lease, EvictionReason.RELEASED)
                return Refusal(Code.INTERNAL, "cancelled before it ran")
            case Unwanted.SPENT:
                if lease is not None:
                    store.withdraw(lease)
                return spent()
            case Unwanted.SUPERSEDED:
                return self._superseded(visit)
            case Failed():
                if lease is not None:
                    store.abandon(lease)
                if outcome.bug:
                    self._record(Fault("node step", outcome.refusal.message, outcome.bug))
                return outcome.refusal
            case Done():
                return self._settle_done(visit, job.step, lease, outcome)
            case _:
                assert_never(outcome)

    def _settle_done(
        self, visit: Visit[S], step: ShardStep, lease: Lease[Kept[S]] | None, done: Done[S]
    ) -> Reply:
        loaded = visit.loaded
        visit.spent = done.spent
        loaded.count(step.length, done.spent.own_s)
        if lease is None or done.state is None:
            return visit.reply(done, cached=None)
        if not loaded.shard.description.capabilities.kv_cache:
            loaded.store.abandon(lease, EvictionReason.RELEASED)
            if visit.request.mode is Mode.DECODE:
                return refusal_of(
                    KVCacheMiss(MissReason.CACHING_OFF, "this shard found out it does not cache")
                )
            return visit.reply(done, cached=None)
        kept = lease.state
        if kept is None or kept.state is not done.state or kept.sampling is not step.sampling:
            kept = Kept(done.state, step.sampling, done.leaving)
        committed = loaded.store.commit(
            lease,
            state=kept,
            ids=step.tokens,
            state_bytes=done.state_bytes + done.leaving.nbytes,
            spare_bytes=done.leaving.nbytes,
            now=self._clock(),
        )
        if not committed:
            return self._superseded(visit)
        return visit.reply(done, cached=lease.length_after)

    def _superseded(self, visit: Visit[S]) -> Refusal:
        """Say why a finished step counts for nothing; the session here is another's, or gone."""
        session = visit.request.session
        assert session is not None, "a lease has a session"
        if visit.request.mode is Mode.DECODE:
            return refusal_of(KVCacheMiss(MissReason.SUPERSEDED, "overtaken while it ran"))
        if visit.loaded.store.describe(session, self._clock()) is None:
            return Refusal(Code.NO_ROOM, "an older session took the room", RETRY_AFTER_S)
        return Refusal(Code.STALE_ATTEMPT, "a newer prefill came while this one ran")

    def _tell(self, request: ForwardRequest, outcome: str, arrived: float, spent: Spent) -> None:
        now = self._clock()
        self._record(
            ForwardServed(
                mode="replay" if request.replay else request.mode.value,
                outcome=outcome,
                step_s=now - arrived,
                compute_s=spent.compute_s,
                queue_s=spent.queue_s,
                batch=spent.batch,
                session=request.session,
                request=request.trace,
                trace=request.traceparent,
                positions=spent.positions,
            )
        )
        self._shards.tell(self._record, now, decoded=request.mode is Mode.DECODE)
