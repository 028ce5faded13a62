"""Where settings come from: flags, then variables, then one table of a file, then defaults.

The file is looked for at ``$HRM_CONFIG``, then ``./hrm.toml``, then ``$HRM_HOME/hrm.toml``; it has
one table a daemon (``[master]``, ``[agent]``, ``[scheduler]``). Variables are ``HRM_MASTER_PORT``,
``HRM_AGENT_CORES`` and so on.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from hrm.errors import InvalidConfig

__all__ = [
    "DEFAULT_PORT",
    "MasterAddress",
    "PlacementPolicy",
    "ReconnectDelay",
    "Settings",
    "TlsCa",
    "TlsCert",
    "TlsKey",
    "TokenFile",
    "config_file",
    "hrm_home",
    "label",
    "load",
    "token_file",
]

DEFAULT_PORT = 7480

# What several daemons are told is described and bounded once; a default is each one's own.
MasterAddress = Annotated[str, Field(description="host:port of the master")]
ReconnectDelay = Annotated[
    float, Field(gt=0, description="longest back-off between attempts to reach the master")
]
TokenFile = Annotated[Path, Field(description="the cluster's secret, mode 0600")]
PlacementPolicy = Annotated[
    str,
    Field(
        min_length=1,
        description="what chooses units for containers; `docs/policies.md` lists them",
    ),
]
TlsCa = Annotated[
    Path | None,
    Field(
        description="certificates (PEM) of who may answer: all of HRM's traffic is encrypted; "
        "default: $HRM_TLS_CA, else ca.pem beside token_file, else clear text"
    ),
]
TlsCert = Annotated[
    Path | None,
    Field(description="this server's own certificate and those above it (PEM), with tls_key"),
]
TlsKey = Annotated[Path | None, Field(description="the private key of tls_cert (PEM), mode 0600")]


def hrm_home() -> Path:
    """The directory of everything HRM keeps for this user: ``$HRM_HOME``, else ``~/.hrm``."""
    return Path(os.environ.get("HRM_HOME") or "~/.hrm").expanduser()


def token_file() -> Path:
    """Where clients look for the cluster's token: ``$HRM_TOKEN_FILE``, else in ``hrm_home()``."""
    return Path(os.environ.get("HRM_TOKEN_FILE") or hrm_home() / "token").expanduser()


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
        try:
            document = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidConfig(f"{path}: {error}") from error
        table = document.get(self.table, {})
        if not isinstance(table, dict):
            raise InvalidConfig(f"{path}: [{self.table}] must be a table")
        return table


class Settings(BaseSettings):
    """One daemon's settings; ``table`` is its table of the file."""

    table: ClassVar[str]

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
        InvalidConfig: one line per field, with where to set it.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return settings_class(**given)
    except ValidationError as error:
        prefix = settings_class.model_config.get("env_prefix", "")
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r}; set it in hrm.toml "
            f"[{settings_class.table}], {prefix}{'_'.join(map(str, e['loc'])).upper()} or by flag)"
            for e in error.errors()
        )
        raise InvalidConfig(problems) from error
