"""Settings, from the least to the most specific: defaults, ``hrm.toml``, ``HRM_*``, flags.

Every bound that HRM keeps has its name here, so that an error can say which one to change: those of
the master in ``master``, of agents in ``agent``, of remote schedulers in ``scheduler``, of ``hrm
autoscale`` in ``autoscale``. Where their
values come from is in ``sources``. Queues of applications are in ``queues``.
"""

from __future__ import annotations

from hrm.config.agent import AgentSettings, DeclaredGpu
from hrm.config.autoscale import AutoscaleSettings
from hrm.config.master import MasterSettings
from hrm.config.queues import QueueConfig, load_queues
from hrm.config.scheduler import SchedulerSettings
from hrm.config.sources import DEFAULT_PORT, config_file, hrm_home, load, token_file

__all__ = [
    "DEFAULT_PORT",
    "AgentSettings",
    "AutoscaleSettings",
    "DeclaredGpu",
    "MasterSettings",
    "QueueConfig",
    "SchedulerSettings",
    "config_file",
    "hrm_home",
    "load",
    "load_queues",
    "token_file",
]
