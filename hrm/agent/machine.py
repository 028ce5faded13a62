"""This machine as a node: its name, its identity, its resources, its isolation.

The identity is kept in the work directory and locked while an agent runs. Nodes of one name and
different identities are two agents, of which the master admits one; the ownership key, readable by
the agent alone, proves which.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pynvml
import structlog

from hrm import ownership_keys
from hrm.agent.containers import shim
from hrm.agent.containers.container_dir import Ended, StopOrder
from hrm.agent.gpu.device_memory import DeviceMemory
from hrm.agent.gpu.devices import GpuDevices, find_gpu_devices
from hrm.agent.hardware import cores as hardware_cores
from hrm.agent.hardware import find_gpus, numa_distances
from hrm.agent.isolation import Detection, detect
from hrm.agent.platform_name import platform_name
from hrm.agent.run_as import RunAs
from hrm.agent.startup.warm import reserved_mib
from hrm.agent.tracker import memory_message
from hrm.config import AgentSettings
from hrm.core.node.auto_partitioning import AutoBindingRules
from hrm.core.node.core import NodeCore
from hrm.core.node.gpu_waiters import GpuWaiterPolicy
from hrm.core.vocabulary.advice import EXECUTOR, advice_for
from hrm.core.vocabulary.model import (
    NOTHING,
    ContainerEnd,
    ContainerSpec,
    EndCause,
    NodeName,
    Resources,
    ResourceUnit,
)
from hrm.core.vocabulary.partitioning import BindingMode, Hardware, Partitioning, partition
from hrm.durable import write_durably
from hrm.errors import InvalidConfig, InvalidRequest

__all__ = ["Machine", "auto_binding", "describe", "ending", "keep_binding", "load_binding"]

BINDING_FILE = "binding.json"
OWNERSHIP_KEY_FILE = "ownership-key"

_MIB = 1024 * 1024
_RESERVE_MIB = 1024
_log = structlog.get_logger("hrm.agent")

_SIGNALS = {
    137: "killed by SIGKILL from outside of HRM",
    143: "ended by SIGTERM from outside of HRM",
}
_EXIT_CODES = {
    50: "an exception that nothing caught ended the executor",
    52: "the JVM ran out of heap; raise spark.executor.memory, or use more partitions",
    53: "the executor could not make its local directories; is the disk full?",
    56: "the executor could not reach its driver by heartbeat",
    58: "the executor could not register its blocks with its driver again",
    **_SIGNALS,
}
"""Spark's own, for executors; a driver has those of its program, a worker of pipelines Python's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine as seen by its agent. ``incarnation`` is new with every agent process."""

    name: NodeName
    identity: str
    ownership_key: str = field(repr=False)
    incarnation: str
    hardware: Hardware
    binding: Partitioning
    units: tuple[ResourceUnit, ...]
    isolation: Detection
    run_as: RunAs
    gpu_devices: GpuDevices
    device_memory: DeviceMemory | None = None
    platform: str = ""

    @property
    def capacity(self) -> Resources:
        """All that the node offers, shared cores counted once."""
        return sum((unit.own_capacity for unit in self.units), NOTHING)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for operators on how this node isolates its containers."""
        candidates = (
            f"isolation: {self.isolation.explanation}",
            f"run as: {self.run_as.remark}",
            self.gpu_devices.remark(self.isolation.driver),
            _memory_remark(self),
        )
        return tuple(remark for remark in candidates if remark)

    def core(self, settings: AgentSettings, gpu_waiters: GpuWaiterPolicy | None = None) -> NodeCore:
        """The core of its agent, without containers."""
        return NodeCore(
            self.name,
            self.units,
            hardware=self.hardware,
            binding=self.binding,
            auto_binding=auto_binding(settings),
            preemption_grace_s=settings.preemption_grace_s if settings.preemption else None,
            yield_grace_s=settings.yield_grace_s,
            gpu_waiters=gpu_waiters,
        )

    @staticmethod
    @contextlib.contextmanager
    def prepare(settings: AgentSettings) -> Iterator[Machine]:
        """Lock the work directory and find the resources to offer.

        Raises:
            InvalidConfig: the directory is another agent's or cannot be written, or a setting does
                not work on this machine.
        """
        with _locked_identity(settings.work_dir) as identity:
            name = NodeName(
                settings.name or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "node"
            )
            hardware = _offer(settings)
            platform = settings.platform or platform_name(gpu.name for gpu in hardware.gpus)
            isolation = detect(
                settings.isolation,
                identity,
                vcores=len(hardware.cores),
                cpu_limit=settings.cpu_limit,
            )
            hardware = replace(hardware, pins=isolation.driver.pins_cpus)
            binding = load_binding(settings)
            try:
                units = partition(name, hardware, binding)
            except InvalidRequest as error:
                raise InvalidConfig(f"this node cannot be bound as set: {error}") from error
            _log_partitioning(hardware, binding, units)
            asked_for_it = settings.auto_binding and "auto_binding" in settings.model_fields_set
            if asked_for_it and binding.mode is not BindingMode.PARTIAL:
                _log.warning(
                    "auto_binding changes a partial binding alone; hrm node bind, or binding_mode, "
                    "makes it one",
                    binding=str(binding),
                )
            run_as = RunAs(settings)
            gpu_devices = find_gpu_devices(hardware.gpus, settings.gpus)
            yield Machine(
                name=name,
                identity=identity,
                ownership_key=_ownership_key(settings.work_dir),
                incarnation=uuid.uuid4().hex,
                hardware=hardware,
                binding=binding,
                units=units,
                isolation=isolation,
                run_as=run_as,
                gpu_devices=gpu_devices,
                device_memory=_watch_device_memory(settings, hardware),
                platform=platform,
            )


