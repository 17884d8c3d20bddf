"""How a user names sides."""

from __future__ import annotations

import pytest

from meshnet.cli.bench.sides import SideSpec, environment_of, own_settings
from meshnet.cli.settings import SettingsError, Weights, load_settings


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("mesh:2x1", SideSpec("mesh", nodes=2, threads=1)),
        ("mesh", SideSpec("mesh", nodes=2, threads=1)),
        ("mesh:3x2@bf16", SideSpec("mesh", nodes=3, threads=2, weights="bf16")),
        ("engine:2", SideSpec("engine", threads=2)),
        ("generate", SideSpec("generate")),
        (
            "mesh:1x1@fp32+prefill_chunk=16+kv_max_sessions=9",
            SideSpec(
                "mesh", 1, 1, "fp32", (("prefill_chunk", "16"), ("kv_max_sessions", "9"))
            ),
        ),
    ],
)  # fmt: skip
def test_a_side_is_named_by_kind_shape_format_and_settings(text: str, spec: SideSpec):
    assert SideSpec.parse(text) == spec
    assert SideSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text", ["vllm:2", "mesh:0x1", "engine:2x1", "mesh:2x1@", "mesh:2x1+a", ""]
)
def test_a_side_that_cannot_be_is_refused(text: str):
    with pytest.raises(SettingsError, match="--side"):
        SideSpec.parse(text)


def test_a_side_has_the_users_settings_and_its_own():
    settings = load_settings({"model": "some-model", "weights": "fp32", "kv_ttl_seconds": 30.0})

    own = own_settings(SideSpec.parse("mesh:2x1@bf16+prefill_chunk=16"), settings)

    assert (own.model, own.weights, own.kv_ttl_seconds) == ("some-model", Weights.BF16, 30.0)
    assert (own.threads, own.prefill_chunk, own.port, own.kv_max_sessions) == (1, 16, 0, 16)
    environment = environment_of(own, nodes=2, threads=1)
    assert environment["MESHNET_WEIGHTS"] == "bf16"
    assert environment["OMP_NUM_THREADS"] == "1"


def test_an_unknown_setting_of_a_side_is_told():
    with pytest.raises(SettingsError, match="no_such_key"):
        own_settings(SideSpec.parse("mesh:2x1+no_such_key=1"), load_settings({}))
