import pytest

from meshnet.cli.machine import is_loopback, url_here


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
