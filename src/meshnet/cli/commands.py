"""The signatures of the commands: what each accepts and says about itself. Work is elsewhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshnet.cli import options

UP_EXAMPLES = """
[bold]Examples[/bold]

  meshnet up                                     two nodes, the default model, port 8000

  meshnet up --model ./my-model --split 4        a local directory, cut before layer 4

  meshnet up --nodes 3 --set kv_max_sessions=2   any setting by its name

  meshnet up --nodes 3 --ray 10.0.0.1:6379       nodes on three machines of a Ray
"""

NODE_EXAMPLES = """
[bold]Examples[/bold]

  meshnet node --join http://10.0.0.1:8000            layers as its mesh tells it

  meshnet node --layers 0-15 --port 9001             layers 0 to 14 of the default model

  meshnet node --shard smollm2-135m:0-15 --shard ./other:0-8     shards of two models
"""

SERVE_EXAMPLES = """
[bold]Examples[/bold]

  meshnet serve                                      over the nodes that join

  meshnet serve --registry http://10.0.0.1:8000      the same nodes, a second API

  meshnet serve --registry etcd://127.0.0.1:2379     members in etcd; gateways come and go

  meshnet serve --node http://127.0.0.1:9001 --node http://127.0.0.1:9002
"""

RUN_EXAMPLES = """
[bold]Examples[/bold]

  meshnet run "Why is the sky blue?"

  meshnet run "Count to ten." --nodes 3 --max-tokens 40 --json
"""

STATUS_EXAMPLES = """
[bold]Examples[/bold]

  meshnet status

  meshnet status --url http://10.0.0.1:8000 --json

  meshnet status --registry etcd://127.0.0.1:2379            the members, without a gateway
"""

TOP_EXAMPLES = """
[bold]Examples[/bold]

  meshnet top

  meshnet top --url http://10.0.0.1:8000

Inside: q quits, p pauses.
"""

PLAN_EXAMPLES = """
[bold]Examples[/bold]

  meshnet plan                                    for the nodes behind the gateway that runs here

  meshnet plan --nodes nodes.json --context 8192 --sessions 4      for nodes as they measured
"""

DRAIN_EXAMPLES = """
[bold]Examples[/bold]

  meshnet drain http://10.0.0.2:9001

  meshnet drain node-2 --gateway http://10.0.0.1:8000 --undo
"""

PULL_EXAMPLES = """
[bold]Examples[/bold]

  meshnet pull                                   the default model

  meshnet pull HuggingFaceTB/SmolLM2-360M-Instruct
"""

SIMULATE_EXAMPLES = """
[bold]Examples[/bold]

  meshnet simulate --seeds 1000 --faults storm

  meshnet simulate --seeds 1 --first 119 --faults storm     replay one seed

  meshnet simulate --seeds 1000 --faults churn              nodes come and go
"""


class Faults(StrEnum):
    CALM = "calm"
    STORM = "storm"
    CHURN = "churn"


def up(
    model: options.Model = None,
    nodes: options.Nodes = 2,
    split: options.Split = None,
    ray: options.Ray = None,
    host: options.Host = None,
    port: Annotated[
        int | None, typer.Option("--port", "-p", show_default="8000", help="Port of the API.")
    ] = None,
    weights: options.WeightsFlag = None,
    fast_prefill: options.FastPrefill = None,
    threads: options.Threads = None,
    drafts: options.Drafts = None,
    routes: options.Routes = None,
    json_ready: options.JsonReady = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Start node processes and an OpenAI-compatible API."""
    from meshnet.cli.up import up

    flags = {
        "model": model,
        "host": host,
        "port": port,
        "weights": weights,
        "threads": threads,
        "drafts": drafts,
        "routes": routes,
        "fast_prefill": fast_prefill,
    }
    chosen = options.settings_from(flags, config, settings)
    up(chosen, nodes=nodes, split=split, ray=ray, as_json=json_ready)


