"""Settings of a scheduler in a process of its own."""

from __future__ import annotations

import os
import socket
from typing import ClassVar

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from hrm.address import DEFAULT_HOST, DEFAULT_PORT
from hrm.config.sources import (
    DEFAULT_POLICY,
    ClientSettings,
    MasterAddress,
    PlacementPolicy,
    ReconnectDelay,
    label,
)

__all__ = ["SchedulerSettings"]


class SchedulerSettings(ClientSettings):
    """``hrm scheduler``."""

    model_config = SettingsConfigDict(env_prefix="HRM_SCHEDULER_", extra="forbid")
    table: ClassVar[str] = "scheduler"

    master: MasterAddress = f"{DEFAULT_HOST}:{DEFAULT_PORT}"
    name: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        description="name of this scheduler, of no other one; default: host and process",
    )
    placement_policy: PlacementPolicy = DEFAULT_POLICY
    reconnect_delay_max_s: ReconnectDelay = 5.0

    _name_is_a_label = field_validator("name")(label)
