"""What nodes of a Ray are told, tried without Ray; tests/ray tries the rest."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from meshnet.cli.ray_shard import RayShard, node_environment, unauthenticated
from meshnet.cli.ray_specs import gateway_url, refuse_unreachable, shard_specs
from meshnet.cli.settings import Settings, SettingsError
from meshnet.cli.up import up
from meshnet.core.routing.placement import ModelSize
from meshnet.core.vocabulary import ModelId

SIZE = ModelSize(ModelId("m"), layers_total=5, layer_bytes=100)


def test_nodes_are_told_the_mesh_token_and_no_key_of_the_api():
    settings = Settings.model_validate(
        {"mesh_token": "between us", "api_keys": ["a key"], "port": 1, "threads": 3, "nodes_min": 2}
    )

    told = [spec.environment for spec in shard_specs(settings, SIZE, "http://10.0.0.1:1")]

    assert told == 2 * [{"MESHNET_MESH_TOKEN": "between us", "MESHNET_THREADS": "3"}]


def test_a_bundle_reserves_the_largest_even_share_and_what_the_caches_may_take():
    settings = Settings(nodes_min=2, kv_max_bytes=7, threads=3, device="cuda")

    reserved = [dict(spec.resources) for spec in shard_specs(settings, SIZE, "http://10.0.0.1:1")]

    assert reserved == 2 * [{"CPU": 3.0, "memory": 307.0, "GPU": 1.0}]


@pytest.mark.parametrize(("gateway", "node"), [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "0.0.0.0")])
def test_nodes_listen_beyond_loopback_if_the_gateway_does(gateway: str, node: str):
    (spec,) = shard_specs(Settings(host=gateway, nodes_min=1), SIZE, "http://10.0.0.1:1")

    assert spec.arguments == ("node", "--join", "http://10.0.0.1:1", "--host", node)


def test_nodes_join_where_ray_finds_this_machine_if_the_gateway_listens_everywhere():
    everywhere = Settings(host="0.0.0.0")
    secure = Settings(host="0.0.0.0", tls_dir=Path("certificates"))
    one = Settings(host="10.0.0.2")

    assert gateway_url(everywhere, "http://127.0.0.1:8000", "10.0.0.1") == "http://10.0.0.1:8000"
    assert gateway_url(secure, "https://127.0.0.1:8000", "10.0.0.1") == "https://10.0.0.1:8000"
    assert gateway_url(one, "http://10.0.0.2:8000", "10.0.0.1") == "http://10.0.0.2:8000"


def test_a_gateway_on_loopback_is_refused_where_nodes_would_be_elsewhere():
    refuse_unreachable(Settings(), "10.0.0.1", ["10.0.0.1", "10.0.0.1"])
    refuse_unreachable(Settings(host="10.0.0.1"), "10.0.0.1", ["10.0.0.1", "10.0.0.2"])

    with pytest.raises(SettingsError, match=r"nodes on 10\.0\.0\.2 cannot reach it"):
        refuse_unreachable(Settings(), "10.0.0.1", ["10.0.0.1", "10.0.0.2"])


@pytest.mark.parametrize("mode", [{}, {"RAY_AUTH_MODE": "disabled"}])
def test_no_node_is_started_by_a_ray_that_does_not_authenticate(
    mode: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for name, value in mode.items():
        monkeypatch.setenv(name, value)
    order = {"name": "node-1", "arguments": ["node"], "environment": {}}

    shard = RayShard(order)

    assert "RAY_AUTH_MODE: expected token" in shard.told("", 0)["failure"]
    assert unauthenticated({"RAY_AUTH_MODE": "token"}) == ""
    assert shard.matches(order)
    assert not shard.matches({**order, "arguments": ["node", "--join", "http://10.0.0.1:1"]})


def test_threads_follow_the_settings_and_not_what_ray_reserved():
    told = node_environment({"OMP_NUM_THREADS": "1"}, {"MESHNET_THREADS": "7"})

    assert told["OMP_NUM_THREADS"] == "7"


def test_up_by_ray_takes_no_cuts_and_says_how_to_get_ray():
    with pytest.raises(SettingsError, match="--split: expected none with --ray"):
        up(Settings(port=0), nodes=2, split="2", ray="auto", as_json=False)
    if find_spec("ray") is None:
        with pytest.raises(SettingsError, match=r"meshnet\[ray\]"):
            up(Settings(port=0), nodes=2, split=None, ray="auto", as_json=False)
