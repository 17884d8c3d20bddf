from pathlib import Path

import pytest

from meshnet.cli.settings import Settings, SettingsError, bytes_of, load_settings, settings_table


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import os

    for name in [name for name in os.environ if name.startswith("MESHNET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.chdir(tmp_path)


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "given.toml"
    path.write_text(text)
    return path


def test_the_founding_documents_bounds_are_the_defaults():
    settings = load_settings({})

    assert settings.kv_ttl_seconds == 600
    assert settings.kv_max_sessions == 8


def test_a_file_beats_a_default(tmp_path: Path):
    settings = load_settings({}, config=config(tmp_path, "kv_max_sessions = 3"))

    assert settings.kv_max_sessions == 3


def test_the_environment_beats_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MESHNET_KV_MAX_SESSIONS", "4")

    settings = load_settings({}, config=config(tmp_path, "kv_max_sessions = 3"))

    assert settings.kv_max_sessions == 4


def test_a_flag_beats_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MESHNET_KV_MAX_SESSIONS", "4")

    assert load_settings({"kv_max_sessions": 5}).kv_max_sessions == 5


def test_a_flag_that_was_not_given_hides_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MESHNET_WEIGHTS", "bf16")

    assert load_settings({"weights": None}).weights.value == "bf16"


def test_the_working_directorys_file_is_found(tmp_path: Path):
    (tmp_path / "meshnet.toml").write_text('model = "here"')

    assert load_settings({}, working_dir=tmp_path).model == "here"


def test_an_unknown_key_is_named_with_its_neighbour(tmp_path: Path):
    path = config(tmp_path, "kv_max_session = 3")

    with pytest.raises(SettingsError, match=r"unknown key 'kv_max_session'.*'kv_max_sessions'"):
        load_settings({}, config=path)


def test_an_unknown_variable_is_not_an_error(monkeypatch: pytest.MonkeyPatch):
    """Other programs, and tests, may use the prefix (MESHNET_REAL_MODEL_TESTS)."""
    expected = load_settings({}).model_dump()
    monkeypatch.setenv("MESHNET_REAL_MODEL_TESTS", "1")

    assert load_settings({}).model_dump() == expected


def test_a_bad_value_names_its_source_and_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MESHNET_KV_TTL_SECONDS", "soon")

    with pytest.raises(SettingsError, match=r"MESHNET_KV_TTL_SECONDS: expected .*number.*'soon'"):
        load_settings({})
    with pytest.raises(SettingsError, match=r"--port: expected less than or equal to 65535"):
        load_settings({"port": 70000, "kv_ttl_seconds": 1})
    monkeypatch.delenv("MESHNET_KV_TTL_SECONDS")
    with pytest.raises(SettingsError, match=r"given.toml: weights: expected 'auto'"):
        load_settings({}, config=config(tmp_path, 'weights = "int3"'))


def test_a_file_that_is_not_toml_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"given.toml: not readable as TOML"):
        load_settings({}, config=config(tmp_path, "= ="))


def test_a_missing_config_file_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match="there is no file"):
        load_settings({}, config=tmp_path / "absent.toml")


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MESHNET_API_KEYS", "sk-one, sk-two")

    settings = load_settings({}, config=config(tmp_path, 'mesh_token = "hush"'))

    assert [key.get_secret_value() for key in settings.api_keys] == ["sk-one", "sk-two"]
    assert "sk-one" not in repr(settings)
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "expected"), [("512MiB", 512 * 2**20), ("2GB", 2 * 10**9), ("1_000", 1000)]
)
def test_bytes_are_read_with_their_unit(text: str, expected: int):
    assert bytes_of(text) == expected


def test_the_documented_table_is_the_settings_table():
    page = Path(__file__).parents[2] / "docs" / "operations.md"

    assert settings_table() in page.read_text()


def test_the_example_file_is_valid_and_shows_every_key():
    path = Path(__file__).parents[2] / "examples" / "meshnet.toml"
    shown = {
        line.lstrip("# ").split(" = ")[0] for line in path.read_text().splitlines() if " = " in line
    }

    load_settings({}, config=path)

    assert shown == set(Settings.model_fields)


@pytest.mark.parametrize(("text", "read"), [('"off"', "off"), ("4", "4"), ('"16"', "16")])
def test_drafts_are_a_number_or_a_word(tmp_path: Path, text: str, read: str):
    assert load_settings({}, config=config(tmp_path, f"drafts = {text}")).drafts == read


@pytest.mark.parametrize("value", ["0", "17", "-1", "many", "", 1.5, True])
def test_other_drafts_are_refused_by_name(value: object):
    with pytest.raises(SettingsError, match="drafts: expected auto, off or 1 to 16"):
        load_settings({"drafts": value})
