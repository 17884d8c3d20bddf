"""What a seed's cluster looks like before anything happens: nodes, heads, chats.

plain     three nodes, cut at layers 3 and 6
spares    the three, and nodes whose ranges overlap theirs
cramped   the three, with room for two sessions or for few bytes
cacheless the three, one of which cannot cache
old       the three, one of which speaks the protocol before ADR-0022
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum

from meshnet.core.vocabulary import LayerRange, NodeId, SamplingParams
from meshnet.simulation.faults import Faults
from meshnet.simulation.toy_drawing import VOCABULARY
from meshnet.simulation.toy_shard import LAYER_BYTES_PER_TOKEN, oracle

LAYERS_TOTAL = 8
CUTS = (LayerRange(0, 3), LayerRange(3, 6), LayerRange(6, 8))
SPARES = (LayerRange(0, 4), LayerRange(2, 7), LayerRange(4, 8), LayerRange(0, 8))
PROMPT_MAX = 8
TOKENS_MAX = 20
START_MAX_S = 12.0
DRAFTS = (None, None, 0, 1, 3, 8)
WINDOWS = (None, 1, 2, 3, 6)
STEP_MAX_S = (0.006, 0.006, 0.1)
"""How long a device takes for a step. On slow ones chats meet, and their steps run in batches."""
OWNERS = (None, "one", "two")


SHAPES = ("plain", "plain", "spares", "spares", "cramped", "cramped", "crowded", "cacheless", "old")


class Kind(Enum):
    CURRENT = "current"
    CACHELESS = "cacheless"
    OLD = "old"


@dataclass(frozen=True, slots=True)
class NodePlan:
    node: NodeId
    layers: LayerRange
    sessions_max: int = 8
    kv_bytes_max: int = 1 << 20
    kind: Kind = Kind.CURRENT
    batches: bool = True
    sums_up: bool = False
    """Its sessions cannot be shortened, only go back to marks."""
    replays: bool = True
    """It knows ADR-0041."""


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """One client: what it asks, when, of which head, and after how many tokens it leaves."""

    name: str
    head: int
    starts_s: float
    prompt: tuple[int, ...]
    tokens_max: int
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009
    stop_ids: frozenset[int] = frozenset()
    owner: str | None = None
    leaves_after: int | None = None
    leaves_after_s: float | None = None
    stalls_after: int | None = None
    """After so many tokens it takes no more for `stalls_s`."""
    stalls_s: float = 0.0
    follows: str | None = None
    """It starts `starts_s` after the chat of this name is over."""
    layers_total: int = LAYERS_TOTAL
    """Of the model it is with."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    nodes: tuple[NodePlan, ...]
    heads: int
    chats: tuple[ChatPlan, ...]
    crashing_heads: frozenset[int] = frozenset()
    legacy_heads: frozenset[int] = frozenset()
    reserved_tokens_max: int = 512
    """A small one makes sessions outgrow their room, and younger ones give way."""
    drafts: int | None = None
    """Guesses that heads send with a step; None is what they find out for themselves."""
    streaming_heads: frozenset[int] = frozenset()
    """Heads whose steps go over streams, where a node has them."""
    step_max_s: float = STEP_MAX_S[0]
    chains: bool = True
    """Nodes hand steps on to each other, where their head has streams."""
    drains: tuple[tuple[NodeId, float], ...] = ()
    """Nodes that take no new sessions from a time on, until everything is healed."""
    windows: int | None = None
    """Steps with guesses that are on their way at once, where nodes hand steps on."""


def plan(seed: int, faults: Faults) -> ClusterPlan:
    """Draw a cluster. The same seed and faults give the same cluster."""
    rng = random.Random(f"plan {seed}")
    shape = rng.choice(SHAPES)
    nodes = _nodes(rng, shape)
    heads = rng.randint(1, 3)
    greedy = shape == "old"
    chats = tuple(_chat(rng, index, heads, faults, greedy) for index in range(rng.randint(2, 7)))
    chats = _stalling(chats, random.Random(f"stalls {seed}"), faults)
    crashing = frozenset(h for h in range(1, heads) if rng.random() < faults.head_crash)
    roomy = shape in ("plain", "spares")
    legacy = frozenset(h for h in range(heads) if roomy and rng.random() < 0.25)
    reserved = 512
    if shape in ("cramped", "crowded"):
        reserved = rng.choice((1, 2, 8, 512))
    if shape == "crowded":
        chats = tuple(_hurried(chat) for chat in chats)
    drafts = random.Random(f"drafts {seed}").choice(DRAFTS)
    chats = _repeating(chats, random.Random(f"repeating {seed}"))
    streams = random.Random(f"streams {seed}")
    streaming = frozenset(h for h in range(heads) if streams.random() < 0.6) - legacy
    cluster = ClusterPlan(nodes, heads, chats, crashing, legacy, reserved, drafts, streaming)
    cluster = replace(cluster, chains=random.Random(f"chains {seed}").random() < 0.8)
    cluster = replace(cluster, windows=random.Random(f"windows {seed}").choice(WINDOWS))
    cluster = _sharing(cluster, random.Random(f"devices {seed}"))
    cluster = _summing_up(cluster, random.Random(f"states {seed}"))
    cluster = _draining(cluster, random.Random(f"drains {seed}"))
    cluster = _aging(cluster, random.Random(f"versions {seed}"))
    cluster = _asking_more(cluster, random.Random(f"asking {seed}"))
    return _going_on(cluster, random.Random(f"turns {seed}"))


