"""GPUs and bindings of an agent process: what its containers see, and repartitioning."""

from __future__ import annotations

import os
import time

import pytest

from hrm.agent.isolation import Cgroup1, Cgroup2
from hrm.v1 import node_pb2
from tests.agent.conftest import ENDED, RUNNING, AgentProcess, Master, StartAgent

GPUS = [{"memory_mib": 1000}, {"memory_mib": 2000}]
SEEN = (
    'echo "$CUDA_VISIBLE_DEVICES,$HRM_GPU_INDEX,$HRM_GPU_MEMORY_MIB";'
    " grep Cpus_allowed_list /proc/self/status"
)


OPEN = "for x in full random null; do (: < /dev/$x) 2> /dev/null && echo $x; done; true"


def units(registration: node_pb2.RegisterNode) -> list[str]:
    """Each unit with the vcores that its containers may hold now."""
    every = registration.resource_units
    return [f"{u.resource_unit_id}:{u.capacity.vcores - u.lent.vcores}" for u in every]


async def seen(master: Master, agent: AgentProcess, name: str, unit: int, gpu_mib: int) -> str:
    """What a container on that unit reports about itself."""
    await master.until(lambda: master.registrations)
    master.assign(name, SEEN, unit=unit, gpu_memory_mib=gpu_mib)
    status = await master.until_state(name, ENDED)
    assert status.end.exit_code == 0, status.end.message
    return agent.stdout_of(name)


