"""A worker of the simulated cluster: the production core of a node, and its machine.

This is the interpreter between them, like the agent on a real node: it executes the core's starts
and stops, reports ends, telemetry (means over the last second) and what a profile measured. The
duration of a run comes from the scenario's truth; the core learns it only from ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.pipelines.core import cluster_messages as cm
from hrm.pipelines.core import node_messages as nm
from hrm.pipelines.core.model import Device, SubtaskKey, TaskSpec
from hrm.pipelines.core.node import PipelineNode
from hrm.pipelines.core.node_messages import RunOutcome
from hrm.pipelines.sim.priors import noise
from hrm.pipelines.sim.profiles import FIELDS
from hrm.pipelines.sim.scenario import WorkerNode
from hrm.pipelines.sim.simulated_machine import SimulatedMachine

if TYPE_CHECKING:
    from hrm.pipelines.sim.run import Policies, Simulation

__all__ = ["REPORT_S", "SimulatedWorker"]

REPORT_S = 4.0
TELEMETRY_S = 1.0
START_S = 0.001
PROFILE_S = 8.0
"""A run that is also a profile takes 4 s longer for each of two metrics (table 3)."""
MEMORY_SHARE = 0.9
"""The part of a node's memory that it offers to pipelines."""
OUT_OF_MEMORY_S = 0.5


