"""How many compute threads each node of one machine gets, and how they wait.

Without this every process starts a team as large as the machine and its threads spin at each
other's barriers: measured on 2 cores, a decode step takes hundreds of times longer.
"""

from __future__ import annotations


def threads_each(*, cores: int, nodes: int) -> int:
    """Return the compute threads of one of `nodes` processes that share `cores`."""
    return max(1, cores // max(1, nodes))


def thread_environment(*, cores: int, nodes: int, threads: int | None = None) -> dict[str, str]:
    """Return the variables OpenMP and MKL read before torch is imported."""
    each = threads if threads is not None else threads_each(cores=cores, nodes=nodes)
    environment = {"OMP_NUM_THREADS": str(each), "MKL_NUM_THREADS": str(each)}
    if each * nodes >= cores:
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
    return environment
