"""Which registries a user may name, and which etcd is nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from meshnet.cli.options import settings_from
from meshnet.cli.registries import EtcdPlace, check_registry, reachable, registry_place
from meshnet.cli.settings import Settings, SettingsError

HERE = "etcd://127.0.0.1:2379"
SECURE = "etcds://10.0.0.1:2379,10.0.0.2:2379"


def test_an_etcd_has_members_and_a_prefix_and_a_gateway_is_a_url():
    assert registry_place("http://a:8000/", "--join") == "http://a:8000"
    assert registry_place(HERE, "--join") == EtcdPlace(("http://127.0.0.1:2379",), "meshnet")
    assert registry_place(f"{SECURE}/team/one", "--join") == EtcdPlace(
        ("https://10.0.0.1:2379", "https://10.0.0.2:2379"), "team/one"
    )
    assert reachable(registry_place(SECURE, "--join")) == "https://10.0.0.1:2379"


@pytest.mark.parametrize(
    "url",
    [
        "etcd://", "etcd://a", "etcd://a:2379,", "etcd://a:2379,b", "etcd://me:secret@a:2379",
        "etcd://a:x", "etcd://a:2379/p?q", "etcd://" + ",".join(["a:1"] * 17),
    ],
)  # fmt: skip
def test_what_is_no_etcd_is_told_by_its_flag(url: str):
    with pytest.raises(SettingsError, match="--registry: expected etcd://HOST:PORT"):
        registry_place(url, "--registry")


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("etcd://10.0.0.1:2379", Settings(etcd_user="me", etcd_password="x")),
        ("etcd://127.0.0.1:2379,10.0.0.1:2379", Settings()),
        (SECURE, Settings()),
    ],
)
def test_an_etcd_beyond_loopback_needs_tls_and_somebody_it_knows(url: str, settings: Settings):
    with pytest.raises(SettingsError, match=r"beyond loopback .*expected etcds://"):
        check_registry(settings, registry_place(url, "--registry"))


def test_an_etcd_here_or_one_that_knows_its_user_will_do():
    known = Settings(etcd_user="me", etcd_password="x")

    check_registry(Settings(), registry_place(HERE, "--registry"))
    check_registry(known, registry_place(SECURE, "--registry"))


def test_a_user_without_a_password_and_a_file_that_is_none_are_told(tmp_path: Path):
    with pytest.raises(SettingsError, match="MESHNET_ETCD_PASSWORD"):
        check_registry(Settings(etcd_user="me"), registry_place(HERE, "--registry"))
    missing = Settings(etcd_ca_file=tmp_path / "nowhere.pem")
    with pytest.raises(SettingsError, match=r"nowhere\.pem"):
        check_registry(missing, registry_place("etcds://localhost:2379", "--registry"))


def test_the_password_is_not_taken_from_the_command_line():
    with pytest.raises(typer.BadParameter, match="MESHNET_ETCD_PASSWORD"):
        settings_from({}, None, ["etcd_password=secret"])
