"""Settings of a scheduler in a process of its own."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from hrm.config.sources import DEFAULT_PORT, Settings, TlsCa, label, token_file

__all__ = ["SchedulerSettings"]


class SchedulerSettings(Settings):
    """``hrm scheduler``."""

    model_config = SettingsConfigDict(env_prefix="HRM_SCHEDULER_", extra="forbid")
    table: ClassVar[str] = "scheduler"

    master: str = Field(default=f"127.0.0.1:{DEFAULT_PORT}", description="host:port of the master")
    name: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        description="name of this scheduler, of no other one; default: host and process",
    )
    token_file: Path = Field(
        default_factory=token_file, description="the cluster's secret, mode 0600"
    )
    tls_ca: TlsCa = None
    placement_policy: str = Field(
        default="min-wait",
        min_length=1,
        description="what chooses units for containers; `docs/policies.md` lists them",
    )
    reconnect_delay_max_s: float = Field(
        default=5.0, gt=0, description="longest back-off between attempts to reach the master"
    )

    _name_is_a_label = field_validator("name")(label)
