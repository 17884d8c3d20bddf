"""How a session leaves a node for another with its cache, and how one comes (ADR-0045).

    giver     layer asked for ──lease──▶ shortened to what is asked, copied ──commit──▶ as it was
    receiver  told to take ──lease──▶ layer by layer into a fresh state ──commit──▶ resident
                                           └─failed, late, overtaken──▶ an empty place

To the store a giver's export is a decode of no position, and what a receiver takes is a prefill
that others computed: so bytes are admitted before they come, a later prefill supersedes what is
under way, and a session is here whole or not at all.

Invariants
    * a giver keeps its session; only its head ends it;
    * a state is taken only if it is of the weights, arithmetic, length, ids and attempt meant;
    * one export at a time, `TAKES_MAX` sessions on their way here, `WAITING_MAX` others of each in
      turn; every wait has a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol

from meshnet.core.protocol.digest import PrefixDigest
from meshnet.core.protocol.messages import Code, Refusal
from meshnet.core.protocol.moving import LayerReply, LayerRequest, TakeRequest
from meshnet.core.protocol.refusals import refusal_of
from meshnet.core.sessions.entry import Lease
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    BadField,
    HopLost,
    KVCacheMiss,
    LayerState,
    MeshnetError,
    MissReason,
    NodeId,
    NoRoom,
    SessionDescription,
    SessionId,
    WrongShard,
)
from meshnet.node.checking import check_fingerprint, layers_of
from meshnet.node.compute import Compute
from meshnet.node.leaving import LeavingRows
from meshnet.node.refusing import RETRY_AFTER_S, Refused, draining, not_ready
from meshnet.node.shard import S
from meshnet.node.shards import LoadedShard, LoadedShards
from meshnet.node.steps import Kept
from meshnet.telemetry.events import Record, SessionTaken

TAKES_MAX = 2
"""Sessions that come at the same time."""
WAITING_MAX = 64
"""Sessions that come or wait for their turn, and layers that are asked for at once."""
GIVE_S = 30.0
"""How long a layer waits for those that were asked for before."""
LAYER_S, BYTES_PER_S_MIN = 15.0, 2e6
"""How long a receiver waits for one layer, and so much longer for its bytes: a giver that is gone
is not waited for until the whole session should have come."""
BUSY_S = 0.02
"""How long to wait for a step of the session that still runs on its giver."""


class Givers(Protocol):
    """The way to the nodes that this one knows."""

    async def layer(
        self, node: NodeId, request: LayerRequest, timeout_s: float, *, bytes_max: int
    ) -> LayerReply | Refusal:
        """Fetch one layer. Raises HopLost, also for a node that is not known."""
        ...


class _Nobody:
    """A node that knows no others."""

    async def layer(
        self, node: NodeId, request: LayerRequest, timeout_s: float, *, bytes_max: int
    ) -> LayerReply | Refusal:
        raise HopLost(f"{node}: none of this node's peers")


NOBODY = _Nobody()


class SessionMoves(Generic[S]):
    """The sessions of one node that leave and come. `bytes_per_s` bounds how fast they come."""

    def __init__(
        self,
        shards: LoadedShards[S],
        compute: Compute,
        givers: Givers,
        *,
        clock: Callable[[], float],
        record: Record,
        ready: Callable[[], bool],
        bytes_per_s: float | None = None,
    ) -> None:
        self.closing = asyncio.Event()
        """Set while the node drains."""
        self._ready = ready
        self._shards, self._compute, self._givers = shards, compute, givers
        self._clock, self._record, self._bytes_per_s = clock, record, bytes_per_s
        self._export = asyncio.Lock()
        self._turns = asyncio.Semaphore(TAKES_MAX)
        self._takes = self._gives = 0

    @property
    def busy(self) -> int:
        """How many sessions somebody is likely to come back for soon."""
        return self._shards.busy(self._clock())

    @property
    def draining(self) -> bool:
        return self.closing.is_set()

    def drain(self, *, undo: bool = False) -> None:
        """Take no new sessions from now on, and forget those that are over; or take them again."""
        if undo:
            self.closing.clear()
        else:
            self.closing.set()
            self._shards.forget_lingering(self._clock())

    def closed_to(self, session: SessionId | None) -> bool:
        """Whether a session that would begin here has to go elsewhere."""
        if not self.draining:
            return False
        known = session is not None and self._shards.session(session, self._clock()) is not None
        return not known

    async def give(self, request: LayerRequest) -> LayerReply | Refusal:
        """Return a copy of one layer of a session, or say why not."""
        if self._gives >= WAITING_MAX:
            return Refusal(Code.NO_ROOM, f"{WAITING_MAX} layers are asked for", RETRY_AFTER_S)
        self._gives += 1
        try:
            if not await self._turn_to_give():
                return Refusal(Code.DEADLINE, f"other layers were copied for {GIVE_S:g} s")
            try:  # without a deadline: who is torn from an export loses its session
                return await self._give(request)
            finally:
                self._export.release()
        except MeshnetError as error:
            return refusal_of(error)
        finally:
            self._gives -= 1

    async def _turn_to_give(self) -> bool:
        """Wait until no other layer is copied; False: that took too long."""
        try:
            async with asyncio.timeout(GIVE_S):
                return await self._export.acquire()
        except TimeoutError:
            return False

    async def _give(self, request: LayerRequest) -> LayerReply:
        loaded = self._shards.of(request.model)
        told = loaded.description
        check_fingerprint(request.fingerprint, told)
        lease = self._lent(loaded, request)
        try:
            held, state_bytes = await self._exported(loaded, lease, request.layer)
        except NoRoom:
            loaded.store.withdraw(lease)
            raise
        except BaseException:  # it may have been shortened, or not
            loaded.store.abandon(lease)
            raise
        assert lease.state is not None, "what is exported is committed"
        spare_bytes = lease.state.leaving.nbytes
        if not loaded.store.commit(
            lease,
            state=lease.state,
            ids=(),
            state_bytes=state_bytes + spare_bytes,
            spare_bytes=spare_bytes,
            now=self._clock(),
        ):
            raise KVCacheMiss(MissReason.SUPERSEDED, "overtaken while it was copied")
        return LayerReply(
            request.layer,
            request.length,
            request.prefix,
            request.attempt,
            told.fingerprint,
            told.arithmetic,
            held,
        )

    def _lent(self, loaded: LoadedShard[S], request: LayerRequest) -> Lease[Kept[S]]:
        """Lease the session as a decode of no position would. Raises MeshnetError."""
        if not loaded.description.capabilities.moves:
            raise WrongShard("sessions of this shard cannot move")
        now = self._clock()
        known = loaded.store.describe(request.session, now)
        if known is None:
            raise KVCacheMiss(MissReason.UNKNOWN_SESSION, "no such session here")
        if not known.layers.start <= request.layer < known.layers.stop:
            raise BadField("layer", f"one of {known.layers}", request.layer)
        return loaded.store.decode(
            request.session,
            layers=known.layers,
            past_length=request.length,
            tokens=0,
            prefix=request.prefix,
            attempt=request.attempt,
            bytes_needed=known.kv_bytes,
            now=now,
            truncate=loaded.description.capabilities.shortens,
        )

    async def _exported(
        self, loaded: LoadedShard[S], lease: Lease[Kept[S]], layer: int
    ) -> tuple[LayerState, int]:
        assert lease.state is not None, "a decode is leased on committed positions only"
        state, shard = lease.state.state, loaded.shard

        def export() -> tuple[LayerState, int]:
            if lease.truncate:
                shard.truncate(state, lease.length_before)
            return shard.export_layer(state, layer), shard.state_bytes(state)

        return await self._compute.run(export)

    async def take(self, request: TakeRequest) -> SessionDescription | Refusal:
        """Take a session over from the giver named, or say why not."""
        if not self._ready():
            return not_ready()
        if self.draining:
            return draining()
        if self._takes >= WAITING_MAX:
            return Refusal(Code.NO_ROOM, f"{WAITING_MAX} sessions come already", RETRY_AFTER_S)
        self._takes += 1
        try:
            async with asyncio.timeout(request.deadline_ms / 1000) as deadline, self._turns:
                return await self._take(request)
        except TimeoutError:
            if not deadline.expired():  # somebody else's
                raise
            return Refusal(Code.DEADLINE, "the session did not come in time")
        except Refused as refused:
            return refused.refusal
        except MeshnetError as error:
            return refusal_of(error)
        finally:
            self._takes -= 1

    async def _take(self, request: TakeRequest) -> SessionDescription:
        """Raises Refused, MeshnetError."""
        began_at = self._clock()
        loaded, lease = self._leased(request)
        store, moved = loaded.store, 0
        try:
            state, moved, state_bytes = await self._fetched(loaded, lease, request)
        except BaseException:
            store.withdraw(lease)
            raise
        kept, now = Kept(state, request.sampling, LeavingRows(0)), self._clock()
        if not store.commit(
            lease, state=kept, ids=request.tokens, state_bytes=state_bytes, now=now
        ):
            raise Refused(Refusal(Code.STALE_ATTEMPT, "a newer prefill came meanwhile"))
        self._record(SessionTaken(request.session, len(request.layers), moved, now - began_at))
        taken = store.describe(request.session, now)
        assert taken is not None, "it was committed just now"
        return taken

    def _leased(self, request: TakeRequest) -> tuple[LoadedShard[S], Lease[Kept[S]]]:
        """Check the order and find room for what it brings. Raises MeshnetError."""
        loaded = self._shards.of(request.model)
        told = loaded.description
        check_fingerprint(request.fingerprint, told)
        layers = layers_of(request.layers, told)
        if not told.capabilities.moves:
            raise WrongShard("sessions cannot move to this shard")
        length = len(request.tokens)
        if length > told.context_length or max(request.tokens) >= told.vocab_size:
            bounds = f"at most {told.context_length} ids below {told.vocab_size}"
            raise BadField("tokens", bounds, length)
        lease = loaded.store.prefill(
            request.session,
            layers=layers,
            tokens=length,
            attempt=request.attempt,
            wire=WIRE_VERSION,
            bytes_needed=told.kv_bytes.without_spare().of(length),
            now=self._clock(),
        )
        return loaded, lease

    async def _fetched(
        self, loaded: LoadedShard[S], lease: Lease[Kept[S]], request: TakeRequest
    ) -> tuple[S, int, int]:
        """Return the session's state, the bytes that came, and those that it takes."""
        shard, run = loaded.shard, self._compute.run
        state = await run(partial(shard.new_state, lease.layers))
        moved = 0
        for layer in range(lease.layers.start, lease.layers.stop):
            began_at = self._clock()
            held = await self._layer(loaded, lease, request, layer)
            await run(partial(shard.restore_layer, state, layer, held, lease.length_after))
            moved += len(held.data)
            await self._pace(len(held.data), began_at)
        await run(partial(shard.end_restore, state, request.tokens))
        return state, moved, shard.state_bytes(state)

    async def _layer(
        self, loaded: LoadedShard[S], lease: Lease[Kept[S]], request: TakeRequest, layer: int
    ) -> LayerState:
        """Fetch one layer that is what is meant. Raises Refused."""
        told, length = loaded.description, lease.length_after
        prefix = PrefixDigest.of(request.tokens).hex
        asked = LayerRequest(
            request.session, layer, length, prefix, request.attempt, told.model, told.fingerprint
        )
        bytes_max = told.kv_bytes.of(length)
        while loaded.store.holds(lease):
            reply = await self._reply(request, asked, bytes_max)
            if isinstance(reply, LayerReply):
                if reply.answers(asked) and reply.arithmetic == told.arithmetic:
                    return reply.held
                message = f"{request.giver} sent another layer, or one of another arithmetic"
                raise Refused(Refusal(Code.HOP_FAILED, message))
            if reply.reason is not MissReason.BUSY:
                message = f"{request.giver}: {reply.code.wire_name}: {reply.message}"
                raise Refused(Refusal(Code.HOP_FAILED, message))
            await asyncio.sleep(BUSY_S)
        raise Refused(Refusal(Code.STALE_ATTEMPT, "a newer prefill came meanwhile"))

    async def _reply(
        self, request: TakeRequest, asked: LayerRequest, bytes_max: int
    ) -> LayerReply | Refusal:
        timeout_s = min(request.deadline_ms / 1000, LAYER_S + bytes_max / BYTES_PER_S_MIN)
        try:
            return await self._givers.layer(request.giver, asked, timeout_s, bytes_max=bytes_max)
        except HopLost as lost:
            raise Refused(Refusal(Code.HOP_FAILED, str(lost))) from None

    async def _pace(self, size: int, began_at: float) -> None:
        """Wait until what came since `began_at` has taken the time it may take."""
        if self._bytes_per_s is not None:
            left_s = size / self._bytes_per_s - (self._clock() - began_at)
            if left_s > 0:
                await asyncio.sleep(left_s)
