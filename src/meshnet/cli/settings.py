"""Every value a user may set, its default, and which source wins.

    flag  >  MESHNET_* environment variable  >  TOML file  >  default

The TOML file is `--config PATH`, else `meshnet.toml` in the working directory, else
`meshnet.toml` in the user's configuration directory. Its keys are the field names below.

Invariants
    * this is the only place that reads the environment;
    * an unknown key in the file, or a bad value anywhere, is an error that names it and its source.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from platformdirs import user_cache_path, user_config_path, user_state_path
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from meshnet.core.vocabulary import DRAFTS_MAX, MEMBERS_MAX, BadField, MeshnetError
from meshnet.telemetry.sink import LogFormat, LogLevel

CONFIG_NAME = "meshnet.toml"
ENVIRONMENT_PREFIX = "MESHNET_"
SECRETS = {"mesh_token", "api_keys", "etcd_password"}
BYTES_MAX = 2**53 - 1
"""What JSON carries exactly: nodes tell gateways their bounds."""


class SettingsError(MeshnetError):
    """A setting is unknown or has a bad value; the message names field, source and expectation."""


def told(error: ValueError | BadField) -> str:
    """What the core expected, without the core's name of the field: the flag says that."""
    return re.sub(r"^\w+: (?=expected)", "", str(error))