def _summing_up(cluster: ClusterPlan, rng: random.Random) -> ClusterPlan:
    """In one model of four, give some nodes layers that cannot shorten their states."""
    if rng.random() < 0.75:
        return cluster
    nodes = tuple(replace(node, sums_up=rng.random() < 0.6) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def _draining(cluster: ClusterPlan, rng: random.Random) -> ClusterPlan:
    """Where others hold its layers too, one node of every second cluster would like to leave."""
    names = [node.node for node in cluster.nodes]
    if len(names) <= len(CUTS) or rng.random() < 0.5:
        return cluster
    return replace(cluster, drains=((rng.choice(names), rng.uniform(0.0, START_MAX_S)),))


def _aging(cluster: ClusterPlan, rng: random.Random) -> ClusterPlan:
    """In one cluster of four, some nodes are from before ADR-0041."""
    if rng.random() < 0.75:
        return cluster
    nodes = tuple(replace(node, replays=rng.random() < 0.5) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def _asking_more(cluster: ClusterPlan, rng: random.Random) -> ClusterPlan:
    """Some chats have their prompt scored, or keep to a grammar, where everybody knows how."""
    if any(node.kind is Kind.OLD for node in cluster.nodes):
        return cluster
    chats = tuple(
        chat
        if chat.head in cluster.legacy_heads
        else rng.choice((chat, chat, chat, chat, scored(chat), _kept_to(chat, rng.randint(2, 5))))
        for chat in cluster.chats
    )
    return replace(cluster, chats=chats)


def scored(chat: ChatPlan) -> ChatPlan:
    """The same chat, whose prompt behind its first id is an answer that is told (ADR-0047)."""
    first, told = chat.prompt[:1], chat.prompt[1:]
    sampling = replace(chat.sampling, forced=told, prompt_length=len(chat.prompt))
    tokens_max = chat.tokens_max + len(told)
    return replace(chat, prompt=first, tokens_max=tokens_max, sampling=sampling, owner=None)


def _kept_to(chat: ChatPlan, divisor: int) -> ChatPlan:
    return replace(chat, sampling=replace(chat.sampling, grammar=str(divisor)))


def _going_on(cluster: ClusterPlan, rng: random.Random) -> ClusterPlan:
    """Give some chats a next turn."""
    turns = [next_turn(chat, rng) for chat in cluster.chats if rng.random() < 0.4]
    return replace(cluster, chats=(*cluster.chats, *turns))


def next_turn(chat: ChatPlan, rng: random.Random) -> ChatPlan:
    """What may follow `chat`: its ids, or its first ones, and more; a few come from others.

    It fits where a chat just fits.
    """
    answer = oracle(chat.prompt, chat.sampling, chat.tokens_max, LAYERS_TOTAL, chat.stop_ids)
    kept = rng.choice((len(answer), len(answer), 0, rng.randint(0, len(answer))))
    more = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 3)))
    prompt = (*chat.prompt, *answer[:kept])[: PROMPT_MAX + TOKENS_MAX - 2 - len(more)] + more
    return replace(
        chat,
        name=f"{chat.name}'",
        starts_s=rng.choice((0.0, rng.uniform(0.0, 4.0))),
        prompt=prompt,
        tokens_max=rng.randint(1, PROMPT_MAX + TOKENS_MAX - len(prompt)),
        sampling=replace(chat.sampling, prompt_length=len(prompt), forced=()),
        owner=chat.owner if rng.random() < 0.8 else rng.choice(OWNERS),
        leaves_after=None,
        leaves_after_s=None,
        stalls_after=None,
        follows=chat.name,
    )


def _sharing(cluster: ClusterPlan, rng: random.Random) -> ClusterPlan:
    """Decide whose the chats are, which nodes batch, and how fast devices are.

    On slow ones there are twice as many chats, all within a second.
    """
    nodes = tuple(replace(node, batches=rng.random() < 0.8) for node in cluster.nodes)
    chats = [replace(chat, owner=rng.choice(OWNERS)) for chat in cluster.chats]
    step_max_s = rng.choice(STEP_MAX_S)
    if step_max_s > STEP_MAX_S[0]:
        more = [replace(chat, name=f"{chat.name}+", prompt=chat.prompt[::-1]) for chat in chats]
        chats = [replace(chat, starts_s=chat.starts_s / START_MAX_S) for chat in (*chats, *more)]
    return replace(cluster, nodes=nodes, chats=tuple(chats), step_max_s=step_max_s)


