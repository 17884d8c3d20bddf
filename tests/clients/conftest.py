"""Each suite runs in an environment of its own (`make test-clients`), which reads no conftest."""

collect_ignore_glob = ["suite_*.py"]