class SimulatedWorker:
    """A worker: the production core, its machine, and the interpreter between them."""

    def __init__(self, run: Simulation, worker: WorkerNode, policies: Policies) -> None:
        self.worker = worker
        self.run = run
        kind = worker.type
        self.capacity = nm.NodeCapacity(
            name=worker.name,
            cores=kind.cores,
            memory_mib=MEMORY_SHARE * kind.memory_mib,
            gpus=tuple(
                nm.GpuCard(index=i, model=kind.gpu_model, memory_mib=kind.gpu_memory_mib)
                for i in range(kind.gpus)
            ),
            platform=f"type-{kind.name}",
        )
        estimates = run.prior(kind.gpu_model)
        self.core = PipelineNode(self.capacity, policies.node(worker), estimates)
        self.machine = SimulatedMachine(kind, run.truth, run.queue.now)
        self.seen = self.machine.totals(run.queue.now)
        self.alive = True
        self.draining = False
        self.retries = 0
        self._cores: dict[int, tuple[SubtaskKey, float]] = {}
        """Runs on cores and their memory; those on GPUs are the machine's."""
        self._host_mib: dict[int, float] = {}
        self._extra: dict[int, tuple[Device, int]] = {}

    def handle(self, event: nm.NodeEvent) -> None:
        if not self.alive:
            return
        for command in self.core.handle(event):
            if isinstance(command, nm.StartSubtask):
                self._start(command)
            elif isinstance(command, nm.ReportSubtask):
                now, name = self.run.queue.now, self.worker.name
                self.run.deliver(cm.SubtaskReported(now=now, name=name, report=command))
            elif isinstance(command, nm.EndTask):
                now, name = self.run.queue.now, self.worker.name
                self.run.deliver(cm.TaskEnded(now=now, name=name, end=command))
            elif isinstance(command, nm.StopSubtask):
                self._stop(command)

    def place(self, task: TaskSpec, attempt: int) -> None:
        """The task's input has arrived."""
        self.handle(nm.TaskPlaced(now=self.run.queue.now, task=task, attempt=attempt))

    def report(self) -> None:
        """Telemetry and the heartbeat, until the node is gone or all is done."""
        if not self.alive or self.run.over:
            return
        now = self.run.queue.now
        before, after = self.seen, self.machine.totals(now)
        passed_s = max(1e-9, after.at_s - before.at_s)
        self.handle(
            nm.LoadSampled(
                now=now,
                cpu=min(1.0, (after.cores_s - before.cores_s) / passed_s / self.capacity.cores),
                memory=(after.memory_s - before.memory_s) / passed_s,
                received=min(1.0, (after.received_s - before.received_s) / passed_s),
                gpu_utilisation=tuple(
                    min(1.0, (new - old) / passed_s)
                    for new, old in zip(after.gpu_used_s, before.gpu_used_s, strict=True)
                ),
                gpu_memory_used_mib=tuple(gpu.memory_used_mib for gpu in self.machine.gpus),
            )
        )
        if self.run.undecided:
            load = self.core.load(now)
            self.run.deliver(cm.PipelineNodeReported(now=now, name=self.worker.name, load=load))
            self.run.share(self)
        if self.draining and not self.core.tasks:
            self.run.gone(self)
            return
        self.run.queue.at(now + REPORT_S - TELEMETRY_S, self.begin_sample)
        self.run.queue.at(now + REPORT_S, self.report)

    def begin_sample(self) -> None:
        """Begin the second of which the next report is a mean."""
        if self.alive:
            self.seen = self.machine.totals(self.run.queue.now)

    # --- commands of the core -----------------------------------------------------------------

    def _start(self, command: nm.StartSubtask) -> None:
        now, run, key = self.run.queue.now, self.run, command.key
        spec, task = run.subtask(key)
        kind = run.scenario.profiles.kinds[spec.kind]
        place = f"{command.device.value} {command.number}"
        run.queue.emit(f"{self.worker.name} {key.task_id} {key.subtask} {place}")
        machine, memory_mib = self.machine, kind.memory_mib(task.size_mb)
        machine.advance(now)
        if machine.memory_used_mib + memory_mib > machine.type.memory_mib:
            self._fails(command, RunOutcome.OUT_OF_MEMORY)
            return
        extra_s = START_S + (PROFILE_S if command.profile else 0.0)
        if command.device is Device.CPU:
            self._hold(command.run, memory_mib)
            machine.cores_used += kind.cpu_share
            self._cores[command.run] = key, kind.cpu_share
            end_s = now + extra_s + run.work.cpu_s[key]
            run.queue.at(end_s, self._core_done, command.run, memory_mib, command.profile)
            return
        gpu = machine.gpus[command.number]
        gpu_memory_mib = kind.gpu_memory_mib(task.size_mb)
        if gpu.memory_used_mib + gpu_memory_mib > gpu.memory_mib:
            self._fails(command, RunOutcome.OUT_OF_GPU_MEMORY)
            return
        self._hold(command.run, memory_mib)
        work_s = run.work.gpu_s[key][gpu.model] + extra_s
        gpu.advance(now)
        gpu.start(command.run, key, kind, work_s, gpu_memory_mib)
        if command.profile:
            self._extra[command.run] = command.device, command.number
        self._plan(command.number)

    def _hold(self, number: int, memory_mib: float) -> None:
        self._host_mib[number] = memory_mib
        self.machine.memory_used_mib += memory_mib

    def _free(self, number: int) -> float:
        memory_mib = self._host_mib.pop(number)
        self.machine.memory_used_mib = max(0.0, self.machine.memory_used_mib - memory_mib)
        return memory_mib

    def _fails(self, command: nm.StartSubtask, outcome: RunOutcome) -> None:
        self.retries += 1
        ended = (command.key, command.run, outcome, 0.0, 0.0)
        self.run.queue.at(self.run.queue.now + OUT_OF_MEMORY_S, self._ended, *ended)

    def _plan(self, place: int) -> None:
        """Plan the next end on a GPU from its present runs."""
        gpu = self.machine.gpus[place]
        following = gpu.next_end()
        if following is not None:
            at_s, number = following
            self.run.queue.at(at_s, self._gpu_done, place, number, gpu.version)

    def _core_done(self, number: int, memory_mib: float, profile: bool) -> None:
        if not self.alive or number not in self._cores:
            return
        self.machine.advance(self.run.queue.now)
        key, share = self._cores.pop(number)
        self.machine.cores_used = max(0.0, self.machine.cores_used - share)
        self._free(number)
        if profile:
            self._report_cells(key, number, on_gpu=False)
        self._ended(key, number, RunOutcome.DONE, memory_mib, 0.0)

    def _gpu_done(self, place: int, number: int, version: int) -> None:
        gpu = self.machine.gpus[place]
        if not self.alive or gpu.version != version:
            return
        now = self.run.queue.now
        self.machine.advance(now)
        gpu.advance(now)
        one = gpu.runs[number]
        gpu.stop(number)
        self._plan(place)
        memory_mib = self._free(number)
        if self._extra.pop(number, None) is not None:
            self._report_cells(one.key, number, on_gpu=True)
        self._ended(one.key, number, RunOutcome.DONE, memory_mib, one.memory_mib, on_gpu=True)

    def _report_cells(self, key: SubtaskKey, number: int, *, on_gpu: bool) -> None:
        """Two of the row's metrics, as measured by a profile of 4 s."""
        spec, _ = self.run.subtask(key)
        kind = self.run.scenario.profiles.kinds[spec.kind]
        cells = {"cpu": kind.cpu_share}
        if on_gpu:
            cells = dict(zip(FIELDS, kind.features, strict=True))
        rng = self.run.rng
        names = sorted(cells)
        drawn = rng.permutation(len(names))[:2]
        noisy = {names[i]: float(np.clip(cells[names[i]] * noise(rng), 0.0, 1.0)) for i in drawn}
        now = self.run.queue.now
        self.handle(nm.SubtaskProfiled(now=now, key=key, run=number, cells=noisy))

    def _ended(
        self,
        key: SubtaskKey,
        number: int,
        outcome: RunOutcome,
        memory_mib: float,
        gpu_memory_mib: float,
        *,
        on_gpu: bool = False,
    ) -> None:
        """``on_gpu``: with its use of the GPU, which scenarios have as constant over a run."""
        use: tuple[GpuUsePart, ...] = ()
        if on_gpu:
            spec, _ = self.run.subtask(key)
            features = self.run.scenario.profiles.kinds[spec.kind].features
            load = dict(zip(FIELDS, features, strict=True))
            use = (GpuUsePart(load["sm"], gpu_memory_mib, load["sm"], 0.0),) * USE_PARTS
        event = nm.SubtaskEnded(
            now=self.run.queue.now,
            key=key,
            run=number,
            outcome=outcome,
            memory_mib=memory_mib,
            gpu_memory_mib=gpu_memory_mib,
            gpu_use=use,
        )
        self.handle(event)

    def _stop(self, command: nm.StopSubtask) -> None:
        now = self.run.queue.now
        self.machine.advance(now)
        if command.run in self._cores:
            _, share = self._cores.pop(command.run)
            self.machine.cores_used = max(0.0, self.machine.cores_used - share)
        for place, gpu in enumerate(self.machine.gpus):
            if command.run in gpu.runs:
                gpu.advance(now)
                gpu.stop(command.run)
                self._plan(place)
        if command.run in self._host_mib:
            self._free(command.run)
            ended = (command.key, command.run, RunOutcome.STOPPED, 0.0, 0.0)
            self.run.queue.at(now, self._ended, *ended)
