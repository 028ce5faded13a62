"""Batch that waits for a shared GPU at an agent: real processes, and a fake of NVML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.gpu.use_records import FILE
from hrm.core.vocabulary.gpu_use import USE_PARTS
from hrm.v1 import common_pb2
from hrm.v1.policy_pb2 import LearnedPolicy
from tests.agent import fake_nvml
from tests.agent.conftest import ENDED, RUNNING, Master, StartAgent
from tests.agent.test_device_memory import FOREVER, child_of

Eventually = Callable[..., Any]
WAITING = common_pb2.CONTAINER_STATE_WAITING
UNTIL_TOLD = "sh -c 'echo $$ > python.pid; while [ ! -e told ]; do sleep 0.05; done'"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One GPU of 1,000 MiB that two may share."""
    path = tmp_path / "nvml.json"
    fake_nvml.write_state(path, [1000], {})
    monkeypatch.setenv(fake_nvml.VARIABLE, str(path))
    return path


async def test_a_containers_use_is_recorded_reported_and_kept(
    driver: Path, master: Master, start_agent: StartAgent, eventually: Eventually
) -> None:
    agent = start_agent()
    await master.until(lambda: master.registrations)
    master.assign(
        "app-1-x1", UNTIL_TOLD, unit=1, gpu_memory_mib=500, user="ann", application_name="train"
    )
    await master.until_state("app-1-x1", RUNNING)
    pid = child_of(agent, "app-1-x1", eventually)
    fake_nvml.write_state(driver, [1000], {0: {pid: 300}}, busy={pid: 40})
    await master.until(lambda: master.statuses["app-1-x1"].usage.gpu_memory_mib == 300)
    seen = len(master.heartbeats)
    await master.until(lambda: len(master.heartbeats) > seen + 5)
    (agent.work_dir / "containers" / "app-1-x1" / "told").touch()
    await master.until_state("app-1-x1", ENDED)
    use = await master.until(lambda: [x for beat in master.heartbeats for x in beat.gpu_uses])
    assert (use[0].user, use[0].application_name, use[0].part) == ("ann", "train", "executor")
    assert use[0].gpu_memory_mib == 500 and use[0].runs == 1 and len(use[0].use) == USE_PARTS
    assert use[0].use[-1].memory_mib == 300.0 and use[0].use[-1].gpu == 0.4
    await agent.end()
    (kept,) = json.loads((agent.work_dir / FILE).read_text())["kinds"]
    assert kept["kind"] == ["ann", "train", "executor", 0, 500] and kept["runs"] == 1


@pytest.mark.parametrize(("setting", "second"), [("queue", "app-b-x1"), ("dqngpu", "app-c-x1")])
async def test_what_complements_the_load_that_starts_is_next(
    driver: Path,
    master: Master,
    start_agent: StartAgent,
    tmp_path: Path,
    eventually: Eventually,
    setting: str,
    second: str,
) -> None:
    """Two fit at once. By the records a and b use nine tenths of the GPU, and c a twentieth."""
    work_dir = tmp_path / "work"
    work_dir.mkdir(mode=0o700)
    loads = {"all": 0.9, "a": 0.9, "b": 0.9, "c": 0.05}
    kinds = [
        {
            "kind": ["", name, "executor", 0, 1000 if name == "all" else 500],
            "runs": 3,
            "parts": [[load, 400.0, load, 0.0]] * USE_PARTS,
        }
        for name, load in loads.items()
    ]
    (work_dir / FILE).write_text(json.dumps({"version": 1, "kinds": kinds}))
    agent = start_agent(gpu_waiters=setting, cores=4, memory_mib=2048)
    await master.until(lambda: master.registrations)
    master.assign("app-all-x1", UNTIL_TOLD, unit=1, gpu_memory_mib=1000, application_name="all")
    await master.until_state("app-all-x1", RUNNING)
    child_of(agent, "app-all-x1", eventually)
    for name in ("a", "b", "c"):
        master.assign(f"app-{name}-x1", FOREVER, unit=1, gpu_memory_mib=500, application_name=name)
        await master.until_state(f"app-{name}-x1", WAITING)
    (agent.work_dir / "containers" / "app-all-x1" / "told").touch()
    await master.until_state("app-a-x1", RUNNING)
    await master.until_state(second, RUNNING)
    running = [x for x, status in master.statuses.items() if status.state == RUNNING]
    assert sorted(running) == ["app-a-x1", second]


async def test_a_learned_policys_guard_is_reported_and_follows_orders(
    driver: Path, master: Master, start_agent: StartAgent, tmp_path: Path
) -> None:
    """Its model is missing, so the rule decides, and the agent serves."""

    def latest() -> LearnedPolicy:
        return [x for beat in master.heartbeats for x in beat.policies][-1]

    setting = {
        "gpu_waiters": "dqngpu:learned",
        "gpu_waiters_model": str(tmp_path / "dqngpu-ddqn-1.npz"),
        "gpu_waiters_mode": "canary-50",
    }
    agent = start_agent(**setting)
    report = await master.until(lambda: any(x.policies for x in master.heartbeats) and latest())
    assert (report.policy, report.kind, report.mode, report.heuristic, report.model) == (
        "dqngpu-ddqn", "shared-gpu", "canary-50", "look-ahead", "none",
    )  # fmt: skip
    seen = len(master.heartbeats)
    await master.until(lambda: len(master.heartbeats) > seen + 2)
    assert not any(x.policies for x in master.heartbeats[seen:]), "nothing has changed"
    master.order_policy("dqngpu-ddqn", "on", 7)
    await master.until(lambda: latest().mode == "on")
    await agent.end()
    master.heartbeats.clear()
    start_agent(**setting)
    report = await master.until(lambda: any(x.policies for x in master.heartbeats) and latest())
    assert report.mode == "on", "it outlives the agent"


async def test_a_setting_that_names_nothing_is_refused_at_the_start(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(gpu_waiters="shortest")
    assert agent.process.wait(30) == 2
    assert "gpu_waiters is 'shortest'; write queue, dqngpu" in agent.log
