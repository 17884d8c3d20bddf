"""Requests to `/forward` that are right but for one fault, drawn from a seeded generator."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.wire.echoing import post

HIDDEN = 64
MODEL_HEADER = "X-Meshnet-Model"


@dataclass(frozen=True)
class Garbage:
    """Raw bytes of one request; `end`: the sender closes its side after them."""

    fault: str
    request: bytes
    end: bool = False
    breaks_http: bool = False


def activation(length: int) -> bytes:
    """`length` rows of small finite numbers, fp32."""
    row = struct.pack(f"<{HIDDEN}f", *(index / HIDDEN for index in range(HIDDEN)))
    return row * length


def good(model: str) -> dict[str, str]:
    """Headers of a prefill of three positions, as the tail of the tiny model takes it."""
    return {
        "X-Meshnet-Session": "garbage",
        "X-Meshnet-Cache": "prefill",
        "X-Meshnet-Shape": f"1,3,{HIDDEN}",
        "X-Meshnet-Dtype": "fp32",
        "X-Meshnet-Wire": "1",
        MODEL_HEADER: model,
    }


def garbage(drawn: random.Random, model: str) -> Garbage:
    """One request with one fault, whichever node it goes to."""
    fault = drawn.choice(FAULTS)
    return fault(drawn, good(model) | {"X-Meshnet-Session": f"g{drawn.randrange(10**9)}"})


Fault = Callable[[random.Random, dict[str, str]], Garbage]


def _text(drawn: random.Random, most: int) -> str:
    return "".join(chr(drawn.randrange(33, 126)) for _ in range(drawn.randrange(1, most)))


def _header(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    name = drawn.choice(
        ["Shape", "Dtype", "Layers", "Attempt", "Prefix", "Wire", "Deadline-Ms", "Meta", "Cache"]
    )
    value = "!" + _text(drawn, 60)
    return Garbage(name, post(headers | {f"X-Meshnet-{name}": value}, activation(3)))


def _shape(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    sizes = [drawn.choice([0, 1, 2, 3, 63, 65, 4096, 10**8, 10**12]) for _ in range(3)]
    shape = ",".join(map(str, sizes))
    return Garbage("shape", post(headers | {"X-Meshnet-Shape": shape}, activation(3)))


def _past(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    past = str(drawn.choice([-1, -(10**9), 2**31, 2**63, 1.5, "0x10", "1e3", " 7 x", "NaN"]))
    more = {"X-Meshnet-Cache": "decode", "X-Meshnet-Past-Len": past}
    return Garbage("past length", post(headers | more, activation(3)))


def _unknown_decode(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    more = {"X-Meshnet-Cache": "decode", "X-Meshnet-Past-Len": str(drawn.randrange(1, 400))}
    return Garbage("a decode of no session", post(headers | more, activation(3)))


def _length(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    body = drawn.randbytes(drawn.choice([0, 1, 767, 769, 4096, 100_000]))
    return Garbage("length", post(headers, body))


def _meta(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    meta = drawn.choice(
        [
            drawn.randbytes(drawn.randrange(1, 200)),
            b"[" * drawn.randrange(2, 5000),
            b'{"tokens":[%d]}' % drawn.randrange(2**31, 2**70),
            b'{"tokens":[1,2,3],"tokens":[1,2,3]}',
            b'{"tokens":[1,2,%d]}' % drawn.randrange(512, 2**31),
            b'{"sampling":{"temperature":-%d}}' % drawn.randrange(1, 99),
            b'{"sampling":{"top_k":"%d"}}' % drawn.randrange(99),
            b'{"tensors":[{"name":"hidden","dtype":"fp32","shape":[1,3,64]}]}',
            b'{"want_token":%d}' % drawn.randrange(2, 9),
        ]
    )
    return Garbage("meta", post(headers | {"X-Meshnet-Meta": str(len(meta))}, meta + activation(3)))


def _ids(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    """To the first node too few, to the second no activation."""
    meta = b'{"tokens":[%d]}' % drawn.randrange(512, 2**31)
    bare = {k: v for k, v in headers.items() if k not in ("X-Meshnet-Shape", "X-Meshnet-Dtype")}
    return Garbage("ids", post(bare | {"X-Meshnet-Meta": str(len(meta))}, meta))


def _session(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    session = drawn.choice(["", "..", "a/b", "a b", "%2e%2e", "s" * 129, "é"]) + "!"
    return Garbage("session", post(headers | {"X-Meshnet-Session": session}, activation(3)))


def _model(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    model = drawn.choice(["x" + _text(drawn, 300), f"org/model-{drawn.randrange(10**6)}", "%ff"])
    return Garbage("model", post(headers | {MODEL_HEADER: model}, activation(3)))


def _large(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    length = drawn.choice([256 * 2**20 + 1, 10 * 2**30, 2**62])
    return Garbage("large", post(headers, b"", length=length))


def _long_header(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    value = "x" * drawn.randrange(4100, 60_000)
    return Garbage("long header", post(headers | {"X-Meshnet-New": value}, activation(3)))


def _not_finite(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    """The head's node takes no activation at all, the tail's draws no token from NaN."""
    value = drawn.choice([float("nan"), float("inf"), float("-inf")])
    body = struct.pack("<f", value) + activation(3)[4:-4] + struct.pack("<f", value)
    return Garbage("not finite", post(headers, body))


def _half(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    body = activation(3)[: drawn.randrange(768)]
    request = post(headers, body, length=768)
    return Garbage("half a body", request, end=True, breaks_http=True)


def _noise(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    request = drawn.randbytes(drawn.randrange(1, 400)) + b"\r\n\r\n"
    return Garbage("noise", request, end=True, breaks_http=True)


def _chunks(drawn: random.Random, headers: dict[str, str]) -> Garbage:
    head = b"POST /forward HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return Garbage("chunks", head + b"!" + drawn.randbytes(50), end=True, breaks_http=True)


FAULTS: tuple[Fault, ...] = (
    _header, _shape, _past, _unknown_decode, _length, _meta, _ids, _session, _model, _large,
    _long_header, _not_finite, _half, _noise, _chunks,
)  # fmt: skip
