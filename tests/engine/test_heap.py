"""Memory that was freed is the system's again, and so are pages of a file that was read."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from meshnet.engine.heap import BLOCK_BYTES, blocks

# Many small pieces, every second one freed: the C library keeps the pages between what stays.
SCRIPT = """
import ctypes, json, psutil
from meshnet.engine.heap import give_back
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
pieces = [library.malloc(65536) for _ in range(2048)]
for piece in pieces:
    library.memset(piece, 1, 65536)
for piece in pieces[::2]:
    library.free(piece)
resident = lambda: psutil.Process().memory_info().rss
before = resident()
give_back()
print(json.dumps(before - resident()))
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library cannot be asked"
)
def test_what_lies_between_pieces_in_use_is_given_back_too():
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )

    assert json.loads(told.stdout) > 32 * 2**20


def _matrix() -> Tensor:
    return torch.randn((1000, 8192), generator=torch.Generator().manual_seed(0))


def _resident(tensor: Tensor) -> int:
    """Bytes of the tensor's mapping that are in this process's memory."""
    mapping = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    inside = False
    for line in mapping:
        span = line.split()[0]
        if "-" in span and not span.endswith(":"):
            first, last = (int(at, 16) for at in span.split("-"))
            inside = first <= tensor.data_ptr() < last
        elif inside and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the tensor lies in no mapping")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_that_was_read_in_blocks_does_not_stay_in_memory(tmp_path: Path):
    save_file({"matrix": _matrix()}, tmp_path / "file")
    with safe_open(tmp_path / "file", "pt") as file:
        mapped = file.get_tensor("matrix")
        total = sum(float(block.sum()) for block in blocks(mapped))

        assert _resident(mapped) < 2 * BLOCK_BYTES
        assert torch.equal(mapped, _matrix())
        assert total == pytest.approx(float(_matrix().sum()), rel=1e-3)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_blocks_make_up_a_tensor_of_no_file_which_stays_what_it_was(rows: int):
    matrix = _matrix()[:rows]

    read = torch.cat([block.clone() for block in blocks(matrix)])

    assert torch.equal(read, _matrix()[:rows])
    assert torch.equal(matrix, _matrix()[:rows])
