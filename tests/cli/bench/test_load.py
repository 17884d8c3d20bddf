"""Other load, on this machine: only what must hold whatever it does meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from meshnet.cli.bench.load import LoadProbe, core_numbers, family

BURN = """
import sys, time
sys.stdin.readline()
while time.process_time() < 0.5: pass
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def burner() -> Iterator[subprocess.Popen[str]]:
    """A process that uses half a second of CPU time when it is told to."""
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=-1, stdout=-1, text=True) as child:
        yield child
        assert child.stdin is not None
        child.stdin.close()


def burn(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"


def test_a_process_is_other_load_unless_it_is_measured():
    with burner() as child:
        knowing, unknowing = LoadProbe([child.pid]), LoadProbe([])

        burn(child)

        assert unknowing.other_cores() > knowing.other_cores()
        assert unknowing.other_cores() > 0.0


def test_children_belong_to_a_measured_process():
    with burner() as child:
        assert child.pid in family(os.getpid())
        burn(child)

    assert family(child.pid) == set()


def test_only_cores_of_this_process_count():
    assert core_numbers(1024) == sorted(os.sched_getaffinity(0))
    assert core_numbers(0) == []
