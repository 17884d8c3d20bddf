"""The options several commands share, each written once, and how they become Settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshnet.cli.streams import carries_unicode

if TYPE_CHECKING:
    from meshnet.cli.settings import Settings


class WeightsOption(StrEnum):
    """The choices of `--weights`; settings.Weights is the same list, imported later."""

    AUTO = "auto"
    INT8 = "int8"
    INT8_FAST = "int8-fast"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class RoutesOption(StrEnum):
    """The choices of `--routes`."""

    AUTO = "auto"
    CHAIN = "chain"
    STAR = "star"


Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="M", show_default="smollm2-135m",
        help="A known name, a Hugging Face directory, a GGUF file or a hub id.",
    ),
]  # fmt: skip
WeightsFlag = Annotated[
    WeightsOption | None,
    typer.Option("--weights", show_default="auto", help="How weights are held in memory."),
]
FastPrefill = Annotated[
    bool | None,
    typer.Option(
        "--fast-prefill",
        show_default="off",
        help="Faster on long prompts; answers may then depend on chunks, batches and refills.",
    ),
]
Drafts = Annotated[
    str | None,
    typer.Option(
        "--drafts",
        metavar="auto|off|N",
        show_default="auto",
        help="Guess tokens from the text so far and verify N in one step; same answers.",
    ),
]
Routes = Annotated[
    RoutesOption | None,
    typer.Option(
        "--routes",
        show_default="auto",
        help="chain: nodes hand steps on to each other; star: the head asks each; auto: as able.",
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", "-n", min=1, max=64, help="Node processes.")]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="HOST:PORT", help="Nodes on the machines of a Ray, one on each."),
]
Peer = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="URL", help="A node to hand steps on to. Repeatable."),
]
Join = Annotated[
    str | None,
    typer.Option(
        "--join",
        "--registry",
        metavar="URL",
        help="The mesh this node joins: a gateway, or etcd://HOST:PORT[,…].",
    ),
]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        help="Ask the registry itself: a gateway's or etcd://HOST:PORT[,…].",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option("--advertise", metavar="URL", help="Where others reach this node."),
]
Layers = Annotated[
    str | None,
    typer.Option("--layers", "-l", metavar="A-B", help="Half-open: 0-10 is layers 0 to 9."),
]
Shards = Annotated[
    list[str] | None,
    typer.Option("--shard", metavar="M:A-B", help="A model and its layers. Repeatable."),
]
NodePort = Annotated[
    int, typer.Option("--port", "-p", min=0, max=65535, help="0 chooses a free one.")
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="a,b,..",
        help="Cuts: 10,20 of 30 layers is 0-10, 10-20, 20-30. Beats --nodes.",
    ),
]
Host = Annotated[
    str | None,
    typer.Option("--host", show_default="127.0.0.1", help="Address to listen on."),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", show_default="cores / nodes", help="Compute threads of one node."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", show_default="./meshnet.toml", help="Settings file (TOML)."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE",
        help="Any setting of docs/operations.md, e.g. --set kv_max_sessions=2. Repeatable.",
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
JsonReady = Annotated[
    bool, typer.Option("--json-ready", help="Print the ready line as JSON, for scripts.")
]
Url = Annotated[
    str | None,
    typer.Option("--url", show_default="http://127.0.0.1:8000", help="URL of a gateway."),
]


def settings_from(
    flags: Mapping[str, object], config: Path | None, assignments: Sequence[str] | None
) -> Settings:
    """Read the settings of one command. Raises SettingsError."""
    from meshnet.cli.settings import Settings, load_settings

    given = {k: v.value if isinstance(v, Enum) else v for k, v in flags.items()}
    assigned = {}
    for assignment in assignments or ():
        key, equals, value = assignment.partition("=")
        if not equals or key not in Settings.model_fields:
            known = ", ".join(Settings.model_fields)
            raise typer.BadParameter(f"--set expects KEY=VALUE with KEY one of: {known}")
        if key == "etcd_password":
            raise typer.BadParameter(
                "--set etcd_password: everybody on this machine can read it there; expected "
                "MESHNET_ETCD_PASSWORD or the settings file"
            )
        assigned[key] = value
    return load_settings(given, assigned=assigned, config=config)


def print_json(value: object) -> None:
    ascii_only = not carries_unicode()
    print(json.dumps(value, ensure_ascii=ascii_only, indent=2, allow_nan=False), flush=True)


def print_ready(role: str, url: str, pid: int, *, as_json: bool) -> None:
    """Tell on standard output that the process serves."""
    if as_json:
        print(json.dumps({"event": "ready", "role": role, "url": url, "pid": pid}), flush=True)
    else:
        print(f"meshnet {role} ready at {url} (pid {pid})", flush=True)
