"""A step that is answered from what was kept of it: nothing is computed and nothing changed.

replay ──▶ the session's own ids at these positions? ──▶ rows ──▶ activation
                                  └ KVCacheMiss
"""

from __future__ import annotations

from meshnet.core.protocol.messages import ActivationReply, ForwardRequest
from meshnet.core.vocabulary import BadField, KVCacheMiss, LayerRange, MissReason
from meshnet.node.shard import S
from meshnet.node.shards import LoadedShard


def replay(
    request: ForwardRequest, loaded: LoadedShard[S], layers: LayerRange, now: float
) -> ActivationReply:
    """Return what left `layers` for the request's positions. Raises BadField, KVCacheMiss."""
    if request.session is None or request.prefix is None or not request.tokens:
        raise BadField("replay", "ids of a session and the digest before them", None)
    if not loaded.description.kv_bytes.spare:
        raise KVCacheMiss(MissReason.PAST_LENGTH, "what leaves these layers is not kept")
    stop = request.past_length + len(request.tokens)
    kept = loaded.store.replay(
        request.session,
        layers=layers,
        past_length=request.past_length,
        ids=request.tokens,
        prefix=request.prefix,
        attempt=request.attempt,
        now=now,
    )
    return ActivationReply(kept.leaving.activation(request.past_length, stop), stop)
