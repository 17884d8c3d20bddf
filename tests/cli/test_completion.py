"""What a shell completes after `meshnet --install-completion`, in a home of its own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.documented import Shell

COMPLETED = """
source ~/.bash_completions/meshnet.sh
COMP_WORDS=(meshnet {words}); COMP_CWORD={at}
_meshnet_completion meshnet
echo "${{COMPREPLY[@]}}"
"""


def test_bash_completes_commands_and_options_once_it_is_installed(tmp_path: Path):
    with ExitStack() as stack:
        shell = Shell(tmp_path, stack, {})
        # Which shell runs a test is chance: it is named instead of found out.
        shell.environment |= {
            "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"
        }  # fmt: skip
        shell.run("meshnet --install-completion bash")

        commands = shell.run(COMPLETED.format(words="st", at=1))
        options = shell.run(COMPLETED.format(words="plan --cont", at=2))

    assert commands.split() == ["status"]
    assert options.split() == ["--context"]
