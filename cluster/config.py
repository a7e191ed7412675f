"""The configuration: one frozen object, composed from the sections that each part owns.

Read once at the edge and handed down in slices. A file or a section with nothing in it means its
defaults. Unknown and duplicate keys are refused, values are not coerced between types (`"8000"` is
not a port), and all mistakes are told at once, by dotted path. What is not built yet is refused
here, so that no key is silently without effect.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from actors.errors import ConfigError
from actors.llm.config import LLMConfig
from actors.request_manager.config import SchedulerConfig, SpeculationConfig
from actors.request_manager.drafter_names import SSM, askable, ssm_names
from actors.ssm.config import SSMConfig
from actors.tls import TlsFiles
from cluster.logs import LogsConfig
from cluster.tracing import TracingConfig

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _ordered(value: tuple[int, int] | str) -> tuple[int, int] | str:
    if isinstance(value, tuple) and value[0] > value[1]:
        raise ValueError("the first port must not lie above the last")
    return value


class ModelConfig(BaseModel):
    """Which model is served.

    Attributes:
        path: the embedded model's name, a local folder or a hub id.
        served_name: what clients call it; None takes the last part of `path`.
        dtype: of weights and KV cache.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, Field(min_length=1)] = "smollm2-135m-instruct"
    served_name: Annotated[str, Field(min_length=1)] | None = None
    dtype: Literal["bfloat16", "float32"] = "bfloat16"

    @property
    def name(self) -> str:
        return self.served_name or Path(self.path).name


class GrpcConfig(BaseModel):
    """How manager and actors reach each other.

    Attributes:
        port_range: `[first, last]` for the actors' servers, or `auto` for any free port.
        tls: files of the certificate that both sides show each other; None for no TLS.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    port_range: tuple[Port, Port] | Literal["auto"] = "auto"
    tls: TlsFiles | None = None

    _range_is_ordered = field_validator("port_range")(_ordered)


class ApiConfig(BaseModel):
    """The HTTP face.

    Attributes:
        host, port: where to listen; loopback by default.
        api_keys_file: a file with one API key a line; None lets everybody in.
        max_requests_per_key: outputs of one key that may run or wait at one time; None for any.
        replicas: number of ingresses; only 1 is built.
        max_body_bytes: a longer request body is refused.
        max_connections: open connections; more are refused.
        receive_timeout_s: a client has so long to send the head of a request, and as long again for
            its body.
        write_timeout_s: a client that takes nothing of its answer for so long is treated as gone.
        request_timeout_s: an answer that is not complete by then is given up; None for never.
        drain_timeout_s: how long answers that have begun may go on after SIGTERM, or after another
            ingress has taken over.
        page: serve the live page at `/`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Port = 8000
    api_keys_file: Annotated[str, Field(min_length=1)] | None = None
    max_requests_per_key: Annotated[int, Field(ge=1)] | None = None
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 << 20
    max_connections: Annotated[int, Field(ge=1)] = 2048
    receive_timeout_s: Seconds = 30.0
    write_timeout_s: Seconds = 60.0
    request_timeout_s: Seconds | None = None
    drain_timeout_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    page: bool = True

    @field_validator("replicas")
    @classmethod
    def _single_replica_only(cls, value: int) -> int:
        if value != 1:
            raise ValueError("several ingresses are not built yet; leave it 1")
        return value


class MetricsConfig(BaseModel):
    """Where each process serves its own metrics; `/metrics/targets` lists the addresses.

    Attributes:
        host: address to listen on; Prometheus must reach it under this name, or under the pod's.
        port_range: `[first, last]`, a port for each process of a machine, or `auto` for any.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port_range: tuple[Port, Port] | Literal["auto"] = "auto"

    _range_is_ordered = field_validator("port_range")(_ordered)


class Config(BaseModel):
    """Everything that a run of TreeServe is told."""

    # Defaults are validated too: whether they fit depends on the other sections.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    model: ModelConfig = ModelConfig()
    llm: LLMConfig = LLMConfig()
    ssms: Annotated[tuple[SSMConfig, ...], Field(max_length=16)] = ()
    speculation: SpeculationConfig = SpeculationConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    grpc: GrpcConfig = GrpcConfig()
    api: ApiConfig = ApiConfig()
    metrics: MetricsConfig = MetricsConfig()
    logs: LogsConfig = LogsConfig()
    tracing: TracingConfig = TracingConfig()

    @field_validator("ssms")
    @classmethod
    def _ssms_differ(cls, value: tuple[SSMConfig, ...]) -> tuple[SSMConfig, ...]:
        if len({ssm.path for ssm in value}) < len(value):
            raise ValueError("a draft model is named twice; replicas gives it several actors")
        return value

    @field_validator("speculation")
    @classmethod
    def _ssms_are_asked(cls, value: SpeculationConfig, info: ValidationInfo) -> SpeculationConfig:
        ssms = info.data.get("ssms")
        if ssms and SSM not in value.drafters:
            raise ValueError(f"there are ssms, but {SSM!r} is not among the drafters")
        if ssms == () and SSM in value.drafters:
            raise ValueError(f"{SSM!r} is among the drafters, but there are no ssms")
        return value

    @property
    def digest(self) -> str:
        """The same for configurations that say the same."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def ssm_indexes(self) -> tuple[int, ...]:
        """For each draft model's actor the index of its model: all replicas of one, then of the
        next."""
        return tuple(i for i, ssm in enumerate(self.ssms) for _ in range(ssm.replicas))

    @property
    def drafter_names(self) -> tuple[str, ...]:
        """The drafters by their own names, in order: draft models one by one."""
        models = ssm_names(len(self.ssms))
        kinds = [models if kind == SSM else (kind,) for kind in self.speculation.drafters]
        return tuple(name for names in kinds for name in names)

    @property
    def askable_drafters(self) -> tuple[str, ...]:
        """What a request may ask for: the drafters of the configuration, and each draft model."""
        return askable(self.drafter_names)


