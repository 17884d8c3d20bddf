"""A Chromium for the tests of the page: the machine's, else Playwright's, else the distribution's.

python -m tools.browser        fetch one where there is none
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FETCH_S = 300.0


def executable() -> str | None:
    """Return the browser of this machine; None: the one that Playwright fetched, if any."""
    found = (shutil.which(name) for name in NAMES)
    return os.environ.get("MESHNET_BROWSER") or next(filter(None, found), None)


def main() -> None:
    """Exit with 1 where none can be had."""
    if executable() is not None:
        return
    fetch = (sys.executable, "-m", "playwright", "install", "--only-shell", "chromium")
    if _runs(*fetch):
        return
    if shutil.which("apt-get") and _runs("apt-get", "install", "--yes", "-qq", "chromium"):
        return
    print(
        "no browser: install chromium, or name one: MESHNET_BROWSER=/path/to/chromium",
        file=sys.stderr,
    )
    sys.exit(1)


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, timeout=FETCH_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


if __name__ == "__main__":
    main()
