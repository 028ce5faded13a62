"""From settings to what is specific to an agent of Spark: its containers' commands, what makes
executors start faster, the shuffle service.

``Agent`` itself does not depend on Spark: it takes a ``CommandOf`` and runs what that returns; a
test passes its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hrm.agent.containers import file_cache
from hrm.agent.containers.scratch import SHUFFLE_DIR, Scratch
from hrm.agent.drivers.driver_process import driver_launch, files_dir
from hrm.agent.machine import Machine
from hrm.agent.shuffle import ShuffleService
from hrm.agent.startup.class_archives import ArchiveKeeper
from hrm.agent.startup.warm import WarmPool
from hrm.agent.workers import worker_launch
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import ContainerSpec, Gpu, Shortcut
from hrm.core.vocabulary.node_requirement import Runtime
from hrm.errors import InvalidConfig
from hrm.spark.launch import (
    Java,
    Launch,
    Spark,
    executor_launch,
    find_java,
    find_spark,
    find_sparks,
    runtime_of,
    spark_of,
)
from hrm.spark.node_conf import NodeConf, node_conf

if TYPE_CHECKING:
    from hrm.agent.gpu.use_records import GpuUseRecords

__all__ = ["CommandOf", "StartShortcuts", "gpu_use_records", "shuffle_service", "spark_commands"]

_PLAIN_WAITERS = AgentSettings.model_fields["gpu_waiters"].default

CommandOf = Callable[[ContainerSpec, Path, str, str, Sequence[Gpu]], Launch]
"""Makes the command of a container: specification, work directory, addresses of its two logs, the
GPU of its unit."""


class StartShortcuts:
    """Archives of classes, one set for each Spark, and warm JVMs of all. Needs a running event
    loop."""

    def __init__(
        self,
        settings: AgentSettings,
        sparks: Sequence[Spark],
        java: Java,
        confs: Mapping[Path, NodeConf],
    ) -> None:
        """``confs``: the configuration directories of each Spark, by its home."""
        turn = asyncio.Lock()  # trainings are long, and one after the other is as soon
        self.archives = {
            spark.version: ArchiveKeeper(
                settings, spark, java, turn=turn, is_default=spark is sparks[0]
            )
            for spark in sparks
        }
        self.warm = WarmPool(settings, sparks, confs)

    def start(self) -> None:
        """Start preparing, in the background."""
        for keeper in self.archives.values():
            keeper.start()
        self.warm.start()

    async def close(self) -> None:
        """End what waits or is being prepared; executors that took a JVM continue."""
        await self.warm.close()
        for keeper in self.archives.values():
            await keeper.close()

    def report(self) -> tuple[Shortcut, ...]:
        """For ``hrm node show``."""
        found = [shortcut for keeper in self.archives.values() for shortcut in keeper.report()]
        return (*found, *self.warm.report())


def conf_of(settings: AgentSettings, spark: Spark) -> NodeConf:
    """The node's configuration directories.

    Raises:
        InvalidConfig: a setting names one that is not there.
    """
    return node_conf(
        spark.home,
        spark_conf_dir=settings.spark_conf_dir,
        hadoop_conf_dir=settings.hadoop_conf_dir,
        yarn_conf_dir=settings.yarn_conf_dir,
        dist_classpath=settings.dist_classpath,
    )


def spark_commands(
    settings: AgentSettings, machine: Machine
) -> tuple[CommandOf, tuple[Runtime, ...], StartShortcuts]:
    """The commands of drivers and executors, the Sparks to offer, and the shortcuts that the
    commands take. Needs a running event loop.

    Raises:
        InvalidConfig: there is no Spark or no Java that fits.
    """
    sparks = find_sparks(settings.spark_home, settings.spark_homes)
    java = find_java(settings.java_home)
    confs = {spark.home: conf_of(settings, spark) for spark in sparks}
    shortcuts = StartShortcuts(settings, sparks, java, confs)

    def command_of(
        spec: ContainerSpec, work_dir: Path, stdout: str, stderr: str, gpus: Sequence[Gpu]
    ) -> Launch:
        if spec.launch.worker:
            return worker_launch(
                spec, settings=settings, work_dir=work_dir, node=machine.name, gpus=gpus,
                platform=machine.platform,
            )  # fmt: skip
        account = machine.run_as.account_of(spec.user)
        spark = spark_of(spec.launch.spark_version, sparks)
        if spec.launch.driver:
            return driver_launch(
                spec,
                spark=spark,
                java=java,
                settings=settings,
                work_dir=work_dir,
                cache_dir=file_cache.own_place(files_dir(settings), account),
                node=machine.name,
                stdout_url=stdout,
                stderr_url=stderr,
                conf=confs[spark.home],
            )
        return executor_launch(
            spec,
            spark=spark,
            java=java,
            host=settings.host,
            work_dir=work_dir,
            node=machine.name,
            stdout_url=stdout,
            stderr_url=stderr,
            gpus=gpus,
            archive=shortcuts.archives[spark.version].choose(spec, other_user=account is not None),
            conf=confs[spark.home],
        )

    return command_of, tuple(runtime_of(x, java) for x in sparks), shortcuts


def gpu_use_records(settings: AgentSettings, machine: Machine) -> GpuUseRecords | None:
    """What containers use of GPUs, and the policy that orders them by that, if one is set; None:
    the node measures no GPU, and orders by none.

    Raises:
        InvalidConfig: a setting names no policy, or no model for it.
    """
    if machine.device_memory is None and settings.gpu_waiters == _PLAIN_WAITERS:
        return None
    # numpy, which a node without GPUs does without
    from hrm.agent.gpu import waiter_guard
    from hrm.agent.gpu.use_records import FILE, GpuUseRecords
    from hrm.agent.gpu.waiter_policy import sharing_policy
    from hrm.policies.shared_gpu.guarded import GuardedGpuSharing
    from hrm.policies.shared_gpu.waiters import ProfiledWaiters

    sharing = sharing_policy(
        settings.gpu_waiters,
        model=settings.gpu_waiters_model,
        mode=settings.gpu_waiters_mode,
        node=machine.name,
    )
    records = GpuUseRecords(settings.work_dir / FILE)
    if sharing is not None:
        records.policy = ProfiledWaiters(records.uses, sharing)
    if isinstance(sharing, GuardedGpuSharing):
        records.guard = waiter_guard.WaiterGuard(sharing, settings.work_dir / waiter_guard.FILE)
    return records


def shuffle_service(
    settings: AgentSettings, scratch: Scratch, *, run_as: bool
) -> ShuffleService | None:
    """The node's shuffle service; None: not configured. ``run_as``: containers run as
    their submitters.

    Raises:
        InvalidConfig: the two exclude each other, or there is no Spark or Java for it.
    """
    if not settings.shuffle_service:
        return None
    if run_as:
        raise InvalidConfig(
            "shuffle_service and run_as = submitter exclude each other: the service reads shuffle "
            "files as root, and a link in the place of one would let any user read any file; set "
            "run_as = off, leave shuffle_service out, or run the agent as a user other than root"
        )
    return ShuffleService(
        directory=settings.work_dir.absolute() / SHUFFLE_DIR,
        port=settings.shuffle_service_port,
        memory_mib=settings.shuffle_service_memory_mib,
        spark=find_spark(settings.spark_home),
        java=find_java(settings.java_home),
        places=scratch.shuffle_places,
    )
