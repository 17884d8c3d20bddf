"""What users, shells and full disks do to a command: it tells them, and never blames itself."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import command, unset


def shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash in which `meshnet` is this checkout's."""
    program = f'meshnet() {{ {shlex.quote(sys.executable)} -m meshnet "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-c", program],
        capture_output=True,
        cwd=cwd,
        env={
            **unset(),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "MESHNET_CACHE_DIR": str(cwd / "cache"),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_mesh_runs_with_its_standard_streams_closed(
    closed: str, tiny_model_dir: Path, tmp_path: Path
):
    """Descriptors 0 to 2 would go to pipes of node processes, which uvloop aborts on."""
    told = shell(f"meshnet run hi -m {tiny_model_dir} --max-tokens 2 {closed}", tmp_path)

    assert told.returncode == 0, told.stderr


def test_a_chat_without_input_ends(tmp_path: Path):
    told = shell("meshnet chat --url http://127.0.0.1:1 <&-", tmp_path)

    assert (told.returncode, told.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_output_that_cannot_be_written_is_no_bug_of_ours(tiny_model_dir: Path, tmp_path: Path):
    told = shell(f"meshnet pull -m {tiny_model_dir} >/dev/full", tmp_path)

    assert told.returncode == 1
    assert told.stderr == b"error: No space left on device\n"


def test_a_cache_directory_that_cannot_be_made_is_named(tiny_model_dir: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")

    told = command(
        "run", "hi", "-m", str(tiny_model_dir), "--set", f"cache_dir={tmp_path}/file", cwd=tmp_path
    )

    assert told.returncode == 1
    assert told.stderr == (
        f"error: {tmp_path}/file/logs: cannot keep the logs of the nodes: Not a directory. "
        "Choose another cache_dir (MESHNET_CACHE_DIR).\n"
    )


def test_words_that_are_no_text_are_refused(tmp_path: Path):
    told = shell("meshnet run $'bad \\xff'", tmp_path)

    assert told.returncode == 2
    assert told.stderr == b"error: argument 2 is not UTF-8\n"


def test_input_that_is_no_text_is_read_as_far_as_it_is(tmp_path: Path):
    told = shell("printf 'a\\xff\\n' | meshnet chat --url http://127.0.0.1:1", tmp_path)

    assert told.returncode == 1
    assert told.stderr.startswith(b"error: nothing answers at http://127.0.0.1:1.")


@pytest.mark.parametrize("form", ["", "--json"])
def test_an_ascii_terminal_is_no_reason_to_fail(form: str, tiny_model_dir: Path, tmp_path: Path):
    line = f"meshnet run 'zähl 你' -m {tiny_model_dir} --max-tokens 30 {form}"

    told = shell(line, tmp_path, PYTHONIOENCODING="ascii")

    assert told.returncode == 0, told.stderr
    assert told.stdout.isascii()


def test_ctrl_c_ends_a_command_that_is_still_being_imported(tmp_path: Path):
    """Raised inside an import, KeyboardInterrupt is a traceback, or swallowed by importlib."""
    program = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # even where the suite has it ignored
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["meshnet", "status"]
from meshnet.cli.main import main
main()
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=tmp_path, check=False,
        env={**unset(), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip

    assert (told.returncode, told.stderr) == (-signal.SIGINT, b"")


NO_MEMORY = {
    "python": "MemoryError()",
    "a library that is loaded": "ImportError('libc.so.6: cannot map: Cannot allocate memory')",
    "torch": "RuntimeError('DefaultCPUAllocator: can\\'t allocate memory')",
    "the system": "OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))",
}


@pytest.mark.parametrize("error", NO_MEMORY.values(), ids=NO_MEMORY)
def test_a_machine_without_memory_is_no_bug_of_ours(error: str, tmp_path: Path):
    program = f"""
import errno, os, sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise {error}
sys.meta_path.insert(0, Lacking())
sys.argv = ["meshnet", "status"]
from meshnet.cli.main import main
main()
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=tmp_path, check=False,
        env={**unset(), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip

    assert told.returncode == 1
    assert told.stderr.startswith(b"error: out of memory. End other programs")
    assert told.stderr.count(b"\n") == 1


def test_a_taken_port_is_told_before_a_gateway_loads_anything(tmp_path: Path):
    line = 'meshnet serve --node http://127.0.0.1:1 --model no-such-model --port "$PORT"'

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        told = shell(line, tmp_path, PORT=str(other.getsockname()[1]))

    assert told.returncode == 1
    assert b"Choose another --port" in told.stderr
    assert b"no such model" not in told.stderr


def test_a_prompt_beyond_the_context_is_told_in_its_own_words(tiny_model_dir: Path, tmp_path: Path):
    told = command("run", "word " * 600, "--model", str(tiny_model_dir), "--json", cwd=tmp_path)

    assert told.returncode == 1
    assert re.fullmatch(
        r"error: PROMPT: \d+ tokens, and the context of the model holds 512, .*\n", told.stderr
    )


def test_a_model_that_is_none_is_named_before_the_layers_that_are_missing(tmp_path: Path):
    told = command("node", "--model", "/nope", cwd=tmp_path)

    assert told.returncode == 1
    assert told.stderr.startswith("error: /nope: no such model.")