class Weights(Enum):
    """How weights are held in memory; `auto` lets the engine choose by device."""

    AUTO = "auto"
    INT8 = "int8"
    INT8_FAST = "int8-fast"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Settings(BaseSettings):
    """What every command is told; frozen, valid once constructed."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    model: str = Field(
        "smollm2-135m",
        min_length=1,
        description="Model: a name, a directory, a GGUF file or a hub id",
    )
    weights: Weights = Field(Weights.AUTO, description="How weights are held in memory")
    fast_prefill: bool = Field(
        False,
        description="Attend faster in prefills where steps are not compiled; answers may then "
        "depend on how work is cut",
    )
    device: str = Field(
        "cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="`cpu`, `cuda` or `cuda:N`"
    )
    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("meshnet"),
        description="Converted models and logs of child processes",
    )
    state_dir: Path = Field(
        default_factory=lambda: user_state_path("meshnet"),
        description="What a gateway remembers of its mesh, by its port",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="Port of the gateway; 0 chooses a free one")
    threads: int | None = Field(
        None, ge=1, le=1024, description="Compute threads of one node (default: cores / nodes)"
    )
    kv_ttl_seconds: float = Field(
        600.0, gt=0, description="A session unused this long is forgotten"
    )
    kv_max_sessions: int = Field(8, ge=1, le=65536, description="Sessions cached, per shard")
    kv_max_bytes: int | None = Field(
        None,
        ge=1,
        le=BYTES_MAX,
        description="Bytes of KV cache, per node (default: half of the free memory)",
    )
    measure: bool | None = Field(
        None, description="Measure this node when it starts, in seconds (default: if it joins)"
    )
    keep_activations: bool = Field(
        True,
        description="Keep what leaves a shard beside its K/V, so that a node behind it can be "
        "replaced without a prefill of all nodes",
    )
    max_loaded_shards: int = Field(4, ge=1, le=64, description="Shards one node may hold")
    mesh_token: SecretStr | None = Field(
        None, description="Shared secret between gateway and nodes; required beyond loopback"
    )
    tls_dir: Path | None = Field(
        None,
        description="Certificates of this process, as `meshnet certs issue` writes them: all of "
        "the mesh then speaks mutual TLS",
    )
    authority_dir: Path | None = Field(
        None,
        description="Directory of `meshnet certs init`: this gateway then takes join tokens",
    )
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="Keys clients may use, comma-separated; required beyond loopback"
    )
    api_keys_file: Path | None = Field(
        None, description="More such keys, with limits, as `meshnet keys` keeps them"
    )
    prefill_chunk: int = Field(
        512, ge=1, le=65536, description="Positions of one prefill step at most"
    )
    routes: str = Field(
        "auto",
        pattern="^(auto|chain|star)$",
        description="`auto`: nodes hand steps on to each other where they can; `chain`: no other "
        "way will do; `star`: never",
    )
    lease_seconds: float = Field(
        10.0,
        ge=1,
        le=3600,
        description="A joined node that is not heard of for so long has left",
    )
    settle_seconds: float = Field(
        5.0,
        ge=0,
        le=600,
        description="How long a gateway waits for more nodes before it assigns layers",
    )
    nodes_min: int = Field(
        1,
        ge=1,
        le=MEMBERS_MAX,
        description="Nodes that a gateway waits for before it assigns layers the first time",
    )
    etcd_user: str | None = Field(
        None, min_length=1, max_length=256, description="User of the etcd of `--registry etcd://…`"
    )
    etcd_password: SecretStr | None = Field(
        None, description="Its password: in the environment or the TOML file, never `--set`"
    )
    etcd_ca_file: Path | None = Field(
        None,
        description="Who signed the certificates of that etcd (default: whom the system trusts)",
    )
    etcd_cert_file: Path | None = Field(
        None, description="Certificate that this process shows to that etcd"
    )
    etcd_key_file: Path | None = Field(None, description="The key of that certificate")
    peers: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="URLs of the nodes that a node may hand steps on to, comma-separated"
    )
    drafts: str = Field(
        "auto",
        description="Tokens guessed and verified in one step: `auto` (as many as pay), `off`, 1-16",
    )
    prefix_sessions: int = Field(
        8,
        ge=0,
        le=4096,
        description="Ended chats of one API key that a gateway may go on with; 0: none",
    )
    prefix_sessions_total: int = Field(
        32, ge=1, le=4096, description="The same, of all API keys together"
    )
    prefix_seconds: float = Field(
        300.0, gt=0, description="How long an ended chat may wait for its next turn"
    )
    drain_seconds: float = Field(
        60.0, gt=0, description="How long a node that drains waits for its sessions to leave"
    )
    move_bytes_per_second: float | None = Field(
        None, gt=0, description="How fast sessions may come to a node from others"
    )
    queue_length: int = Field(
        32, ge=0, le=4096, description="Requests that may wait in the gateway"
    )
    request_timeout_seconds: float = Field(600.0, gt=0, description="Deadline of one API request")
    hop_timeout_seconds: float = Field(
        30.0,
        gt=0,
        description="Time of one step on one node; 8 times as long while the node is at it",
    )
    start_timeout_seconds: float = Field(300.0, gt=0, description="Deadline of a node's start")
    trace_endpoint: str | None = Field(
        None,
        min_length=1,
        description="OTLP/HTTP collector that spans are sent to, such as `http://127.0.0.1:4318`; "
        "needs the extra `otel`",
    )
    trace_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Part of the requests that are traced, of those whose client does not say",
    )
    log_format: LogFormat = Field(LogFormat.CONSOLE, description="`console` or `json`")
    log_level: LogLevel = Field(LogLevel.INFO, description="`debug`, `info`, `warning` or `error`")

    @field_validator("kv_max_bytes", mode="before")
    @classmethod
    def _read_bytes(cls, value: object) -> object:
        return bytes_of(value) if isinstance(value, str) else value

    @field_validator("drafts", mode="before")
    @classmethod
    def _check_drafts(cls, value: object) -> str:
        text = str(value)
        if text in {"auto", "off"} or (
            re.fullmatch(r"\d{1,2}", text, re.ASCII) and 1 <= int(text) <= DRAFTS_MAX
        ):
            return text
        raise ValueError(f"expected auto, off or 1 to {DRAFTS_MAX}")

    @field_validator("api_keys", "peers", mode="before")
    @classmethod
    def _split_keys(cls, value: object) -> object:
        return (
            [k.strip() for k in value.split(",") if k.strip()] if isinstance(value, str) else value
        )


def bytes_of(text: str) -> int:
    """Read `512MiB`, `2GiB`, `1_000_000` as bytes. Raises ValueError."""
    match = re.fullmatch(r"([0-9][0-9_]*)\s*([KMGT]i?)?B?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise ValueError("expected bytes, for example 536870912 or 512MiB")
    unit = (match[2] or "").upper()
    base: int = 1024 if unit.endswith("I") else 1000
    power = " KMGT".index(unit[:1] or " ")
    return int(match[1]) * int(base**power)


def load_settings(
    flags: Mapping[str, object],
    *,
    assigned: Mapping[str, str] | None = None,
    config: Path | None = None,
    working_dir: Path | None = None,
) -> Settings:
    """Merge what the user says into one value; the earlier source wins. Raises SettingsError.

    Sources: `assigned` (`--set`), `flags` (None: not given), environment, file, defaults.
    """
    sources = {name: f"--{name.replace('_', '-')}" for name in flags}
    sources |= {name: f"--set {name}" for name in assigned or {}}
    flags = {**flags, **(assigned or {})}
    given = {name: value for name, value in flags.items() if value is not None}
    path = config if config is not None else _default_config(working_dir or Path.cwd())
    if config is not None and not config.is_file():
        raise SettingsError(f"--config: there is no file {config}")

    class Sourced(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            file = (TomlConfigSettingsSource(settings_cls, path),) if path else ()
            return (init_settings, env_settings, *file)

    try:
        return Sourced(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise SettingsError(
            _explain(error, {name: sources[name] for name in given}, path)
        ) from None
    except ValueError as error:
        raise SettingsError(f"{path}: not readable as TOML: {error}") from None


def _default_config(working_dir: Path) -> Path | None:
    candidates = (working_dir / CONFIG_NAME, user_config_path("meshnet") / CONFIG_NAME)
    return next((path for path in candidates if path.is_file()), None)


def _explain(error: ValidationError, given: Mapping[str, str], path: Path | None) -> str:
    lines = []
    for detail in error.errors(include_url=False):
        name = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, Settings.model_fields, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            lines.append(f"{path}: unknown key {name!r}{hint}")
        else:
            field = str(detail["loc"][0])
            shown = "a secret" if field in SECRETS else repr(detail["input"])[:80]
            lines.append(f"{_source(field, given, path)}: {_expected(detail)}, got {shown}")
    return "\n".join(lines)


def _source(field: str, given: Mapping[str, str], path: Path | None) -> str:
    if field in given:
        return given[field]
    if f"{ENVIRONMENT_PREFIX}{field.upper()}" in os.environ:
        return f"{ENVIRONMENT_PREFIX}{field.upper()}"
    return f"{path}: {field}"


def _expected(detail: Any) -> str:
    if detail["loc"][0] == "device":
        return "expected cpu, cuda or cuda:N"
    text = str(detail["msg"]).removeprefix("Value error, ")
    return re.sub(r"^(Input|String) should (be|have)", "expected", text)


def base_url(url: str, flag: str) -> str:
    """Return the URL of a node or gateway without a trailing slash. Raises SettingsError."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise SettingsError(f"{flag}: expected a URL such as http://10.0.0.1:9001, got {url!r}")
    return url.rstrip("/")


def settings_table() -> str:
    """Return the settings as the Markdown table of docs/operations.md."""
    rows = ["| TOML key | environment | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = field.default
        shown: object = default.value if isinstance(default, Enum) else default
        if field.default_factory is not None:
            shown = f"the user's {name.removesuffix('_dir')} directory"
        elif default is None or default == ():
            shown = "none" if "default:" not in (field.description or "") else "computed"
        rows.append(
            f"| `{name}` | `{ENVIRONMENT_PREFIX}{name.upper()}` | {shown} | {field.description} |"
        )
    return "\n".join(rows)
