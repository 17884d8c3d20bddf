"""What llama.cpp is told, and what its log says; the logs here are its own lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.cli.bench.peers_build import PeerError, Programs
from meshnet.cli.bench.peers_setup import (
    PeerSetup,
    check_split,
    completion_body,
    layer_split,
    rpc_server_command,
    server_command,
)

PROGRAMS = Programs(Path("bin/llama-server"), Path("bin/ggml-rpc-server"))
MODEL = Path("model.gguf")

SPLIT = """\
0.00.070.097 I load_tensors: offloaded 23/23 layers to GPU
0.00.070.115 I load_tensors:   CPU_Mapped model buffer size =    66.41 MiB
0.00.070.127 I load_tensors: RPC0[127.0.0.1:50685] model buffer size =   535.69 MiB
0.00.070.138 I load_tensors: RPC0[127.0.0.1:54937] model buffer size =   512.82 MiB
0.01.960.625 I llama_kv_cache: RPC0[127.0.0.1:50685] KV buffer size =    24.00 MiB
0.01.960.795 I llama_kv_cache: RPC0[127.0.0.1:54937] KV buffer size =    20.00 MiB
0.01.965.828 I llama_kv_cache: size =   44.00 MiB (  2048 cells,  22 layers,  1/1 seqs), K (f16)
"""
WHOLE = """\
0.00.056.917 I load_tensors:   CPU_Mapped model buffer size =  1114.91 MiB
0.00.057.552 I llama_kv_cache:        CPU KV buffer size =    44.00 MiB
0.00.076.546 I llama_kv_cache: size =   44.00 MiB (  2048 cells,  22 layers,  1/1 seqs), K (f16)
"""


def value_of(command: list[str], flag: str) -> str:
    assert command.count(flag) == 1
    return command[command.index(flag) + 1]


def test_alone_every_layer_stays_in_the_server() -> None:
    command = server_command(PeerSetup(MODEL, nodes=1, threads=2), PROGRAMS, 5000, [])

    assert value_of(command, "--device") == "none"
    assert value_of(command, "--threads") == "2"
    assert "--rpc" not in command


def test_split_every_layer_goes_to_the_rpc_servers_in_equal_shares() -> None:
    setup = PeerSetup(MODEL, nodes=2, threads=1)

    command = server_command(setup, PROGRAMS, 5000, [5001, 5002])

    assert value_of(command, "--rpc") == "127.0.0.1:5001,127.0.0.1:5002"
    assert value_of(command, "--gpu-layers") == "all"
    assert value_of(command, "--tensor-split") == "1,1"
    assert "--device" not in command
    assert value_of(rpc_server_command(setup, PROGRAMS, 5001), "--threads") == "1"


def test_every_slot_has_the_whole_context() -> None:
    setup = PeerSetup(MODEL, nodes=1, threads=1, sessions=8, context_length=1024)

    command = server_command(setup, PROGRAMS, 5000, [])

    assert value_of(command, "--parallel") == "8"
    assert value_of(command, "--ctx-size") == str(8 * 1024)


@pytest.mark.parametrize("on", [True, False])
def test_flash_attention_is_told_and_named(on: bool) -> None:
    setup = PeerSetup(MODEL, nodes=2, threads=1, flash_attention=on)

    command = server_command(setup, PROGRAMS, 5000, [5001, 5002])

    assert value_of(command, "--flash-attn") == ("on" if on else "off")
    assert ("flash attention off" in str(setup)) is not on


def test_sides_that_differ_have_names_that_differ() -> None:
    first = PeerSetup(MODEL, nodes=2, threads=1)
    changes = [
        {"nodes": 1}, {"threads": 2}, {"flash_attention": False}, {"micro_batch": 128},
        {"weights": "bf16"}, {"repack": False},
    ]  # fmt: skip

    names = {str(first), *(str(replace(first, **change)) for change in changes)}

    assert len(names) == 1 + len(changes)


def test_nothing_is_reused_and_nothing_stops_early() -> None:
    body = completion_body([5, 6], 9)

    assert body["prompt"] == [5, 6]
    assert body["n_predict"] == 9
    assert (body["cache_prompt"], body["ignore_eos"], body["temperature"]) == (False, True, 0)


def test_the_log_tells_the_layers_of_each_device() -> None:
    assert layer_split(WHOLE) == {"CPU": 22}
    assert layer_split(SPLIT) == {"RPC0[127.0.0.1:50685]": 12, "RPC0[127.0.0.1:54937]": 10}
    assert check_split(WHOLE, 1) == layer_split(WHOLE)
    assert check_split(SPLIT, 2) == layer_split(SPLIT)


@pytest.mark.parametrize(
    ("log", "nodes"),
    [
        (WHOLE, 2),
        (SPLIT, 1),
        (SPLIT, 3),
        (SPLIT.replace("23/23", "22/23"), 2),
        (SPLIT.replace("RPC0[127.0.0.1:50685] KV", "CPU KV"), 2),
        (SPLIT.replace("22 layers", "23 layers"), 2),
        ("", 1),
    ],
    ids=["not split", "split", "fewer", "head kept", "layers kept", "unequal layers", "silent"],
)
def test_a_peer_that_lies_otherwise_is_refused(log: str, nodes: int) -> None:
    with pytest.raises(PeerError):
        check_split(log, nodes)
