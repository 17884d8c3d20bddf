import re

import pytest

from meshnet.cli.machine import is_loopback, machine_id, url_here


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("fe80::1", "http://[fe80::1]:8000"),
        ("node.example", "http://node.example:8000"),
    ],
)
def test_a_listener_is_reached_by_an_address_of_this_machine(host: str, url: str):
    assert url_here(host, 8000) == url


def test_only_addresses_of_this_machine_are_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "127.example.org", "")))


def test_a_machine_is_known_by_a_digest_that_lasts_and_tells_nothing():
    known = machine_id()

    assert known == machine_id()
    assert re.fullmatch("[0-9a-f]{16}", known)
