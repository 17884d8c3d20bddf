"""The launcher against real processes: a tiny child program that plays a node."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from meshnet.mesh.childlog import ChildLog
from meshnet.mesh.launcher import ChildFailed, ChildSpec, LocalLauncher
from meshnet.mesh.restart import RestartPolicy
from meshnet.telemetry.events import ChildDied, ChildStarted, Event

QUICK = RestartPolicy(delay_min_s=0.0, delay_max_s=0.0, failures_max=2, stop_timeout_s=5.0)

GOOD = """
    import json, os, signal, socket, sys
    from meshnet.mesh.parent import end_with_parent
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    end_with_parent(grace_s=0.0)
    print("a line that is not the ready line")
    url = "http://127.0.0.1:%d" % listener.getsockname()[1]
    print(json.dumps({"event": "ready", "url": url, "pid": os.getpid()}), flush=True)
    while True:
        listener.accept()[0].close()
"""
BROKEN = """
    import sys
    print("the weights are missing", file=sys.stderr)
    sys.exit(7)
"""
DEAF = """
    import json, signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps({"event": "ready", "url": "http://127.0.0.1:1", "pid": 0}), flush=True)
    while True:
        signal.pause()
"""


def spec(program: str, name: str = "node-1") -> ChildSpec:
    def command(port: int) -> Sequence[str]:
        return (sys.executable, "-c", textwrap.dedent(program), str(port))

    return ChildSpec(name, command, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


class Seen:
    """The events so far, and a way to wait for the next of a kind."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()

    def record(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()

    async def started(self, lives: int) -> None:
        while sum(isinstance(event, ChildStarted) for event in self.events) < lives:
            self._more.clear()
            await self._more.wait()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_killed_child_comes_back_at_the_same_url(tmp_path: Path):
    seen = Seen()
    launcher = LocalLauncher([spec(GOOD)], log_dir=tmp_path, record=seen.record, policy=QUICK)

    async with launcher.running():
        await launcher.ready()
        (child,) = launcher.children
        first = (child.url, child.pid)
        os.kill(child.pid, signal.SIGKILL)
        await seen.started(lives=2)
        second = (child.url, child.pid)

    assert second[0] == first[0]
    assert second[1] != first[1]
    died = [event for event in seen.events if isinstance(event, ChildDied)]
    assert [event.exit_code for event in died] == [-signal.SIGKILL]


async def test_a_child_that_cannot_be_started_is_one_that_failed(tmp_path: Path):
    """A machine without memory for another process may have it a moment later."""
    absent = ChildSpec("node-1", lambda port: (str(tmp_path / "absent"),), {})
    launcher = LocalLauncher([absent], log_dir=tmp_path, record=Seen().record, policy=QUICK)

    with pytest.raises(ChildFailed, match=r"node-1 did not get ready in 2 starts[^$]*absent"):
        async with launcher.running():
            await launcher.ready()


async def test_leaving_the_block_ends_every_child(tmp_path: Path):
    specs = [spec(GOOD, "node-1"), spec(GOOD, "node-2")]
    launcher = LocalLauncher(specs, log_dir=tmp_path, record=Seen().record, policy=QUICK)

    async with launcher.running():
        await launcher.ready()
        pids = [child.pid for child in launcher.children]
        assert all(alive(pid) for pid in pids)

    assert not any(alive(pid) for pid in pids)


async def test_a_child_that_ignores_the_request_to_stop_is_killed(tmp_path: Path):
    policy = RestartPolicy(stop_timeout_s=0.05)
    launcher = LocalLauncher([spec(DEAF)], log_dir=tmp_path, record=Seen().record, policy=policy)

    async with launcher.running():
        await launcher.ready()
        pid = launcher.children[0].pid

    assert not alive(pid)


async def test_a_child_that_cannot_start_fails_with_its_last_words_and_its_log(tmp_path: Path):
    launcher = LocalLauncher([spec(BROKEN)], log_dir=tmp_path, record=Seen().record, policy=QUICK)

    async def start() -> None:
        async with launcher.running():
            await launcher.ready()

    with pytest.raises(ChildFailed) as failed:
        await start()

    assert "the weights are missing" in str(failed.value)
    assert "2 starts (exit code 7)" in str(failed.value)
    assert str(tmp_path / "node-1.log") in str(failed.value)


async def test_an_error_of_the_block_comes_out_as_it_is(tmp_path: Path):
    launcher = LocalLauncher([spec(GOOD)], log_dir=tmp_path, record=Seen().record, policy=QUICK)

    async def divide() -> None:
        async with launcher.running():
            await launcher.ready()
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        await divide()


async def test_children_end_when_the_launching_process_is_killed(tmp_path: Path):
    """No signal reaches the launcher's own code after SIGKILL; the kernel closes the pipe."""
    program = f"""
        import asyncio, sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_launcher import GOOD, QUICK, Seen, spec
        from meshnet.mesh.launcher import LocalLauncher
        async def main():
            launcher = LocalLauncher(
                [spec(GOOD)], log_dir=Path({str(tmp_path)!r}), record=Seen().record, policy=QUICK)
            async with launcher.running():
                await launcher.ready()
                print(launcher.children[0].url, flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(program),
        stdout=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert parent.stdout is not None
    url = (await parent.stdout.readline()).decode().strip()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    await reader.read()
    writer.close()

    parent.kill()
    await parent.wait()

    # The child holds the port until it is gone; the suite's time limit bounds this wait.
    while await _listens(url):
        pass


async def _listens(url: str) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        await reader.read()
    except ConnectionError:
        return False
    writer.close()
    return True


def test_a_child_log_keeps_its_bound_and_its_last_lines(tmp_path: Path):
    log = ChildLog(tmp_path / "node.log", bytes_max=2000)

    for line in range(1000):
        log.write(b"line %d\n" % line)
    log.close()

    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) <= 2000
    assert log.tail(2) == "line 998\nline 999"


def test_a_log_whose_directory_is_gone_still_takes_last_words(tmp_path: Path):
    folder = tmp_path / "run"
    log = ChildLog(folder / "node.log", bytes_max=100)
    (folder / "node.log").unlink()
    folder.rmdir()

    for line in range(20):
        log.write(b"line %d\n" % line)
    log.close()

    assert log.tail(1) == "line 19"
