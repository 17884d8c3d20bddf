"""The other end of workers.py: `python -m meshnet.cli.bench.worker KIND ARGUMENTS`.

    up NODES             a mesh with its API; the ready line has its url
    engine               the whole model on this process's engine, nothing of meshnet around it
    generate             the same model by transformers' `generate`
    bare A-B             a node that holds no layer any more: it has loaded those and let go
    exact                one answer by shards cut, chunked and batched as asked
    profile A-B          layers of the model, with stopwatches around attention and sampling
    echo READ SENT       answers so many bytes with so many, by plain sockets
    wires PORT ...       one delaying proxy per port of loopback; {"delay_s": s} sets all,
                         {"delays_s": [s, ...]} each
    node FACTOR A-B PORT a node whose shard takes so many times as long as it would

Settings come by environment. Invariant: only a question of the parent makes it work.
"""

from __future__ import annotations

import asyncio
import gc
import json
import selectors
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from meshnet.cli.settings import load_settings
from meshnet.core.vocabulary import LayerRange
from meshnet.mesh.parent import end_with_parent


def main(arguments: Sequence[str]) -> None:
    kind, *rest = arguments
    KINDS[kind](rest)


def tell(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def _up(arguments: Sequence[str]) -> None:
    from meshnet.cli.up import up

    end_with_parent()
    up(load_settings({}), nodes=int(arguments[0]), split=None, as_json=True)


def _engine(arguments: Sequence[str]) -> None:
    from meshnet.cli.bench.lone import LoneEngine

    _answer(LoneEngine.loaded(load_settings({})).answer)


def _generate(arguments: Sequence[str]) -> None:
    from meshnet.cli.bench.lone import Transformers

    _answer(Transformers.loaded(load_settings({})).answer)


def _bare(arguments: Sequence[str]) -> None:
    from meshnet.cli.models import format_of, resolve_model
    from meshnet.cli.node_process import run_node
    from meshnet.engine.loading import load_shard

    settings = load_settings({})
    source = resolve_model(settings.model, settings)
    load_shard(source.path, LayerRange.parse(arguments[0]), weights=format_of(settings.weights))
    gc.collect()
    run_node(settings, (), port=0, as_json=True, end_with_stdin=True)


def _node(arguments: Sequence[str]) -> None:
    from meshnet.cli.bench.slowed import slowed
    from meshnet.cli.node_process import ShardChoice, run_node

    factor, layers, port = arguments
    settings = load_settings({})
    run_node(
        settings,
        (ShardChoice.of(settings.model, layers),),
        port=int(port),
        as_json=True,
        end_with_stdin=True,
        through=slowed(float(factor)),
    )


def _exact(arguments: Sequence[str]) -> None:
    from meshnet.cli.bench.exact_engine import ExactEngine

    _answer(ExactEngine(load_settings({})).answer)


def _profile(arguments: Sequence[str]) -> None:
    from meshnet.cli.bench.profile import ShardProfile

    _answer(ShardProfile.loaded(load_settings({}), LayerRange.parse(arguments[0])).answer)


def _echo(arguments: Sequence[str]) -> None:
    from meshnet.cli.bench.echo import serve

    end_with_parent()
    received, sent = map(int, arguments)
    serve(received, sent, lambda port: tell({"event": "ready", "port": port}))


def _answer(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer each line of stdin until there is none."""
    tell({"event": "ready"})
    for line in sys.stdin:
        tell(answer(json.loads(line)))


def _wires(arguments: Sequence[str]) -> None:
    # `select` takes a wait in microseconds; epoll, and uvloop's clock, in milliseconds.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_run_wires([int(port) for port in arguments]))


async def _run_wires(ports: Sequence[int]) -> None:
    from meshnet.cli.bench.proxy import DelayProxy

    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(DelayProxy("127.0.0.1", p)) for p in ports]
        questions = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(questions), sys.stdin
        )
        tell({"event": "ready", "ports": [wire.port for wire in wires]})
        while line := await questions.readline():
            asked = json.loads(line)
            delays_s = asked.get("delays_s") or [asked["delay_s"]] * len(wires)
            for wire, delay_s in zip(wires, delays_s, strict=True):
                wire.delay_s = float(delay_s)
            tell(asked)


KINDS: dict[str, Callable[[Sequence[str]], None]] = {
    "up": _up,
    "engine": _engine,
    "generate": _generate,
    "bare": _bare,
    "exact": _exact,
    "profile": _profile,
    "echo": _echo,
    "wires": _wires,
    "node": _node,
}


if __name__ == "__main__":
    main(sys.argv[1:])
