"""An agent process that binds cores to its GPUs by itself, and the settings that make it do so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hrm.agent.machine import Machine, auto_binding
from hrm.config import AgentSettings, load
from hrm.core.node.auto_partitioning import AutoBindingRules
from hrm.errors import InvalidConfig
from tests.agent.conftest import RUNNING, Master, StartAgent
from tests.agent.test_gpus import GPUS, units

BUSY = f"exec {sys.executable} -I -S -c 'while True: pass'"
HOLD = "exec sleep 600"
SETTINGS = {
    "cores": 4,
    "gpus": GPUS[:1],
    "binding_mode": "partial",
    "auto_binding_window": 3,
    # The machine of a test may be busy otherwise: a process that needs a whole core gets a part.
    "auto_binding_busy_percent": 10.0,
    "auto_binding_idle_percent": 5.0,
    "auto_binding_pause_s": 0.5,
}


async def test_an_agent_binds_cores_to_a_busy_gpu_and_takes_them_back(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(**SETTINGS)
    await master.until(lambda: master.registrations)
    assert units(master.registrations[-1]) == ["node-1/cpu:3", "node-1/gpu0:1"]

    master.assign("app-1-x1", BUSY, unit=1, gpu_memory_mib=700)
    await master.until_state("app-1-x1", RUNNING)
    await master.until(lambda: len(master.registrations) == 2)
    assert units(master.registrations[-1]) == ["node-1/cpu:2", "node-1/gpu0:2"]
    assert master.statuses["app-1-x1"].state == RUNNING, "it has one core more while it runs"
    assert "rebound (partial, 2 cores a GPU, at least 1 kept): containers at" in agent.log

    master.order_stop("app-1-x1", grace_s=0.0)
    for name in ("app-1-x2", "app-1-x3", "app-1-x4"):
        master.assign(name, HOLD)
    await master.until(lambda: len(master.registrations) == 3)
    assert units(master.registrations[-1]) == ["node-1/cpu:3", "node-1/gpu0:1"]
    await master.until_state("app-1-x4", RUNNING)
    assert master.statuses["app-1-x2"].state == master.statuses["app-1-x3"].state == RUNNING
    assert "no container was at a GPU, while others waited for cores" in agent.log


async def test_an_agent_leaves_its_binding_alone_where_that_is_configured(
    master: Master, start_agent: StartAgent
) -> None:
    start_agent(**{**SETTINGS, "auto_binding": False})
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", BUSY, unit=1, gpu_memory_mib=700)
    await master.until_state("app-1-x1", RUNNING)
    seen = len(master.heartbeats)
    await master.until(lambda: len(master.heartbeats) >= seen + 15)
    assert len(master.registrations) == 1
    master.order_stop("app-1-x1", grace_s=0.0)


def test_the_settings_state_how(monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto_binding(load(AgentSettings)) == AutoBindingRules(), "the core has the same defaults"
    monkeypatch.setenv("HRM_AGENT_AUTO_BINDING", "false")
    assert auto_binding(load(AgentSettings)) is None
    monkeypatch.setenv("HRM_AGENT_AUTO_BINDING", "true")
    rules = auto_binding(load(AgentSettings, auto_binding_cores_min="4", auto_binding_window="60"))
    assert rules == AutoBindingRules(cores_min=4, window=60)


def test_an_agent_reports_that_its_binding_is_none_that_changes(tmp_path: Path) -> None:
    """Where that was asked for: by default it is on, for when the binding is a partial one."""
    asked_for: dict[str, object] = {"auto_binding": True}
    for mode, set_so, warnings in (
        ("shared", asked_for, 1), ("partial", asked_for, 0), ("shared", {}, 0),
    ):  # fmt: skip
        settings = load(
            AgentSettings,
            work_dir=tmp_path / f"{mode}-{len(set_so)}",
            isolation="none",
            run_as="off",
            cores=2,
            gpus=GPUS[:1],
            binding_mode=mode,
            **set_so,
        )
        with capture_logs() as logs, Machine.prepare(settings):
            output = [line["event"] for line in logs if "auto_binding" in line["event"]]
        assert len(output) == warnings


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"auto_binding": "perhaps"}, "auto_binding is .* must be true or false"),
        ({"auto_binding_window": 1}, "set by --auto-binding-window"),
        ({"auto_binding_window": 2.5}, "auto_binding_window is 2.5 .* an integer from 2 to 3600"),
        ({"auto_binding_busy_percent": 101}, "greater than 0 and at most 100"),
        ({"auto_binding_busy_percent": "nan"}, "auto_binding_busy_percent is"),
        ({"auto_binding_idle_percent": "nan"}, "auto_binding_idle_percent is"),
        ({"auto_binding_idle_percent": -1}, "at least 0 and less than 100"),
        ({"auto_binding_idle_percent": 95}, "must be less than auto_binding_busy_percent, 90"),
        ({"auto_binding_busy_percent": 50}, "must be less than auto_binding_busy_percent, 50"),
        ({"auto_binding_cores_min": 0}, "an integer from 1 to 4096"),
        ({"auto_binding_pause_s": 0}, "greater than 0"),
        ({"auto_binding_pause_s": "inf"}, "at most 86400"),
    ],
)
def test_wrong_settings_are_refused_with_the_reason(wrong: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        load(AgentSettings, **wrong)