def _watch_device_memory(settings: AgentSettings, hardware: Hardware) -> DeviceMemory | None:
    real = [gpu for gpu in hardware.gpus if not gpu.declared]
    if not settings.gpu_memory_watch or not real:
        return None
    try:
        return DeviceMemory(real)
    except pynvml.NVMLError as error:
        _log.warning("device memory is not watched", why=str(error))
        return None


def _memory_remark(machine: Machine) -> str:
    if not machine.hardware.gpus:
        return ""
    if machine.device_memory is not None:
        return "device memory: watched through NVML; a container over its share is ended"
    if all(gpu.declared for gpu in machine.hardware.gpus):
        return "device memory: counted only: the GPUs are declared, they have no device"
    return "device memory: counted only (gpu_memory_watch = false, or NVML does not respond)"


@contextlib.contextmanager
def _locked_identity(work_dir: Path) -> Iterator[str]:
    path = work_dir / "identity"
    try:
        work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise OSError(errno.EINVAL, f"{path.name} is no regular file; remove it")
        file = path.open("a+", errors="replace")
        path.chmod(0o600)
    except OSError as error:
        raise InvalidConfig(
            f"cannot use the work directory {work_dir}: {error.strerror}; choose another with "
            f"--work-dir or HRM_AGENT_WORK_DIR"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidConfig(
                f"another agent uses {work_dir}; set another directory for this one with "
                f"--work-dir or HRM_AGENT_WORK_DIR, or end the other"
            ) from error
        file.seek(0)
        identity = file.read().strip()
        if not re.fullmatch(r"[0-9a-f]{32}", identity):
            identity = uuid.uuid4().hex
            file.truncate(0)
            file.write(identity + "\n")
            file.flush()
        yield identity


def _ownership_key(work_dir: Path) -> str:
    """What proves to the master that this is the node of its name. The identity does not: control
    groups have it in their names."""
    path = work_dir / OWNERSHIP_KEY_FILE
    try:
        kept = path.read_text().strip() if path.exists() else ""
        if ownership_keys.is_key(kept):
            path.chmod(0o600)
            return kept
        key = ownership_keys.new_key()
        write_durably(path, f"{key}\n".encode(), mode=0o600)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"cannot use the node's ownership key {path}: {error}; put back the file that was "
            f"there, or remove it: the master then treats the agent as a different one"
        ) from error
    return key


def _wanted(settings: AgentSettings) -> Partitioning:
    return Partitioning(
        mode=BindingMode(settings.binding_mode),
        bound_cores=settings.gpu_bound_cores,
        reserve_cores=settings.cpu_reserve_cores,
        gpu_host_memory_mib=settings.gpu_host_memory_mib,
        gpu_limit=settings.gpu_limit,
        gpus_per_unit=settings.gpus_per_unit,
    )


def load_binding(settings: AgentSettings) -> Partitioning:
    """The binding that ``keep_binding`` wrote; the settings' own if they have changed since."""
    wanted = _wanted(settings)
    path = settings.work_dir / BINDING_FILE
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path.name} is no regular file")
        kept = json.loads(path.read_text())
        if kept["settings"] == _plain(wanted):
            return Partitioning(**{**kept["binding"], "mode": BindingMode(kept["binding"]["mode"])})
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("the binding that was kept is unreadable; using the settings", why=str(error))
    return wanted


