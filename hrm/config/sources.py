"""Where settings come from: flags, then variables, then one table of a file, then defaults.

The file is looked for at ``$HRM_CONFIG``, then ``./hrm.toml``, then ``$HRM_HOME/hrm.toml``; it has
one table a daemon (``[master]``, ``[agent]``, ``[scheduler]``, ``[autoscale]``), and those of
``hrm.config.queues``.
Variables are ``HRM_MASTER_PORT``, ``HRM_AGENT_CORES`` and so on. Paths are absolute from here on:
``~`` is expanded, and what is relative means the directory in which the daemon was started.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from hrm import clear_text
from hrm.address import DEFAULT_HOST, DEFAULT_PORT, default_master, parse_master
from hrm.address import state_home as hrm_home
from hrm.address import token_path as token_file
from hrm.config import problems
from hrm.errors import InvalidConfig, InvalidRequest

__all__ = [
    "DEFAULT_POLICY",
    "DEFAULT_PORT",
    "ClientSettings",
    "ConnectionsMax",
    "FoundMasterAddress",
    "ListenHost",
    "MasterAddress",
    "PlacementPolicy",
    "ReconnectDelay",
    "ServerSettings",
    "Settings",
    "config_file",
    "hrm_home",
    "label",
    "load",
    "token_file",
    "toml_document",
]

DEFAULT_POLICY = "min-wait"
"""Of placement, in the master and in schedulers of their own."""


def _checked_host(host: str) -> str:
    """A name or an address, of IPv6 in brackets, as it stands before ``:port``."""
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or re.search(r"[\s/]", bare) or bare.startswith("unix"):
        raise ValueError(f"{host!r} is no host name and no IP address, such as 127.0.0.1 or node-7")
    if bare.count(":") == 1:
        raise ValueError(f"{host!r} has a port, which is a setting of its own (port)")
    if ":" in bare and host != f"[{bare}]":
        raise ValueError(f"{host!r}: write an IPv6 address in brackets, [{bare}]")
    return host


def _checked_master(text: str) -> str:
    """``host:port``, from what clients accept, too: ``hrm://host:port``, ``host``."""
    try:
        return parse_master(text)
    except InvalidRequest as error:
        raise ValueError(error.message) from error


def _found_master(text: str) -> str:
    """``host:port``, as commands find it: where none is stated, by ``$HRM_MASTER`` and so on.

    Raises:
        InvalidConfig: the variable is no address; it is none of the settings.
    """
    if text:
        return _checked_master(text)
    try:
        return default_master()
    except InvalidRequest as error:
        raise InvalidConfig(f"HRM_MASTER: {error.message}") from error


def config_file() -> Path | None:
    """The configuration file in force, or None.

    Raises:
        InvalidConfig: ``$HRM_CONFIG`` names a file that does not exist.
    """
    named = os.environ.get("HRM_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise InvalidConfig(f"HRM_CONFIG names {path}, which does not exist")
        return path
    for path in (Path("hrm.toml"), hrm_home() / "hrm.toml"):
        if path.is_file():
            return path
    return None


def toml_document(path: Path) -> dict[str, Any]:
    """The contents of the configuration file.

    Raises:
        InvalidConfig: it cannot be read, or has a table that HRM does not know.
    """
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig(f"{path}: {error}") from error
    if unknown := problems.unknown_tables(path, document):
        raise InvalidConfig("; ".join(unknown))
    return document


class _TomlTable(PydanticBaseSettingsSource):
    """One table of ``hrm.toml``."""

    def __init__(self, settings_cls: type[BaseSettings], table: str) -> None:
        super().__init__(settings_cls)
        self.table = table

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise AssertionError("the whole table is read at once")

    def __call__(self) -> dict[str, Any]:
        path = config_file()
        if path is None:
            return {}
        table = toml_document(path).get(self.table, {})
        if not isinstance(table, dict):
            raise InvalidConfig(f"{path}: [{self.table}] must be a table")
        return table


class Settings(BaseSettings):
    """One daemon's settings; ``table`` is its table of the file."""

    table: ClassVar[str]

    @field_validator("*", mode="after")
    @classmethod
    def _paths_are_absolute(cls, value: Any) -> Any:
        if not isinstance(value, Path):
            return value
        try:
            return value.expanduser().absolute()
        except RuntimeError as error:  # of ~user
            raise ValueError(f"{error}; write the directory itself") from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, _TomlTable(settings_cls, cls.table))


