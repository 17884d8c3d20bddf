"""How llama.cpp is told to serve a model, alone or split, and how its log says it obeyed.

    nodes = 1    llama-server                          all layers in the server's process
    nodes = n    llama-server + n x ggml-rpc-server    all layers and the head in the RPC servers

It gets what serves it best in these measurements: no warm start is spared, no prompt is copied into
a cache that nobody will use, no memory is searched for other splits, and the sampler does nothing
but take the largest logit. The token embedding always stays with llama-server; so does sampling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshnet.cli.bench.peers_build import PeerError, Programs

HOST = "127.0.0.1"
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_KV = re.compile(r"(\S+) KV buffer size = +([\d.]+) MiB")
_CELLS = re.compile(r"size = +[\d.]+ MiB \( *(\d+) cells, +(\d+) layers")


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """One way to run llama.cpp."""

    model: Path
    """A GGUF file."""
    nodes: int
    threads: int
    """Of each process that computes."""
    sessions: int = 1
    """Slots: how many generations run at once."""
    context_length: int = 2048
    """Positions of each slot."""
    flash_attention: bool = True
    """On is upstream's default; off is faster on processors in long contexts."""
    micro_batch: int = 512
    """Positions computed at once in a prefill; 512 is upstream's default."""
    repack: bool = True
    """Weights are laid out anew for this processor's widest instructions; upstream's default."""
    weights: str = "q8_0"
    """How the file stores its matrices: for the name."""

    def __post_init__(self) -> None:
        if min(self.nodes, self.threads, self.sessions, self.context_length) < 1:
            raise ValueError(f"peer: expected positive numbers, got {self}")

    def __str__(self) -> str:
        split = "RPC " if self.nodes > 1 else ""
        attention = "" if self.flash_attention else ", flash attention off"
        batch = "" if self.micro_batch == 512 else f", micro-batch {self.micro_batch}"
        repack = "" if self.repack else ", no repack"
        told = f"{self.weights}, {self.nodes} x {self.threads}{attention}{batch}{repack}"
        return f"llama.cpp {split}{told}"


def server_command(
    setup: PeerSetup, programs: Programs, port: int, rpc_ports: Sequence[int]
) -> list[str]:
    """Return the command line of llama-server."""
    command = [str(programs.server), "--model", str(setup.model), "--offline", "--no-ui"]
    command += ["--host", HOST, "--port", str(port), "--log-verbosity", "4"]
    command += ["--threads", str(setup.threads), "--parallel", str(setup.sessions)]
    command += ["--ctx-size", str(setup.context_length * setup.sessions)]
    command += ["--flash-attn", "on" if setup.flash_attention else "off"]
    command += ["--ubatch-size", str(setup.micro_batch), "--cache-ram", "0", "--fit", "off"]
    command += [] if setup.repack else ["--no-repack"]
    if not rpc_ports:
        return [*command, "--device", "none"]
    servers = ",".join(f"{HOST}:{each}" for each in rpc_ports)
    shares = ",".join("1" for _ in rpc_ports)
    return [*command, "--rpc", servers, "--gpu-layers", "all", "--tensor-split", shares]


def rpc_server_command(setup: PeerSetup, programs: Programs, port: int) -> list[str]:
    """Return the command line of one ggml-rpc-server."""
    command = [str(programs.rpc_server), "--host", HOST, "--port", str(port)]
    return [*command, "--threads", str(setup.threads), "--device", "CPU"]


def completion_body(prompt: Sequence[int], tokens: int) -> dict[str, object]:
    """Return the request of exactly `tokens` greedy tokens after `prompt`, with nothing reused."""
    return {
        "prompt": list(prompt),
        "n_predict": tokens,
        "temperature": 0,
        "samplers": ["top_k"],
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": True,
    }


def layer_split(log: str) -> dict[str, int]:
    """Return from llama-server's log how many layers each device computes.

    The log tells K/V bytes by device; every layer has equally many.

    Raises:
        PeerError: the log does not say it.
    """
    shares = {device: float(size) for device, size in _KV.findall(log)}
    cells = _CELLS.search(log)
    if not shares or cells is None:
        raise PeerError("llama-server's log does not tell where the layers lie")
    of_one = sum(shares.values()) / int(cells[2])
    counts = {device: share / of_one for device, share in shares.items()}
    if any(abs(count - round(count)) > 0.1 for count in counts.values()):
        raise PeerError(f"llama-server's log tells {shares} MiB of {cells[2]} layers")
    return {device: round(count) for device, count in counts.items()}


def check_split(log: str, nodes: int) -> dict[str, int]:
    """Return `layer_split`, having made sure that the right processes hold the layers.

    Raises:
        PeerError: a split peer keeps layers or the head in the server, or leaves a node idle.
    """
    split = layer_split(log)
    offloaded = _OFFLOADED.search(log)
    remote = [device for device in split if device.startswith("RPC")]
    if nodes == 1 and not remote:
        return split
    if len(remote) != nodes or len(split) != nodes or offloaded is None:
        raise PeerError(f"llama-server put the layers on {split}, expected {nodes} RPC servers")
    if offloaded[1] != offloaded[2]:
        raise PeerError(f"llama-server kept layers: {offloaded[0]}")
    return split
