"""Memory that was freed is the system's again."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import pytest

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