ListenHost = Annotated[str, AfterValidator(_checked_host)]
ConnectionsMax = Annotated[
    int,
    Field(
        ge=16,
        le=250_000,
        description="connections at one time, as far as the limit on open files goes; others are "
        "closed at once",
    ),
]


class ClientSettings(Settings):
    """What every daemon has: it is a client of the master, or the master."""

    token_file: Path = Field(
        default_factory=token_file,
        description="the token, mode 0600: the cluster's, which the master makes, or, of agents "
        "and schedulers, one of their own",
    )
    tls_ca: Path | None = Field(
        default=None,
        description="authorities of servers (PEM): all of HRM's traffic is encrypted; "
        "default: $HRM_TLS_CA, else ca.pem next to token_file, else clear text",
    )
    allow_clear_text: bool = Field(
        default_factory=clear_text.allowed,
        description="speak without TLS on addresses other than loopback, where an eavesdropper, or "
        "a process that takes a port, learns the token; default: $HRM_ALLOW_CLEAR_TEXT, else false",
    )


class ServerSettings(ClientSettings):
    """What a daemon that listens has besides."""

    host: ListenHost = DEFAULT_HOST
    port: int = Field(default=0, ge=0, le=65535)
    tls_cert: Path | None = Field(
        default=None,
        description="this server's own certificate and those above it (PEM), with tls_key",
    )
    tls_key: Path | None = Field(
        default=None, description="the private key of tls_cert (PEM), mode 0600"
    )
    connections_max: ConnectionsMax = 256
    streams_max: int = Field(
        default=64,
        ge=8,
        le=1_000_000,
        description="calls that one connection may have open; more of them wait at the client, or "
        "are refused as UNAVAILABLE and may be made again",
    )


# Settings that some daemons share are described and bounded once.
MasterAddress = Annotated[
    str, AfterValidator(_checked_master), Field(description="host:port of the master")
]
FoundMasterAddress = Annotated[
    str,
    AfterValidator(_found_master),
    Field(
        description="host:port of the master; empty: $HRM_MASTER, else the cluster that `hrm up` "
        "started here",
        validate_default=True,
    ),
]
ReconnectDelay = Annotated[
    float, Field(gt=0, description="longest back-off between attempts to reach the master")
]
PlacementPolicy = Annotated[
    str,
    Field(
        min_length=1,
        description="what chooses units for containers: min-wait, fragmentation, round-robin, "
        "random, best-fit, worst-fit, fifo, centralized-drf, one-tenant-per-node, "
        "most-affected-first, co-runner-round-robin, least-slowdown, or one that an installed "
        "package provides",
    ),
]


def label(value: str) -> str:
    """A name that may stand in a label, or none.

    Raises:
        ValueError: it may not.
    """
    if value and (len(value) > 253 or any(not (c.isalnum() or c in "-._") for c in value)):
        raise ValueError("letters, digits, '-', '.' and '_' only, at most 253 of them")
    return value


S = TypeVar("S", bound=Settings)


def load(settings_class: type[S], **flags: Any) -> S:
    """Settings from all sources; flags that are None are left to the others.

    Raises:
        InvalidConfig: each problem, with where the value was set and what is allowed.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    prefix = settings_class.model_config.get("env_prefix", "")
    found = problems.unknown_variables(
        settings_class.table, prefix, settings_class.model_fields, os.environ
    )
    try:
        settings = settings_class(**given)
    except ValidationError as error:
        found += [
            problems.invalid(
                settings_class, settings_class.table, one, _place(settings_class, one["loc"], given)
            )
            for one in error.errors()
        ]
        raise InvalidConfig("; ".join(found)) from error
    if found:
        raise InvalidConfig("; ".join(found))
    return settings


def _place(settings_class: type[S], loc: tuple[int | str, ...], given: dict[str, Any]) -> str:
    """Where the value at ``loc`` was set: the most specific place that has it."""
    name = str(loc[0])
    if name in given:
        return f"set by --{name.replace('_', '-')}"
    variable = f"{settings_class.model_config.get('env_prefix', '')}{name}".upper()
    for each in os.environ:
        if each.upper() == variable:
            return f"set by {each}"
    return f"set in {config_file()}, table [{settings_class.table}]"