def auto_binding(settings: AgentSettings) -> AutoBindingRules | None:
    """The rules by which the node changes its binding by itself; None: it does not."""
    if not settings.auto_binding:
        return None
    return AutoBindingRules(
        window=settings.auto_binding_window,
        busy_percent=settings.auto_binding_busy_percent,
        idle_percent=settings.auto_binding_idle_percent,
        cores_min=settings.auto_binding_cores_min,
        pause_s=settings.auto_binding_pause_s,
    )


def keep_binding(settings: AgentSettings, binding: Partitioning) -> None:
    """Record a binding that replaced that of the settings, for the next start of this agent."""
    document = {"settings": _plain(_wanted(settings)), "binding": _plain(binding)}
    shim.write_json(settings.work_dir / BINDING_FILE, document)


def _plain(binding: Partitioning) -> dict[str, Any]:
    return {**asdict(binding), "mode": binding.mode.value}


def _log_partitioning(
    hardware: Hardware, binding: Partitioning, units: tuple[ResourceUnit, ...]
) -> None:
    for gpu in hardware.gpus:
        _log.info("GPU", what=str(gpu), numa=gpu.numa)
    bound = hardware.gpus and binding.mode is not BindingMode.SHARED
    if bound and not any(unit.cpus for unit in units):
        _log.warning(
            "cores are bound to GPUs by count only: this isolation cannot pin them, or more are "
            "offered than the machine has"
        )


def _offer(settings: AgentSettings) -> Hardware:
    """All cores and memory to partition. Offering more than the machine has is logged."""
    cores = len(os.sched_getaffinity(0))
    total_mib = psutil.virtual_memory().total // _MIB
    memory_mib = settings.memory_mib or total_mib - max(_RESERVE_MIB, total_mib // 10)
    memory_mib -= reserved_mib(settings)
    if memory_mib <= 0:
        raise InvalidConfig(
            f"this machine has {total_mib} MiB, too little to reserve "
            f"{_RESERVE_MIB} MiB for the system; "
            f"say what to offer with --memory-mib or HRM_AGENT_MEMORY_MIB"
        )
    vcores = settings.cores or cores
    if vcores > cores or memory_mib > total_mib:
        _log.warning(
            "offering more than the machine has",
            vcores=vcores,
            cores=cores,
            memory_mib=memory_mib,
            total_mib=total_mib,
        )
    return Hardware(
        cores=hardware_cores(settings.cores),
        memory_mib=memory_mib,
        gpus=find_gpus(settings.gpus),
        distances=numa_distances(),
        run_limit=settings.run_limit,
    )


def describe(machine: Machine, master: str) -> str:
    """The line by which a user, or a script, learns that the agent serves."""
    name, isolation = machine.name, machine.isolation.driver.name
    capacity = machine.capacity
    return f"agent {name} ready (isolation {isolation}, {capacity}) -> master {master}"


def ending(ended: Ended, order: StopOrder | None, spec: ContainerSpec | None) -> ContainerEnd:
    """The message of an end: the limit that was exceeded, else the order, else the end's own.

    The limit comes first: an application that fails because the kernel killed one of its processes
    may order the end of the others before the limit is noticed, and must still learn the reason.
    """
    if ended.memory_kills and (order is not None or ended.exit_code != 0):
        limit_mib = spec.resources.memory_mib if spec else 0
        heap_mib = spec.heap_mib if spec else 0
        advice = advice_for(spec.application_id) if spec else EXECUTOR
        message = memory_message(None, limit_mib, heap_mib, advice)
        return ContainerEnd(cause=EndCause.MEMORY_LIMIT, exit_code=ended.exit_code, message=message)
    if order is not None:
        return ContainerEnd(cause=order.cause, exit_code=ended.exit_code, message=order.reason)
    if not ended.started:
        return ContainerEnd(cause=EndCause.LAUNCH_FAILED, message=ended.problem)
    if ended.problem:
        return ContainerEnd(cause=EndCause.LOST, message=ended.problem)
    if ended.exit_code == 0:
        return ContainerEnd(cause=EndCause.EXITED, exit_code=0, message="exited with code 0")
    message = f"exited with code {ended.exit_code}"
    is_executor = spec is None or advice_for(spec.application_id) is EXECUTOR
    codes = _EXIT_CODES if is_executor else _SIGNALS
    if ended.exit_code in codes:
        message += f": {codes[ended.exit_code]}"
    elif ended.last_words:
        message += f": {ended.last_words}"
    return ContainerEnd(cause=EndCause.EXITED, exit_code=ended.exit_code, message=message)
