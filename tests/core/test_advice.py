"""Messages name what the user can change: Spark's settings, or what pipelines have instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.agent.containers.container_dir import Ended
from hrm.agent.gpu.device_memory import device_memory_message
from hrm.agent.machine import ending
from hrm.agent.tracker import memory_message
from hrm.core.messages import commands as c
from hrm.core.tenancy.queue_rules import QueueRefusal, place
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.advice import DRIVER, EXECUTOR, WORKER, Advice, advice_for
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerSpec,
    Gpu,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.core.vocabulary.partitioning import Core, Hardware, Partitioning
from hrm.testing.virtual import VirtualCluster, unit

POOL, SPARK = ApplicationId("pipelines-20260101000000-1-0001"), ApplicationId("app-1")
SSD = NodeRequirement(labels=frozenset({"ssd"}))


@pytest.mark.parametrize(
    ("application_id", "advice"),
    [(POOL, WORKER), (SPARK, EXECUTOR), (ApplicationId("driver-20260101-0001"), DRIVER)],
)
def test_advice_follows_the_kind_of_application(
    application_id: ApplicationId, advice: Advice
) -> None:
    assert advice_for(application_id) is advice


def refused(cluster: VirtualCluster, app: ApplicationId) -> str:
    cluster.settle()
    (notice,) = [x for x in cluster.notices[app] if isinstance(x, c.RequestRefused)]
    return notice.message


def node_with(gpus: int) -> VirtualCluster:
    """One node whose GPUs are one resource unit."""
    hardware = Hardware(
        cores=tuple(Core(x, 0) for x in range(4)),
        memory_mib=8192,
        gpus=tuple(Gpu(index=x, memory_mib=8000) for x in range(gpus)),
    )
    cluster = VirtualCluster()
    cluster.add_hardware("n1", hardware, Partitioning(gpus_per_unit=max(1, gpus)))
    cluster.settle()
    return cluster


LARGE, LARGE_GPU = Resources(2, 100_000), Resources(1, 512, 90_000)


@pytest.mark.parametrize(
    ("asks", "requires", "gpus", "spark", "workers"),
    [
        (
            LARGE, None, 0,
            ["an executor requests", "lower spark.executor.cores or spark.executor.memory"],
            ["a worker of pipelines requests", "lower memory_mib of its steps",
             "pipeline_worker_memory_mib"],
        ),
        (
            LARGE_GPU, None, 1,
            ["lower spark.hrm.executor.gpu.memory"], ["lower gpu_memory_mib of its steps"],
        ),
        (
            LARGE_GPU, None, 0,
            ["unset spark.executor.resource.gpu.amount"], ["give its steps a version for cores"],
        ),
        (
            Resources(1, 512), SSD, 0,
            ["or change spark.hrm.node.label"], ["change Client(node_labels=...) or --node-label"],
        ),
        (
            Resources(1, 512, 4_000), None, 2,
            ["gpus_per_unit = 1 for agents with", "spark.executor.resource.gpu.amount to 2"],
            ["gpus_per_unit = 1 for agents, or give its steps a version for cores"],
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_what_to_change(
    asks: Resources,
    requires: NodeRequirement | None,
    gpus: int,
    spark: list[str],
    workers: list[str],
) -> None:
    def message(new_id: ApplicationId | None) -> str:
        cluster = node_with(gpus)
        return refused(cluster, cluster.submit(1, asks, requires=requires, new_id=new_id))

    of_spark, of_workers = message(None), message(POOL)
    assert all(part in of_spark for part in spark), of_spark
    assert all(part in of_workers for part in workers), of_workers
    assert "spark" not in of_workers and "executor" not in of_workers


def test_a_refusal_of_a_queue_names_how_to_choose_another() -> None:
    spec = spec_from("root.small", {"maximum": {"cores": 1}})
    cluster = VirtualCluster([unit("n1", vcores=8)], queues=[spec])
    of_spark = refused(cluster, cluster.submit(1, Resources(4, 512), queue="small"))
    of_workers = refused(cluster, cluster.submit(1, Resources(4, 512), queue="small", new_id=POOL))
    assert "submit to another queue (spark.hrm.queue)" in of_spark
    assert "submit to another queue (Client(queue=...) or --queue)" in of_workers
    tree = cluster.master.master_state.queues.tree
    closed = tree.changed((), (spec_from("root.small", {"submitters": ["ada"]}),))
    with pytest.raises(QueueRefusal, match=r"name another queue \(Client\(queue=\.\.\.\) or"):
        place(closed, (), asked="small", user="eve", setting=WORKER.queue)


def test_the_end_of_a_container_over_its_memory_names_what_to_raise() -> None:
    assert "raise spark.executor.memoryOverhead" in memory_message(600, 512, 256)
    assert memory_message(600, 512, 256, DRIVER).startswith(
        "used 600 MiB of 512 MiB (spark.driver.memory of 256 MiB + overhead of 256 MiB); raise "
        "spark.driver.memoryOverhead"
    )
    assert memory_message(600, 512, 0, WORKER) == (
        "used 600 MiB of 512 MiB; raise memory_mib of its steps, or pipeline_worker_memory_mib of "
        "the master, or give tasks less data"
    )
    assert "raise spark.hrm.executor.gpu.memory" in device_memory_message(600, 500)
    assert "raise gpu_memory_mib of its steps" in device_memory_message(600, 500, WORKER)
    assert "declare a GPU version of the step" in device_memory_message(600, 0, WORKER)


def test_exit_codes_of_spark_are_no_reasons_of_others_ends() -> None:
    def message(application_id: ApplicationId) -> str:
        spec = ContainerSpec(
            container_id=ContainerId(f"{application_id}-x1"),
            application_id=application_id,
            executor_id="1",
            resource_profile_id=0,
            workload_class=WorkloadClass.BATCH,
            resources=Resources(1, 512),
            unit_id=ResourceUnitId("n1/cpu"),
        )
        ended = Ended(started=True, exit_code=52, last_words="its own words")
        killed = replace(ended, memory_kills=1)
        return f"{ending(ended, None, spec).message}\n{ending(killed, None, spec).message}"

    assert "raise spark.executor.memory" in message(SPARK)
    assert "spark.executor" not in message(POOL) and "its own words" in message(POOL)
    assert "raise memory_mib of its steps" in message(POOL)
