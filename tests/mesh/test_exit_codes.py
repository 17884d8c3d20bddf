"""How a child ended is told as it was, however the news of its end and our signal cross."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress

from meshnet.mesh.launcher import _stop


async def test_stopping_a_process_that_has_just_ended_keeps_its_exit_code():
    """`Process.terminate` polls first and so takes the code away from asyncio's watcher."""
    codes = []
    for _ in range(20):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", "import os; os._exit(7)", stdin=PIPE
        )
        # Holding the loop is the point: its watcher may know of the end, this task cannot.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222

        await _stop(process, 5.0)
        codes.append(process.returncode)

    assert codes == [7] * 20