def load_config(path: Path) -> Config:
    """Read a configuration file (YAML).

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds mistakes; names all of them.
    """
    return parse_config(_read(path), str(path))


def sound_sections(path: Path) -> Config:
    """Of a file with mistakes, the sections that have none; the others are as by default.

    Whether sections fit each other is not looked at.

    Raises:
        ConfigError: the file cannot be read or is not YAML.
    """
    content, _ = _parsed(_read(path), str(path))
    types = get_type_hints(Config, include_extras=True)
    sound: dict[str, Any] = {}
    for name in content.keys() & Config.model_fields.keys():
        with contextlib.suppress(ValidationError):
            text = json.dumps(content[name], default=str)
            sound[name] = TypeAdapter(types[name]).validate_json(text, strict=True)
    return Config().model_copy(update=sound)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 text"]) from error


def config_of(content: Mapping[str, Any]) -> Config:
    """The configuration in plain values, as YAML or JSON give them. Raises ConfigError."""
    return _validated(dict(content), [])


def with_address(config: Config, host: str | None, port: int | None) -> Config:
    """The same configuration, but served at another address; None leaves a part as it is.

    Raises:
        ConfigError: the address is not one.
    """
    changes = {"host": host, "port": port}
    content = config.model_dump(mode="json")
    content["api"] |= {key: value for key, value in changes.items() if value is not None}
    return _validated(content, [])


def with_ssms(config: Config, ssms: Sequence[SSMConfig]) -> Config:
    """The same configuration with other draft models. Raises ConfigError if they do not fit in."""
    listed = [ssm.model_dump(mode="json") for ssm in ssms]
    return _validated(config.model_dump(mode="json") | {"ssms": listed}, [])


def parse_config(text: str, source: str = "configuration") -> Config:
    """The configuration in a YAML text; `source` names it in messages. Raises ConfigError."""
    return _validated(*_parsed(text, source))


def _parsed(text: str, source: str) -> tuple[dict[str, Any], list[str]]:
    """The sections of a YAML text, and what is wrong with their keys."""
    loader = _Loader(text)
    try:
        content = loader.get_single_data()
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: not valid YAML: {_yaml_reason(error)}"]) from error
    finally:
        loader.dispose()
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError([f"{source}: expected sections (model, llm, …) at the top level"])
    return content, loader.problems


def _validated(content: dict[str, Any], problems: Sequence[str]) -> Config:
    content = {
        name: section
        for name, section in content.items()
        if section is not None or name not in Config.model_fields
    }
    # By way of JSON: pydantic's strict mode then takes lists for tuples, and nothing else.
    try:
        config = Config.model_validate_json(json.dumps(content, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError([*problems, *_problems(error, content)]) from error
    if problems:
        raise ConfigError(problems)
    return config


def _problems(error: ValidationError, content: dict[str, Any]) -> list[str]:
    """One line for each wrong field; the branches of a union are told together."""
    by_path: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        unknown = detail["type"] == "extra_forbidden"
        message = "unknown key" if unknown else detail["msg"].removeprefix("Value error, ")
        by_path.setdefault(_dotted(detail["loc"], content), []).append(message)
    return [f"{path}: {', or: '.join(messages)}" for path, messages in by_path.items()]


def _dotted(loc: tuple[int | str, ...], content: object) -> str:
    """A pydantic location without the names of union branches, which the file does not hold."""
    parts: list[str] = []
    for part in loc:
        if isinstance(content, dict):
            content = content.get(part)
        elif isinstance(content, list) and isinstance(part, int) and part < len(content):
            content = content[part]
        else:
            break
        parts.append(str(part))
    return ".".join(parts)


def _yaml_reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} (line {mark.line + 1}, column {mark.column + 1})"
    return str(error)


class _Loader(yaml.SafeLoader):
    """YAML's safe types only; duplicate and non-text keys are collected as problems."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.problems: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            where = f"(line {key_node.start_mark.line + 1})"
            key = str(key_node.value)
            if key_node.tag != "tag:yaml.org,2002:str":
                self.problems.append(f"{key}: keys must be plain text {where}")
            elif key in seen:
                self.problems.append(f"{key}: key given twice {where}")
            seen.add(key)
        mapping = super().construct_mapping(node, deep=True)
        return {str(key): value for key, value in mapping.items()}
