"""The `meshnet` command as a process: how every failure is told.

    exit 0     done
    exit 1     it cannot be done: a red line says what, and what to do; `--debug` adds the traceback
    exit 2     wrong usage
    exit 130   Ctrl-C

Invariant: nothing slow is imported before Ctrl-C is taken care of.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from meshnet.cli.interrupts import end_at_once
from meshnet.cli.streams import mend_standard_streams
from meshnet.core.vocabulary import MeshnetError

NO_MEMORY = ("Cannot allocate memory", "can't allocate memory", "can't start new thread")
"""Words of the C library, of torch, of threads."""
OUT_OF_MEMORY = (
    "error: out of memory. End other programs on this machine, or give it fewer layers, fewer "
    "nodes, or smaller weights (int8)\n"
)


def main() -> None:
    """Run the command line and exit."""
    end_at_once()
    mend_standard_streams()
    arguments = sys.argv[1:]
    if (place := _not_text(arguments)) is not None:
        _tell(f"argument {place} is not UTF-8", status=2)
    debug = "--debug" in arguments
    # The last collection of a process that loaded torch takes seconds and frees nothing we need.
    atexit.register(gc.freeze)
    try:
        _run([word for word in arguments if word != "--debug"])
    except MeshnetError as error:
        if debug:
            raise
        _tell(str(error))
    except BrokenPipeError:
        # The reader of our output is gone (`| head`): not worth a word.
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        # The process boundary: what is wrong is told in one line, not dumped on the user.
        if debug:
            raise
        if _lacks_memory(error):
            sys.stderr.write(OUT_OF_MEMORY)  # not by a library that needs some
            sys.exit(1)
        if isinstance(error, OSError):
            # What the machine refuses (a full disk, too many open files) is no bug of ours.
            _drop_output()
            _tell(": ".join(filter(None, (error.filename, error.strerror))) or str(error))
        _tell(
            f"{type(error).__name__}: {error}\n"
            "This is a bug in meshnet. Run the command again with --debug to see where."
        )


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether memory was lacking, be it told by Python, the loader of a library or an allocator."""
    while error is not None:
        if isinstance(error, MemoryError) or any(word in str(error) for word in NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _run(arguments: list[str]) -> None:
    from meshnet.cli.app import build_app

    # Named, since shells complete `meshnet`, however it was started.
    build_app()(arguments, prog_name="meshnet")


def _not_text(arguments: Sequence[str]) -> int | None:
    """The place of the first argument that is not UTF-8: it could be neither sent nor shown."""
    for place, word in enumerate(arguments, start=1):
        try:
            word.encode()
        except UnicodeEncodeError:
            return place
    return None


def _drop_output() -> None:
    """Forget what could not be written, or the interpreter fails on it again as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _tell(message: str, *, status: int = 1) -> NoReturn:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    sys.exit(status)
