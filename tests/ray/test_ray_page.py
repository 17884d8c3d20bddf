"""Every command of docs/ray.md, as it stands there, on one machine that plays three."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
from tests.cluster.api import until
from tests.cluster.joining import free_port
from tests.cluster.test_etcd_page import shell

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "ray.md"


def blocks() -> list[str]:
    """The commands of each block of the page."""
    found = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in found]


@contextmanager
def all_ended(home: Path) -> Iterator[None]:
    """End what was started with that home; `ray stop` would end every Ray of this machine."""
    try:
        yield
    finally:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HOME") == str(home):
                    process.kill()


@pytest.mark.ray
@pytest.mark.timeout(600)
async def test_the_commands_of_the_page_make_a_mesh_that_answers_and_is_upgraded(
    tiny_model_dir: Path, tmp_path: Path
):
    token, head, worker, mesh, drain = blocks()
    changes = {port: str(free_port()) for port in ("6379", "8000")}
    url = f"http://127.0.0.1:{changes['8000']}"
    with all_ended(tmp_path), shell(tmp_path, changes) as page:
        page.environment |= {
            "HOME": str(tmp_path), "MESHNET_MODEL": str(tiny_model_dir), "MESHNET_MEASURE": "false",
            "MESHNET_CACHE_DIR": str(tmp_path / "cache"), "MESHNET_STATE_DIR": str(tmp_path),
            "MESHNET_PORT": changes["8000"], "MESHNET_WEIGHTS": "fp32", "MESHNET_THREADS": "1",
            "MESHNET_SETTLE_SECONDS": "1",
            "PATH": f"{Path(sys.executable).parent}:{page.environment['PATH']}",
        }  # fmt: skip

        def pids() -> set[int]:
            with suppress(httpx2.HTTPError):
                told = httpx2.get(f"{url}/mesh", timeout=30).json()
                return {node["pid"] for node in told["nodes"]} if told["ready"] else set()
            return set()

        page.run(token)
        page.run(head + worker + worker)
        page.environment["RAY_AUTH_MODE"] = "token"
        up, status = mesh.splitlines()
        page.start(up)
        await until(lambda: len(pids()) == 2, "two nodes serve", deadline_s=240)
        before = pids()
        node = urlsplit(httpx2.get(f"{url}/mesh", timeout=30).json()["nodes"][0]["url"]).netloc
        shown = page.run(status)
        changes["10.0.0.2:9001"] = node
        page.run(drain)
        await until(lambda: len(pids() - before) == 1, "a new process serves", deadline_s=240)

        assert shown.count("ready") >= 2
        assert (tmp_path / ".ray" / "auth_token").exists()
