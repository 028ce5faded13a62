"""Settings of ``hrm autoscale``."""

from __future__ import annotations

import shlex
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from hrm.address import DEFAULT_HOST
from hrm.config.sources import ClientSettings, FoundMasterAddress, ListenHost

__all__ = ["AutoscaleSettings"]


class AutoscaleSettings(ClientSettings):
    """``hrm autoscale``."""

    model_config = SettingsConfigDict(env_prefix="HRM_AUTOSCALE_", extra="forbid")
    table: ClassVar[str] = "autoscale"

    master: FoundMasterAddress = ""
    host: ListenHost = Field(default=DEFAULT_HOST, description="address of metrics_port")
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of metrics for Prometheus, at /metrics: HTTP without a token; 0: any "
        "free; empty: none",
    )
    command: str = Field(
        default="",
        description="what adds and removes machines: a command and its arguments, no shell; it "
        "gets the call as JSON on standard input and in variables (HRM_WANTED_NODES and others)",
    )
    url: str = Field(
        default="", description="instead of a command: where the same JSON is sent by POST"
    )
    timeout_s: float = Field(
        default=30.0, gt=0, le=600, description="time limit of one try of the hook"
    )
    tries: int = Field(default=3, ge=1, le=10, description="tries of one call of the hook")
    nodes_min: int = Field(default=1, ge=0, le=100_000, description="fewest nodes")
    nodes_max: int = Field(default=10, ge=1, le=100_000, description="most nodes")
    interval_s: float = Field(
        default=30.0, ge=1, le=3600, description="how often the pool is looked at"
    )
    forecast_step: Literal["5min", "hour", "day", "none"] = Field(
        default="hour",
        description="intervals whose P90 is provided for: the present and the next one; none: only "
        "what runs and waits counts",
    )
    forecast_limit_s: float = Field(
        default=120.0, ge=1, le=3600, description="time limit of making a forecast"
    )
    headroom: float = Field(
        default=0.1, ge=0, le=10, description="nodes beyond the forecast, as a part of it"
    )
    down_after_s: float = Field(
        default=600.0,
        ge=0,
        le=86_400,
        description="how long fewer nodes must be wanted before any go",
    )
    cooldown_s: float = Field(
        default=300.0,
        ge=0,
        le=86_400,
        description="time after a change before nodes go; more are asked for at once",
    )
    shrink_part: float = Field(
        default=0.2, gt=0, le=1, description="part of the nodes that may go at a time; one always"
    )
    boot_timeout_s: float = Field(
        default=600.0,
        ge=10,
        le=86_400,
        description="time after which nodes that have not come are asked for again",
    )
    place_after_s: float = Field(
        default=60.0,
        ge=10,
        le=86_400,
        description="how long something waits for a place that no node has, with all nodes that "
        "were asked for there, before one more is asked for",
    )
    retry_s: float = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="pause after a call that failed; doubles with each, up to retry_max_s",
    )
    retry_max_s: float = Field(default=1800.0, ge=1, le=86_400, description="longest such pause")
    dry_run: bool = Field(
        default=False, description="report what would be done; drain nothing and call nothing"
    )

    @field_validator("command")
    @classmethod
    def _command_can_be_read(cls, value: str) -> str:
        try:
            arguments = shlex.split(value)
        except ValueError as error:
            raise ValueError(
                f"{value!r} cannot be read ({error}); quote it as a shell would, such as "
                "\"sh -c 'resize-pool --fast'\""
            ) from error
        if "\0" in value or (value and not (arguments and arguments[0])):
            raise ValueError(
                f"{value!r} names no program; write its path, such as /opt/resize-pool"
            )
        return value

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, value: str) -> str:
        if value and not _is_webhook(value):
            raise ValueError(
                f"{value!r} is no address of a webhook; write http://HOST:PORT/PATH or https://…"
            )
        return value


def _is_webhook(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError, too
    except ValueError:
        return False
    is_plain = url.isprintable() and url.isascii() and " " not in url
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_plain