def node(
    model: options.Model = None,
    layers: options.Layers = None,
    shard: options.Shards = None,
    join: options.Join = None,
    advertise: options.Advertise = None,
    host: options.Host = None,
    port: options.NodePort = 0,
    peer: options.Peer = None,
    weights: options.WeightsFlag = None,
    fast_prefill: options.FastPrefill = None,
    threads: options.Threads = None,
    json_ready: options.JsonReady = False,
    end_with_stdin: Annotated[bool, typer.Option("--end-with-stdin", hidden=True)] = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Serve layers of a model to heads."""
    from meshnet.cli.node_process import Joining, ShardChoice, run_node

    flags = {
        "model": model,
        "host": host,
        "weights": weights,
        "threads": threads,
        "fast_prefill": fast_prefill,
        "peers": ",".join(peer) if peer else None,
    }
    chosen = options.settings_from(flags, config, settings)
    shards = ShardChoice.all_of(chosen.model, layers, shard or ())
    if not shards and join is None:
        raise _without_layers(chosen.model)
    joining = Joining.of(chosen, join, advertise)
    run_node(
        chosen,
        shards,
        port=port,
        as_json=json_ready,
        end_with_stdin=end_with_stdin,
        joining=joining,
    )


def _without_layers(model: str) -> typer.BadParameter:
    """Raises ModelError where the model is none: that is more likely what is wrong."""
    from meshnet.engine.models.pull import check_spec

    check_spec(model)
    return typer.BadParameter("expected --layers A-B, --shard M:A-B, or --join URL")


def serve(
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="URL",
            help="Repeatable. URL=A-B declares the layers of a node too old to be asked.",
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="URL",
            help="The mesh to use, instead of one here: a gateway's, or etcd://HOST:PORT[,…].",
        ),
    ] = None,
    model: options.Model = None,
    host: options.Host = None,
    port: Annotated[
        int | None, typer.Option("--port", "-p", show_default="8000", help="Port of the API.")
    ] = None,
    drafts: options.Drafts = None,
    routes: options.Routes = None,
    json_ready: options.JsonReady = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Offer an OpenAI-compatible API over nodes that join, or that run already."""
    from meshnet.cli.gateway_process import run_gateway

    flags = {"model": model, "host": host, "port": port, "drafts": drafts, "routes": routes}
    chosen = options.settings_from(flags, config, settings)
    run_gateway(chosen, node or (), registry_url=registry, as_json=json_ready)


def run(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    model: options.Model = None,
    nodes: options.Nodes = 2,
    split: options.Split = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 128,
    temperature: Annotated[float, typer.Option("--temperature", min=0, max=2)] = 0.0,
    weights: options.WeightsFlag = None,
    fast_prefill: options.FastPrefill = None,
    threads: options.Threads = None,
    drafts: options.Drafts = None,
    routes: options.Routes = None,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Ask once on a private mesh, then show which node did what."""
    from meshnet.cli.oneshot import Ask, ask_once

    flags = {
        "model": model,
        "weights": weights,
        "threads": threads,
        "drafts": drafts,
        "routes": routes,
        "fast_prefill": fast_prefill,
    }
    ask_once(
        options.settings_from(flags, config, settings),
        Ask(prompt, max_tokens, temperature),
        nodes=nodes,
        split=split,
        as_json=as_json,
    )


def status(
    url: options.Url = None,
    registry: options.Registry = None,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Show the nodes behind a gateway: layers, bytes, caches, time."""
    from meshnet.cli.credentials import gateway_here
    from meshnet.cli.status import show_status

    chosen = options.settings_from({}, config, settings)
    if registry is not None:
        from meshnet.cli.registry_members import show_members

        if url is not None:
            raise typer.BadParameter("expected either --url or --registry, not both")
        show_members(chosen, registry, as_json=as_json)
        return
    show_status(chosen, url or gateway_here(chosen), as_json=as_json)


def top(
    url: options.Url = None,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Watch the mesh behind a gateway: nodes, tokens, deaths and recoveries as they happen."""
    from meshnet.cli.credentials import gateway_here
    from meshnet.cli.live.top import show_top

    chosen = options.settings_from({}, config, settings)
    show_top(chosen, url or gateway_here(chosen))


def plan(
    model: options.Model = None,
    nodes: Annotated[
        Path | None,
        typer.Option("--nodes", metavar="FILE", help="What nodes measured (JSON)."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, show_default="2048", help="Tokens of a session at most."),
    ] = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions at once.")] = 1,
    prompt: Annotated[
        int | None,
        typer.Option("--prompt", min=1, show_default="512", help="Tokens of the prompt."),
    ] = None,
    weights: options.WeightsFlag = None,
    routes: options.Routes = None,
    url: options.Url = None,
    as_json: options.Json = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Say who would run which layers, and how fast, before anything is loaded."""
    from meshnet.cli.planning import Ask, show_plan

    flags = {"model": model, "weights": weights, "routes": routes}
    chosen = options.settings_from(flags, config, settings)
    show_plan(
        chosen,
        Ask(context, sessions, prompt),
        nodes=nodes,
        url=url,
        as_json=as_json,
    )


def drain(
    node: Annotated[str, typer.Argument(help="The node: its URL, its address, or its name.")],
    gateway: Annotated[
        str | None, typer.Option("--gateway", metavar="URL", help="A gateway that knows it.")
    ] = None,
    registry: options.Registry = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take sessions again.")] = False,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Let a node leave: its chats move to others, then it ends."""
    from meshnet.cli.credentials import gateway_here
    from meshnet.cli.drain_command import drain_member, drain_node

    chosen = options.settings_from({}, config, settings)
    if registry is not None:
        if gateway is not None:
            raise typer.BadParameter("expected either --gateway or --registry, not both")
        drain_member(chosen, node, registry, undo=undo)
        return
    drain_node(chosen, node, gateway or gateway_here(chosen), undo=undo)


def pull(
    name: Annotated[
        str | None, typer.Argument(help="The model; the same as --model.", show_default=False)
    ] = None,
    model: options.Model = None,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Fetch a model into the cache directory."""
    from meshnet.cli.models import pull_model

    if name is not None and model is not None:
        raise typer.BadParameter("expected either NAME or --model, not both")
    pull_model(options.settings_from({"model": name or model}, config, settings))


def simulate(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many clusters.")] = 100,
    first: Annotated[int, typer.Option("--first", min=0, help="First seed.")] = 0,
    faults: Annotated[Faults, typer.Option("--faults", help="What goes wrong.")] = Faults.STORM,
    as_json: options.Json = False,
) -> None:
    """Run seeded clusters under a fake clock against an oracle."""
    from meshnet.cli.simulate import simulate_seeds

    simulate_seeds(range(first, first + seeds), faults.value, as_json=as_json)