async def test_a_container_sees_the_gpu_of_its_unit_and_no_other(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(gpus=GPUS)
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    assert units(registration) == ["node-1/cpu:2", "node-1/gpu0:2", "node-1/gpu1:2"]
    assert registration.resource_units[2].gpu.declared
    assert (await seen(master, agent, "app-1-x1", 2, 700)).startswith("1,1,700\n")
    assert (await seen(master, agent, "app-1-x2", 0, 0)).startswith(",,\n")


async def test_the_device_of_a_gpu_is_closed_to_all_others(
    master: Master, start_agent: StartAgent
) -> None:
    """Character devices that every machine has represent the GPUs."""
    if not Cgroup1("probe", 1).restricts_devices:
        pytest.skip("no devices controller of cgroup v1 here")
    devices = [GPUS[0] | {"device": "/dev/full"}, GPUS[1] | {"device": "/dev/random"}]
    agent = start_agent(gpus=devices, isolation="cgroup1")
    await master.until(lambda: master.registrations)
    for name, unit, gpu_mib, may_open in [
        ("app-1-x1", 0, 0, "null"),
        ("app-1-x2", 1, 500, "full null"),
        ("app-1-x3", 2, 500, "random null"),
    ]:
        master.assign(name, OPEN, unit=unit, gpu_memory_mib=gpu_mib)
        status = await master.until_state(name, ENDED)
        assert status.end.exit_code == 0, status.end.message
        stdout_of = agent.stdout_of(name)
        assert stdout_of.split() == may_open.split(), name


async def test_bound_cores_are_enforced(master: Master, start_agent: StartAgent) -> None:
    pinning = [d for d in (Cgroup2("probe", 1), Cgroup1("probe", 1)) if d.pins_cpus]
    if not pinning or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("no cpuset controller here, or one core only")
    agent = start_agent(gpus=GPUS[:1], binding_mode="partial", isolation=pinning[0].name)
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    cpu, gpu = registration.resource_units
    assert (len(cpu.cpus), len(gpu.cpus)) == (1, 1)
    assert set(cpu.cpus).isdisjoint(gpu.cpus)
    stdout_of = await seen(master, agent, "app-1-x1", 1, 700)
    assert stdout_of.split()[-1] == str(gpu.cpus[0])


async def test_an_agent_is_repartitioned_and_stays_so(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(gpus=GPUS[:1])
    await master.until(lambda: master.registrations)
    master.rebind(1, mode="BINDING_MODE_PARTIAL", bound_cores=2)
    refused = await master.until(lambda: master.replies and master.replies[-1])
    assert not refused.accepted
    assert "leave 0 of 2, fewer than the 1 kept" in refused.message

    master.assign("app-1-x1", "echo set; exec sleep 600")
    await master.until_state("app-1-x1", RUNNING)
    master.rebind(2, mode="BINDING_MODE_PARTIAL")
    response = await master.until(lambda: len(master.replies) == 2 and master.replies[-1])
    assert response.accepted and response.message.startswith("node-1 is bound: partial, 1 cores")
    await master.until(lambda: len(master.registrations) == 2)
    assert units(master.registrations[-1]) == ["node-1/cpu:1", "node-1/gpu0:1"]
    assert master.statuses["app-1-x1"].state == RUNNING
    await agent.end()
    start_agent(gpus=GPUS[:1])
    await master.until(lambda: len(master.registrations) == 3)
    assert units(master.registrations[-1]) == ["node-1/cpu:1", "node-1/gpu0:1"]


async def test_a_process_that_runs_is_held_on_the_cores_that_its_unit_has(
    master: Master, start_agent: StartAgent
) -> None:
    """The node offers two cores. Each change takes effect while it runs, within seconds."""
    pinning = [d for d in (Cgroup2("probe", 1), Cgroup1("probe", 1)) if d.pins_cpus]
    every = sorted(os.sched_getaffinity(0))
    if not pinning or len(every) < 2:
        pytest.skip("no cpuset controller here, or one core only")
    agent = start_agent(gpus=GPUS[:1], isolation=pinning[0].name, keep_containers=True)
    await master.until(lambda: master.registrations)
    unpinned, offered = set(every), set(every[:2])

    async def bound(number: int, **binding: object) -> list[str]:
        """The units after a change, which takes at most five seconds."""
        began_s = time.monotonic()
        master.rebind(number, **binding)
        await master.until(lambda: len(master.registrations) == number + 1)
        assert time.monotonic() - began_s < 5.0
        assert master.replies[-1].accepted
        return units(master.registrations[-1])

    async def begun(name: str, unit: int, gpu_mib: int) -> int:
        master.assign(name, "echo $$; exec sleep 600", unit=unit, gpu_memory_mib=gpu_mib)
        await master.until_state(name, RUNNING)
        await master.until(lambda: agent.stdout_of(name).strip())
        return int(agent.stdout_of(name))

    first = await begun("app-1-x1", 0, 0)
    assert os.sched_getaffinity(first) == unpinned, "cores are shared"
    assert await bound(1, mode="BINDING_MODE_PARTIAL") == ["node-1/cpu:1", "node-1/gpu0:1"]
    (home,) = os.sched_getaffinity(first)
    second = await begun("app-1-x2", 1, 700)
    assert os.sched_getaffinity(second) == offered - {home}, "what was idle takes work"

    assert await bound(2, mode="BINDING_MODE_EVEN") == ["node-1/gpu0:1", "node-1/cpu:1"]
    assert os.sched_getaffinity(first) == {home}, "its unit is no more, and it keeps its core"
    assert os.sched_getaffinity(second) == offered - {home}
    await agent.end()
    agent = start_agent(gpus=GPUS[:1], isolation=pinning[0].name, keep_containers=True)
    await master.until(lambda: len(master.registrations) == 4)
    assert units(master.registrations[-1]) == ["node-1/gpu0:1", "node-1/cpu:1"]
    assert os.sched_getaffinity(first) | os.sched_getaffinity(second) == offered
    assert os.sched_getaffinity(first).isdisjoint(os.sched_getaffinity(second))
    master.order_stop("app-1-x1", grace_s=0.0)
    await master.until(lambda: len(master.registrations) == 5)
    assert units(master.registrations[-1]) == ["node-1/gpu0:2"]
    assert os.sched_getaffinity(second) == offered, "the core has followed"
    await bound(5, mode="BINDING_MODE_SHARED")
    assert os.sched_getaffinity(second) == unpinned, "no core is bound any more"
    master.order_stop("app-1-x2", grace_s=0.0)