def _nodes(rng: random.Random, shape: str) -> tuple[NodePlan, ...]:
    nodes = [NodePlan(NodeId(f"n{index}"), layers) for index, layers in enumerate(CUTS)]
    odd = rng.randrange(len(nodes))
    if shape == "spares":
        spares = rng.sample(SPARES, rng.randint(1, 3))
        nodes += [NodePlan(NodeId(f"s{index}"), layers) for index, layers in enumerate(spares)]
    elif shape == "cramped":
        nodes = [_cramped(rng, node) for node in nodes]
    elif shape == "crowded":
        nodes = [_short_of_bytes(rng, node) for node in nodes]
        if rng.random() < 0.5:
            names = [node.node for node in reversed(nodes)]
            nodes = [replace(node, node=name) for node, name in zip(nodes, names, strict=True)]
    elif shape == "cacheless":
        nodes[odd] = replace(nodes[odd], kind=Kind.CACHELESS)
    elif shape == "old":
        nodes[max(odd, 1)] = replace(nodes[max(odd, 1)], kind=Kind.OLD)
    return tuple(nodes)


def _cramped(rng: random.Random, node: NodePlan) -> NodePlan:
    if rng.random() < 0.5:
        return replace(node, sessions_max=rng.randint(1, 3))
    return _short_of_bytes(rng, node)


def _short_of_bytes(rng: random.Random, node: NodePlan) -> NodePlan:
    session_bytes = (PROMPT_MAX + TOKENS_MAX) * LAYER_BYTES_PER_TOKEN * len(node.layers)
    return replace(node, kv_bytes_max=int(session_bytes * rng.uniform(1.1, 3.0)))


def _chat(rng: random.Random, index: int, heads: int, faults: Faults, greedy: bool) -> ChatPlan:
    prompt = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, PROMPT_MAX)))
    tokens_max = rng.randint(1, TOKENS_MAX)
    return ChatPlan(
        name=f"c{index}",
        head=rng.randrange(heads),
        starts_s=rng.uniform(0.0, START_MAX_S) if rng.random() < 0.7 else 0.0,
        prompt=prompt,
        tokens_max=tokens_max,
        sampling=SamplingParams() if greedy else _sampling(rng, len(prompt)),
        stop_ids=frozenset(rng.sample(range(VOCABULARY), rng.randint(0, 2))),
        leaves_after=rng.randint(1, tokens_max) if rng.random() < faults.cancelled else None,
        leaves_after_s=rng.uniform(0.0, 3.0) if rng.random() < faults.cancelled / 2 else None,
    )


def _stalling(
    chats: tuple[ChatPlan, ...], rng: random.Random, faults: Faults
) -> tuple[ChatPlan, ...]:
    """Some clients stop reading for a while, and their sessions go untouched."""
    return tuple(
        replace(
            chat,
            stalls_after=rng.randint(1, chat.tokens_max),
            stalls_s=rng.uniform(0.0, faults.stall_max_s),
        )
        if rng.random() < faults.stalled
        else chat
        for chat in chats
    )


def _repeating(chats: tuple[ChatPlan, ...], rng: random.Random) -> tuple[ChatPlan, ...]:
    """Some prompts repeat themselves as answers do, and may end at a token that they hold.

    So guesses are made from the first decode on, and a stop id is among them now and then.
    """
    repeated = []
    for chat in chats:
        if rng.random() < 0.3:
            first = chat.prompt[0]
            prompt = tuple(first ^ (at % 2) for at in range(2 * rng.randint(1, 3) + 1))
            stops = frozenset((first,)) if rng.random() < 0.3 else frozenset()
            sampling = replace(chat.sampling, prompt_length=len(prompt))
            chat = replace(chat, prompt=prompt, stop_ids=chat.stop_ids | stops, sampling=sampling)
        repeated.append(chat)
    return tuple(repeated)


def _hurried(chat: ChatPlan) -> ChatPlan:
    """The same chat within the first second, as long as it may get."""
    starts_s = chat.starts_s / START_MAX_S
    return replace(chat, starts_s=starts_s, tokens_max=TOKENS_MAX, stop_ids=frozenset())


def _sampling(rng: random.Random, prompt_length: int) -> SamplingParams:
    penalised = rng.random() < 0.5
    return SamplingParams(
        temperature=rng.choice((0.0, 0.0, 0.7, 1.0)),
        seed=rng.getrandbits(64),
        presence_penalty=rng.uniform(0.0, 1.5) if penalised else 0.0,
        frequency_penalty=rng.uniform(0.0, 1.0) if penalised else 0.0,
        repetition_penalty=rng.uniform(1.0, 1.5) if penalised else 1.0,
        logit_bias=((rng.randrange(VOCABULARY), rng.uniform(-3.0, 3.0)),) * rng.randint(0, 1),
        prompt_length=prompt_length,
    )
