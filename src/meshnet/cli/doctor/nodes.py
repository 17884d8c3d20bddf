"""What is found of nodes by what they tell of themselves. Nothing is asked here.

Clocks are not looked at: nothing of a mesh compares those of two machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from meshnet import __version__
from meshnet.cli.doctor.findings import Finding, bad, ok, warn
from meshnet.cli.report import bytes_text
from meshnet.core.vocabulary import (
    WIRE_VERSION,
    HopLost,
    Link,
    ModelId,
    NodeDescription,
    NodeId,
    ShardDescription,
)

FAR_S = 0.05
"""A round trip from which on tokens wait mostly for the way."""
SLOW_BYTES_PER_S = 1e6
FULL = 0.9

Nodes = Mapping[NodeId, NodeDescription]


def reached(answers: Mapping[NodeId, NodeDescription | HopLost]) -> list[Finding]:
    found = []
    for node, answer in answers.items():
        if isinstance(answer, HopLost):
            found.append(bad("reach", str(answer), _how_to_reach(str(answer))))
        elif answer.draining:
            text = f"{name(node)} drains: it takes no new sessions"
            found.append(warn("reach", text, "wait until it ends, or: meshnet drain NODE --undo"))
        elif not answer.ready:
            text = f"{name(node)} answers, and is not ready"
            found.append(warn("reach", text, "wait while it loads; its log tells what it does"))
    if answers and not found:
        found.append(ok("reach", f"{len(answers)} nodes answer and are ready"))
    return found


def _how_to_reach(error: str) -> str:
    if "HTTP 401" in error or "HTTP 403" in error:
        return "set MESHNET_MESH_TOKEN here to the secret that the node was started with"
    if "HTTP 404" in error or "unreadable" in error:
        return "something else listens there, or a node too old to describe itself: see --node"
    return "see that the node runs, that it listens beyond loopback (--host), and the firewall"


def versions(nodes: Nodes) -> list[Finding]:
    """Hold versions against this one's."""
    found = []
    for node, told in nodes.items():
        if told.wire > WIRE_VERSION:
            text = f"{name(node)} speaks wire version {told.wire}, this meshnet {WIRE_VERSION}"
            found.append(bad("versions", text, "update meshnet here and on the gateway"))
        elif told.wire < WIRE_VERSION or told.version != __version__:
            what = told.version or "an older meshnet"
            text = f"{name(node)} runs {what}, this is {__version__}"
            found.append(warn("versions", text, "run one version: old ones do not know every step"))
    if nodes and not found:
        found.append(ok("versions", f"all run meshnet {__version__}"))
    return found


def models(nodes: Nodes) -> list[Finding]:
    """Hold the shards of each model against each other: tokenizer, weights, arithmetic, caches."""
    held: dict[ModelId, dict[NodeId, ShardDescription]] = defaultdict(dict)
    for node, told in nodes.items():
        for shard in told.shards:
            held[shard.model][node] = shard
    return [each for model, shards in held.items() for each in _model(model, shards)]


def _model(model: ModelId, shards: Mapping[NodeId, ShardDescription]) -> list[Finding]:
    found = []
    if parts := _parted({node: shard.fingerprint for node, shard in shards.items()}):
        text = f"{model}: configuration, tensors or tokenizer differ: {parts}"
        advice = "load the same files everywhere: meshnet pull, or copy the directory"
        found.append(bad("models", text, advice))
    if parts := _parted({node: shard.arithmetic for node, shard in shards.items()}):
        text = f"{model}: formats or libraries differ: {parts}"
        advice = "run equal versions and --weights, or recoveries change the low bits"
        found.append(warn("models", text, advice))
    for node, shard in shards.items():
        if not shard.capabilities.kv_cache:
            text = f"{model} on {name(node)} caches nothing: every token runs the whole prompt"
            found.append(warn("models", text, "its log tells why; see docs/families.md"))
    return found or [ok("models", f"{model}: {len(shards)} shards agree")]


def _parted(told: Mapping[NodeId, str]) -> str:
    """Say who tells what; empty if all tell the same."""
    groups: dict[str, list[str]] = defaultdict(list)
    for node, value in told.items():
        groups[value].append(name(node))
    if len(groups) < 2:
        return ""
    return "; ".join(f"{', '.join(those)}: {value}" for value, those in groups.items())


def memory(nodes: Nodes) -> list[Finding]:
    found = []
    for node, told in nodes.items():
        if told.kv_bytes_max and told.kv_bytes > FULL * told.kv_bytes_max:
            share = f"{bytes_text(told.kv_bytes)} of {bytes_text(told.kv_bytes_max)}"
            text = f"{name(node)}: {share} of KV cache are taken"
            found.append(warn("memory", text, "raise kv_max_bytes, or give layers to more nodes"))
        longest = min((_longest(shard, told.kv_bytes_max) for shard in told.shards), default=None)
        if longest is not None and longest < min(each.context_length for each in told.shards):
            text = f"{name(node)}: its KV cache holds {longest} tokens, fewer than the context"
            found.append(warn("memory", text, "raise kv_max_bytes, or expect long prompts refused"))
        weights = sum(shard.weight_bytes for shard in told.shards)
        room = told.capacity.memory_bytes if told.capacity is not None else None
        if room is not None and weights + told.kv_bytes_max > room:
            needs = bytes_text(weights + told.kv_bytes_max)
            text = f"{name(node)}: weights and KV bound are {needs}, {bytes_text(room)} were free"
            found.append(warn("memory", text, "lower kv_max_bytes, or let it hold fewer layers"))
    if nodes and not found:
        found.append(ok("memory", "weights and KV caches fit on every node"))
    return found


def _longest(shard: ShardDescription, kv_bytes_max: int) -> int:
    """Return how many tokens of one session fit, in whole cells."""
    kv = shard.kv_bytes
    if not kv.per_token:
        return shard.context_length
    cells = max(kv_bytes_max - kv.fixed, 0) // (kv.per_token * kv.grid)
    return min(cells * kv.grid, shard.context_length)


def links(told: Iterable[tuple[str, Link]], unmeasured: Sequence[NodeId] = ()) -> list[Finding]:
    """Judge ways: each comes with the name of where it begins."""
    found = [_link(begin, link) for begin, link in told]
    for node in unmeasured:
        text = f"here to {name(node)}: not measured"
        found.append(warn("links", text, "ask again: it was busy, or is too old to be asked"))
    return found


def _link(begin: str, link: Link) -> Finding:
    way = f"{begin} to {name(link.node)}"
    figures = f"{1000 * link.round_trip_s:.2f} ms, {bytes_text(round(link.bytes_per_s))}/s"
    if link.round_trip_s > FAR_S:
        advice = "every token waits for it: place neighbours near each other, keep --routes auto"
        return warn("links", f"{way}: {figures}: far", advice)
    if link.bytes_per_s < SLOW_BYTES_PER_S:
        advice = "prompts wait for it: use a wired network, or fewer nodes"
        return warn("links", f"{way}: {figures}: slow", advice)
    return ok("links", f"{way}: {figures}")


def name(node: NodeId) -> str:
    return urlsplit(node).netloc or node
