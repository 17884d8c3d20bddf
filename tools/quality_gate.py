"""How far each 8-bit weight format is from fp32, and whether it is as good as llama.cpp's q8_0.

    python -m tools.quality_gate [--model smollm2-135m] [--windows 9] [--out DIR]

The text is documentation of Python's standard library, in windows of 512 tokens, each predicted
from its own beginning. Every format runs transformers' own forward, so that only the linear layers
differ. `q8_0` is an emulation of ggml's: weights and activations in blocks of 32 with fp16 scales;
its embedding stays in fp32, as ours does. Exits 1 if `int8` misses the gate: a mean KL divergence
to fp32 of at most 1.5 times that of q8_0, and top-1 agreement of at least its less 0.02.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from meshnet.cli.bench.results import provenance, result_path, write_result
from meshnet.cli.models import resolve_model
from meshnet.cli.settings import load_settings
from meshnet.engine.linear import Int8Linear
from meshnet.engine.linear_choice import LinearChoice
from meshnet.engine.quantising import Quantiser

WINDOW = 512
BLOCK = 32
KL_RATIO_MAX = 1.5
TOP1_LOSS_MAX = 0.02
MODULES = (
    "argparse", "ast", "asyncio", "bisect", "calendar", "codecs", "collections", "contextlib",
    "copy", "csv", "datetime", "decimal", "difflib", "doctest", "email", "fractions", "functools",
    "heapq", "inspect", "ipaddress", "json", "locale", "logging", "mimetypes", "optparse", "os",
    "pathlib", "pickle", "pprint", "random", "shlex", "shutil", "smtplib", "socketserver",
    "statistics", "string", "subprocess", "tempfile", "textwrap", "threading", "tokenize", "turtle",
    "typing", "unittest", "urllib.request", "uuid", "warnings", "weakref", "zipfile",
)  # fmt: skip


@dataclass
class Distance:
    """Sums over the predicted positions of how one format differs from fp32."""

    positions: int = 0
    kl: float = 0.0
    top1: int = 0
    kl_max: float = 0.0

    def add(self, reference_TV: Tensor, logits_TV: Tensor) -> None:
        expected, got = reference_TV.log_softmax(-1), logits_TV.log_softmax(-1)
        kl_T = (expected.exp() * (expected - got)).sum(-1).double()
        self.positions += len(kl_T)
        self.kl += float(kl_T.sum())
        self.kl_max = max(self.kl_max, float(kl_T.max()))
        self.top1 += int((expected.argmax(-1) == got.argmax(-1)).sum())

    def told(self) -> dict[str, float | int]:
        return {
            "positions": self.positions,
            "kl_mean": round(self.kl / self.positions, 6),
            "kl_max": round(self.kl_max, 4),
            "top1_agreement": round(self.top1 / self.positions, 4),
        }


class Q8Linear(nn.Module):
    """ggml's q8_0 times q8_0: whole numbers in blocks of 32 inputs, each block with its scale."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(in_blocks(linear.weight.data), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(in_blocks(x), self.weight, self.bias)


def in_blocks(values: Tensor) -> Tensor:
    """Round the last axis to q8_0: the scale is used in fp32 and kept in fp16."""
    blocks = values.reshape(*values.shape[:-1], -1, BLOCK)
    scales = blocks.abs().amax(-1, keepdim=True) / 127
    levels = torch.where(scales > 0, blocks / scales, 0.0)
    # ggml rounds halves away from zero.
    whole = levels.abs().add(0.5).floor().copysign(levels)
    rounded: Tensor = whole * scales.half().float()
    return rounded.flatten(-2)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--windows", type=int, default=9, help="of 512 tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers_logging.disable_progress_bar()
    source = resolve_model(arguments.model, load_settings({}))
    windows = list(text_windows(source.path, arguments.windows))
    distances = measure(source.path, windows)
    result = provenance(source.name, "fp32") | {
        "command": " ".join(["python -m tools.quality_gate", *sys.argv[1:]])
    }
    result |= report(distances) | {"text_sha256": digest(windows), "window_tokens": WINDOW}
    print(json.dumps(result, indent=2))
    write_result(result_path(arguments.out, source.name, "quality"), result)
    return 0 if result["gate"]["int8"]["passes"] else 1


def report(distances: dict[str, Distance]) -> dict[str, Any]:
    """Return the distances and, for our formats, whether they pass."""
    told = {name: distance.told() for name, distance in distances.items()}
    gate = {}
    for name in ("int8", "int8-fast"):
        ratio = distances[name].kl / distances["q8_0"].kl
        loss = told["q8_0"]["top1_agreement"] - told[name]["top1_agreement"]
        gate[name] = {
            "kl_ratio": round(ratio, 3),
            "top1_loss": round(loss, 4),
            "passes": ratio <= KL_RATIO_MAX and loss <= TOP1_LOSS_MAX,
        }
    return {
        "bounds": {"kl_ratio_max": KL_RATIO_MAX, "top1_loss_max": TOP1_LOSS_MAX},
        "formats": told,
        "gate": gate,
    }


@torch.inference_mode()
def measure(path: Path, windows: list[Tensor]) -> dict[str, Distance]:
    """Run every window through every format."""
    reference, blocks, int8 = (_loaded(path) for _ in range(3))
    _replace_linears(blocks, Q8Linear)
    Quantiser(LinearChoice(2)).convert(int8)
    distances = {name: Distance() for name in ("int8", "int8-fast", "q8_0")}
    for number, window in enumerate(windows):
        expected = reference(window).logits[0, :-1]
        distances["q8_0"].add(expected, blocks(window).logits[0, :-1])
        for name, rows in (("int8", 2), ("int8-fast", 1)):
            for module in int8.modules():
                if isinstance(module, Int8Linear):
                    module.rows = rows
            distances[name].add(expected, int8(window).logits[0, :-1])
        print(f"window {number + 1} of {len(windows)}", file=sys.stderr, flush=True)
    return distances


def _loaded(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def _replace_linears(root: nn.Module, made_of: Callable[[nn.Linear], nn.Module]) -> None:
    for name, child in list(root.named_children()):
        if isinstance(child, nn.Linear):
            setattr(root, name, made_of(child))
        else:
            _replace_linears(child, made_of)


def text_windows(path: Path, count: int) -> Iterator[Tensor]:
    """Cut documentation of the standard library into `count` windows of token ids."""
    ids = AutoTokenizer.from_pretrained(path)("\n\n".join(documentation()))["input_ids"]
    if len(ids) < count * WINDOW:
        raise SystemExit(f"the text has {len(ids)} tokens, {count} windows need {count * WINDOW}")
    # Spread over the whole text, so that no module's style decides.
    stride = (len(ids) - WINDOW) // max(1, count - 1)
    for number in range(count):
        yield torch.tensor([ids[number * stride : number * stride + WINDOW]])


def documentation() -> Iterator[str]:
    for name in MODULES:
        module = importlib.import_module(name)
        for _, member in [("", module), *sorted(vars(module).items())]:
            own = inspect.ismodule(member) or getattr(member, "__module__", None) == name
            text = member.__doc__ if own and inspect.getdoc(member) else None
            if isinstance(text, str) and len(text) > 300:
                yield inspect.cleandoc(text)


def digest(windows: list[Tensor]) -> str:
    return hashlib.sha256(torch.cat(windows).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
