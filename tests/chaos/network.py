"""Where the processes of a chaos run live, and the links between them that can be broken.

namespaces   place n: 10.77.0.n on its own loopback, 10.78.n.2 on its wire
             hub:     10.77.0.n as well, where the proxy listens; 10.78.n.1 at the other end

    place 1 ─ veth ─▶ hub: proxy of place 2 ─▶ (a socket inside place 2) ─▶ process of place 2

Every process listens on its real address and is dialled by it, so it knows of no proxy; who
dials is told by the wire it came over, so each link has a weather of its own.

loopback     where no namespaces can be made: a proxy before every place. Who dials cannot be
             told apart, so all links into a place share one weather.

direct       loopback without a proxy, for what is measured: there are no links to break.

The processes that test and observe go another way, which no weather reaches.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol

from tests.chaos.fault_proxy import FaultProxy, Link
from tests.chaos.namespaces import Namespace, why_impossible

from meshnet.cli.local_nodes import free_ports

PORT = 9000
ANYBODY = "anybody"
OPERATOR = "operator"
LOOPBACK = "127.0.0.1"
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Place:
    """Where one process listens (`host`, `port`), and how others find it."""

    name: str
    host: str
    port: int
    url: str
    """By which the other processes dial it, over links that break."""
    front: str
    """By which the tests dial it, over one that does not."""
    wrapper: tuple[str, ...]
    """What to put before the command of its process."""


class Network(Protocol):
    """Use it as an async context manager."""

    kind: str

    def place(self, name: str) -> Place: ...

    def link(self, source: str, target: str) -> Link:
        """The link by which `source` dials `target`, as narrow as this network can tell."""
        ...

    def links_of(self, name: str) -> list[Link]:
        """Every link into a place, and out of it where those can be told apart."""
        ...

    async def __aenter__(self) -> Network: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def network_of(names: Sequence[str], kind: str = "auto") -> Network:
    """Return the best network there is; `kind` may ask for one. Raises ValueError."""
    reason = why_impossible() if kind != "loopback" else None
    match kind:
        case "auto":
            return LoopbackNetwork(names) if reason else NamespaceNetwork(names)
        case "namespaces" if reason is None:
            return NamespaceNetwork(names)
        case "loopback":
            return LoopbackNetwork(names)
        case "direct":
            return DirectNetwork(names)
        case _:
            raise ValueError(f"network: cannot make {kind!r}: {reason or 'unknown'}")


class _Links:
    """Links by who dials whom, made when first asked for."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], Link] = {}

    def link(self, source: str, target: str) -> Link:
        return self._links.setdefault((source, target), Link(source, target))


class _Proxied:
    """What both networks have: proxies that are entered and left together."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._links = _Links()
        self._places: dict[str, Place] = {}
        self._stack = AsyncExitStack()

    def place(self, name: str) -> Place:
        return self._places[name]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _front(self, name: str, host: str, port: int, inside: Namespace | None) -> str:
        """Open the tests' own way to a place; return its URL."""
        proxy = FaultProxy(
            listening(LOOPBACK, 0),
            lambda address: self._links.link(OPERATOR, name),
            partial(dial, host, port, inside),
        )
        await self._stack.enter_async_context(proxy)
        return f"http://{LOOPBACK}:{proxy.port}"


class NamespaceNetwork(_Proxied):
    """A network namespace for each place, and a hub between them."""

    kind = "namespaces"

    async def __aenter__(self) -> NamespaceNetwork:
        await self._stack.__aenter__()
        try:
            self._hub = self._stack.enter_context(Namespace())
            self._hub.configure(["link set lo up"])
            numbers = {name: number for number, name in enumerate(self._names, start=1)}
            sources = {f"10.78.{number}.2": name for name, number in numbers.items()}
            for name, number in numbers.items():
                await self._add(name, number, sources)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    def link(self, source: str, target: str) -> Link:
        return self._links.link(source, target)

    def links_of(self, name: str) -> list[Link]:
        others = [other for other in self._names if other != name]
        return [
            self._links.link(source, target)
            for other in others
            for source, target in ((other, name), (name, other))
        ]

    async def _add(self, name: str, number: int, sources: Mapping[str, str]) -> None:
        inside = self._stack.enter_context(Namespace())
        address = f"10.77.0.{number}"
        self._hub.configure(
            [
                f"link add wire{number} type veth peer name wire netns {inside.path}",
                f"addr add 10.78.{number}.1/24 dev wire{number}",
                f"link set wire{number} up",
                f"addr add {address}/32 dev lo",
            ]
        )
        inside.configure(
            [
                "link set lo up",
                f"addr add {address}/32 dev lo",
                f"addr add 10.78.{number}.2/24 dev wire",
                "link set wire up",
                f"route add default via 10.78.{number}.1",
            ]
        )
        with self._hub.inside():
            listener = listening(address, PORT)
        proxy = FaultProxy(
            listener,
            lambda source: self._links.link(sources.get(source, ANYBODY), name),
            partial(dial, address, PORT, inside),
        )
        await self._stack.enter_async_context(proxy)
        self._places[name] = Place(
            name=name,
            host=address,
            port=PORT,
            url=f"http://{address}:{PORT}",
            front=await self._front(name, address, PORT, inside),
            wrapper=inside.wrapper(),
        )


class LoopbackNetwork(_Proxied):
    """A proxy before each place, all on loopback."""

    kind = "loopback"

    async def __aenter__(self) -> LoopbackNetwork:
        await self._stack.__aenter__()
        for name, port in zip(self._names, free_ports(len(self._names)), strict=True):
            proxy = FaultProxy(
                listening(LOOPBACK, 0),
                lambda address, name=name: self._links.link(ANYBODY, name),
                partial(dial, LOOPBACK, port, None),
            )
            await self._stack.enter_async_context(proxy)
            self._places[name] = Place(
                name=name,
                host=LOOPBACK,
                port=port,
                url=f"http://{LOOPBACK}:{proxy.port}",
                front=await self._front(name, LOOPBACK, port, None),
                wrapper=(),
            )
        return self

    def link(self, source: str, target: str) -> Link:
        return self._links.link(ANYBODY, target)

    def links_of(self, name: str) -> list[Link]:
        return [self._links.link(ANYBODY, name)]


class DirectNetwork(_Proxied):
    """Places on loopback, dialled as they are."""

    kind = "direct"

    async def __aenter__(self) -> DirectNetwork:
        for name, port in zip(self._names, free_ports(len(self._names)), strict=True):
            url = f"http://{LOOPBACK}:{port}"
            self._places[name] = Place(name, LOOPBACK, port, url, url, ())
        return self

    def link(self, source: str, target: str) -> Link:
        raise ValueError(f"{source} to {target}: no link can be broken here")

    def links_of(self, name: str) -> list[Link]:
        return []


def listening(host: str, port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off only where it is told that this is TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


async def dial(
    host: str, port: int, inside: Namespace | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    with nullcontext() if inside is None else inside.inside():
        dialling = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        dialling.setblocking(False)
        await asyncio.get_running_loop().sock_connect(dialling, (host, port))
        return await asyncio.open_connection(sock=dialling)
    except BaseException:
        dialling.close()
        raise
