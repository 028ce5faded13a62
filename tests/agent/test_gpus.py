"""GPUs and bindings of an agent process: what its containers see, and repartitioning."""

from __future__ import annotations

import os

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
    return [f"{u.resource_unit_id}:{u.capacity.vcores}" for u in registration.resource_units]


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
    assert response.accepted and "1 at node-1/cpu" in response.message
    again = await master.until(lambda: len(master.registrations) == 2 and master.registrations[-1])
    assert [unit.draining for unit in again.resource_units] == [True, True]
    assert master.statuses["app-1-x1"].state == RUNNING

    master.order_stop("app-1-x1", grace_s=0.0)
    await master.until(lambda: len(master.registrations) == 3)
    assert units(master.registrations[-1]) == ["node-1/cpu:1", "node-1/gpu0:1"]
    await agent.end()
    start_agent(gpus=GPUS[:1])
    await master.until(lambda: len(master.registrations) == 4)
    assert units(master.registrations[-1]) == ["node-1/cpu:1", "node-1/gpu0:1"]
