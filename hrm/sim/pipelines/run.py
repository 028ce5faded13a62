"""One run of pipeline tasks on a simulated cluster: the production cores in virtual time.

``PipelineCluster`` places tasks, a ``PipelineNode`` on every worker starts subtasks; both are the
ones that run in production, with the same policies and the same estimates. Simulated are the
machines (``machine``), the network (a task's input goes over its node's link), telemetry (means
over the last second, reported every ``REPORT_S``), and what costs time around the work:

- a decision of the cluster policy holds the manager for ``DECISION_S``, one after the other, which
  is the budget of a decision, above what any policy here takes;
- a start on a node costs ``START_S``;
- a run that is also a profile takes 4 s longer for each of the two metrics (table 3).

What policies know comes from estimates. They begin with a few finished runs of each row and with
profiled loads, both with the error that table 3 gives for profiles of 4 s (``warm``), or knowing
nothing; from then on they hear of every run that ends. They never see the truth.
"""

from __future__ import annotations

import hashlib
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hrm.core.model import NodeName
from hrm.core.pipeline import cluster_messages as cm
from hrm.core.pipeline import node_messages as nm
from hrm.core.pipeline.cluster import PipelineCluster
from hrm.core.pipeline.model import (
    SIZE_BUCKETS_MB,
    Choice,
    ClusterPolicy,
    ClusterView,
    Device,
    LearningEstimates,
    NodePolicy,
    SubtaskKey,
    SubtaskSpec,
    TaskId,
    TaskSpec,
    row_of,
)
from hrm.core.pipeline.node import PipelineNode
from hrm.core.pipeline.node_messages import RunOutcome, TaskOutcome
from hrm.sim.pipelines.interference import World, world
from hrm.sim.pipelines.machine import Machine, Totals
from hrm.sim.pipelines.measures import WARM_UP, Result, Span, balance, load_of, node_use
from hrm.sim.pipelines.scenario import SIZES_MB, Change, Scenario, Work, Worker, arrivals

__all__ = ["PROFILE_ERROR", "Policies", "Simulation", "simulate", "warm"]

REPORT_S = 4.0
TELEMETRY_S = 1.0
DECISION_S = 0.001
START_S = 0.001
LATENCY_S = 0.0005
PROFILE_S = 8.0
PROFILE_ERROR = 0.077
"""Mean relative error of a metric profiled for 4 s: table 3, 92.3 % accuracy."""
LOST_AFTER_S = 15.0
BALANCE_S = 10.0
MEMORY_SHARE = 0.9
"""Of a node's memory that it offers to pipelines."""
OUT_OF_MEMORY_S = 0.5
DRAIN_LIMIT_S = 7_200.0
"""A run ends that long after the last arrival, whatever is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What decides. ``node`` and ``estimates`` make one object for each node and the manager."""

    cluster_name: str
    node_name: str
    cluster: ClusterPolicy
    node: Callable[[Worker], NodePolicy]
    estimates: Callable[[], LearningEstimates]
    known: bool = True
    """Estimates begin ``warm``."""


class _Timed:
    """A cluster policy, with the wall-clock time of its decisions."""

    def __init__(self, inner: ClusterPolicy) -> None:
        self.inner = inner
        self.name = inner.name
        self.micros: list[float] = []

    def choose(self, task: TaskSpec, view: ClusterView, fits: Any) -> Choice:
        began = time.perf_counter_ns()
        choice = self.inner.choose(task, view, fits)
        self.micros.append((time.perf_counter_ns() - began) / 1e3)
        return choice

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        self.inner.ended(task_id, now=now, response_s=response_s, ok=ok)


class _Queue:
    """Virtual time and a hash of what happened."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0
        self._hash = hashlib.sha256()

    def at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (max(at_s, self.now), self._planned, action, arguments))

    def step(self) -> bool:
        if not self._heap:
            return False
        self.now, _, action, arguments = heapq.heappop(self._heap)
        action(*arguments)
        return True

    def say(self, what: str) -> None:
        self.events += 1
        self._hash.update(f"{self.now:.6f} {what}\n".encode())

    def hash(self) -> str:
        return self._hash.hexdigest()


class _Node:
    """A worker: the production core, its machine, and the interpreter between them."""

    def __init__(self, run: Simulation, worker: Worker, policies: Policies) -> None:
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
        estimates = policies.estimates()
        if policies.known:
            warm(estimates, run.scenario, kind.gpu_model)
        self.core = PipelineNode(self.capacity, policies.node(worker), estimates)
        self.machine = Machine(kind, run.truth, run.queue.now)
        self.begin = self.machine.totals(run.queue.now)
        self.seen = self.begin
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
                self._report(command)
            elif isinstance(command, nm.EndTask):
                self._end(command)
            elif isinstance(command, nm.StopSubtask):
                self._stop(command)

    def place(self, task: TaskSpec, attempt: int) -> None:
        """The task's input is here."""
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
            self.run.tell(cm.NodeReported(now=now, name=self.worker.name, load=load))
        if self.draining and not self.core.tasks:
            self.run.gone(self)
            return
        self.run.queue.at(now + REPORT_S - TELEMETRY_S, self.look)
        self.run.queue.at(now + REPORT_S, self.report)

    def look(self) -> None:
        """The beginning of the second that the next report is a mean of."""
        if self.alive:
            self.seen = self.machine.totals(self.run.queue.now)

    # --- what the core wants done -------------------------------------------------------------

    def _start(self, command: nm.StartSubtask) -> None:
        now, run, key = self.run.queue.now, self.run, command.key
        spec, task = run.subtask(key)
        kind = run.scenario.profiles.kinds[spec.kind]
        run.queue.say(f"{self.worker.name} {key[0]} {key[1]} {command.device.value} "
                      f"{command.number}")  # fmt: skip
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
        """Plan the next end on a GPU as things are now."""
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
            self._tell_cells(key, number, on_gpu=False)
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
            self._tell_cells(one.key, number, on_gpu=True)
        self._ended(one.key, number, RunOutcome.DONE, memory_mib, one.memory_mib)

    def _tell_cells(self, key: SubtaskKey, number: int, *, on_gpu: bool) -> None:
        """Two of the row's metrics, as a profile of 4 s sees them."""
        spec, _ = self.run.subtask(key)
        kind = self.run.scenario.profiles.kinds[spec.kind]
        cells = {"cpu": kind.cpu_share}
        if on_gpu:
            cells = dict(zip(("sm", "l1", "l2", "tex", "dram", "load", "store"),
                             kind.features, strict=True))  # fmt: skip
        rng = self.run.rng
        names = sorted(cells)
        drawn = rng.permutation(len(names))[:2]
        noisy = {
            names[i]: float(np.clip(cells[names[i]] * _noise(rng), 0.0, 1.0)) for i in drawn
        }
        now = self.run.queue.now
        self.handle(nm.SubtaskProfiled(now=now, key=key, run=number, cells=noisy))

    def _ended(
        self,
        key: SubtaskKey,
        number: int,
        outcome: RunOutcome,
        memory_mib: float,
        gpu_memory_mib: float,
    ) -> None:
        event = nm.SubtaskEnded(
            now=self.run.queue.now,
            key=key,
            run=number,
            outcome=outcome,
            memory_mib=memory_mib,
            gpu_memory_mib=gpu_memory_mib,
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

    def _report(self, command: nm.ReportSubtask) -> None:
        self.run.tell(
            cm.SubtaskReported(
                now=self.run.queue.now,
                name=self.worker.name,
                task_id=command.task_id,
                attempt=command.attempt,
                timing=command.timing,
            )
        )

    def _end(self, command: nm.EndTask) -> None:
        self.run.tell(
            cm.TaskEnded(
                now=self.run.queue.now,
                name=self.worker.name,
                task_id=command.task_id,
                attempt=command.attempt,
                outcome=command.outcome,
                message=command.message,
                timings=command.timings,
            )
        )


class Simulation:
    """A run that can be stepped: ``simulate`` runs one to its end, training steps by decisions."""

    def __init__(self, scenario: Scenario, policies: Policies, work: Work | None = None) -> None:
        self.scenario = scenario
        self.policies = policies
        self.work = work or arrivals(scenario)
        self.queue = _Queue()
        self.rng = np.random.default_rng([scenario.seed, 0xCE11])
        self.truth: World = world(scenario.world, scenario.profiles.kinds)
        estimates = policies.estimates()
        if policies.known:
            for model in sorted({one.type.gpu_model for one in scenario.all_workers}):
                warm(estimates, scenario, model)
        self.timed = _Timed(policies.cluster)
        self.cluster = PipelineCluster(self.timed, estimates)
        self.nodes: dict[NodeName, _Node] = {}
        self.left: list[_Node] = []
        self.ended: list[tuple[float, str, float, float]] = []
        self.failed = 0
        self.over = False
        self._samples: list[tuple[float, float, float]] = []
        self._uses: dict[NodeName, Totals] = {}
        self._manager_free_s = 0.0
        self._specs = {
            SubtaskKey(task.task_id, one.name): (one, task)
            for task in self.work.tasks
            for one in task.pipeline.subtasks
        }
        for worker in scenario.workers:
            self.join(worker)
        for change in scenario.changes:
            self.queue.at(change.at_s, self._change, change)
        for at_s, task in zip(self.work.arrives_s, self.work.tasks, strict=True):
            self.queue.at(at_s, self._arrive, task)
        self.queue.at(BALANCE_S, self._sample)
        self._limit_s = self.work.arrives_s[-1] + DRAIN_LIMIT_S
        self.spans: list[Span] = []
        self.queue.at(WARM_UP * self.work.arrives_s[-1], self._spans_begin)
        self.queue.at(self.work.arrives_s[-1], self._spans_end)

    def subtask(self, key: SubtaskKey) -> tuple[SubtaskSpec, TaskSpec]:
        return self._specs[key]

    @property
    def undecided(self) -> bool:
        """There may be a decision yet, for which the manager wants to know of the nodes."""
        return self.queue.now <= self.work.arrives_s[-1] or bool(self.cluster.queue)

    def step(self) -> bool:
        """Let the next thing happen; False: the run is over."""
        if self.over or self.queue.now > self._limit_s:
            return False
        return self.queue.step()

    def tell(self, event: cm.ClusterEvent) -> None:
        """The manager hears of it, and what it wants is done."""
        for command in self.cluster.handle(event):
            if isinstance(command, cm.PlaceTask):
                self._place(command)
            elif isinstance(command, cm.FinishTask):
                self._finish(command)
            elif isinstance(command, cm.CancelTask):
                node = self.nodes.get(command.node)
                if node is not None:
                    node.handle(
                        nm.TaskWithdrawn(
                            now=self.queue.now,
                            task_id=command.task_id,
                            attempt=command.attempt,
                            why=command.why,
                        )
                    )

    # --- nodes come and go --------------------------------------------------------------------

    def join(self, worker: Worker) -> None:
        node = self.nodes[worker.name] = _Node(self, worker, self.policies)
        now = self.queue.now
        self._uses[worker.name] = node.begin
        load = node.core.load(now)
        self.tell(cm.NodeJoined(now=now, capacity=node.capacity, load=load))
        # Nodes report out of step, as real ones do.
        phase = REPORT_S * (1.0 + (len(self.nodes) * 0.618) % 1.0)
        self.queue.at(now + phase - TELEMETRY_S, node.look)
        self.queue.at(now + phase, node.report)

    def gone(self, node: _Node) -> None:
        """Empty or dead: the manager forgets it."""
        node.alive = False
        self.left.append(self.nodes.pop(node.worker.name))
        self.tell(cm.NodeLost(now=self.queue.now, name=node.worker.name, why="it left"))

    def _change(self, change: Change) -> None:
        name = change.worker.name
        self.queue.say(f"{name} {change.what}")
        if change.what == "join":
            self.join(change.worker)
            return
        node = self.nodes.get(name)
        if node is None:
            return
        if change.what == "leave":
            node.draining = True
            self.tell(cm.NodeDraining(now=self.queue.now, name=name))
            node.handle(nm.DrainAsked(now=self.queue.now))
        else:
            node.alive = False
            self.queue.at(self.queue.now + LOST_AFTER_S, self._lost, node)

    def _lost(self, node: _Node) -> None:
        if self.nodes.get(node.worker.name) is node:
            self.gone(node)

    # --- tasks --------------------------------------------------------------------------------

    def _arrive(self, task: TaskSpec) -> None:
        self.tell(cm.TaskSubmitted(now=self.queue.now, task=task))

    def _place(self, command: cm.PlaceTask) -> None:
        now = self.queue.now
        self._manager_free_s = max(now, self._manager_free_s) + DECISION_S
        node = self.nodes[command.node]
        self.queue.say(f"{command.task.task_id} to {command.node}")
        arrives_s = node.machine.receive(self._manager_free_s + LATENCY_S, command.task.size_mb)
        self.queue.at(arrives_s, node.place, command.task, command.attempt)

    def _finish(self, command: cm.FinishTask) -> None:
        now = self.queue.now
        self.queue.say(f"{command.task_id} {command.outcome.value}")
        if command.outcome is TaskOutcome.DONE:
            task = self.cluster.ended[command.task_id].spec
            ideal_s = self.work.least_s(task)
            self.ended.append((now, str(command.node), command.response_s, ideal_s))
        else:
            self.failed += 1
        self.over = len(self.ended) + self.failed == len(self.work.tasks)

    # --- measuring ----------------------------------------------------------------------------

    def _sample(self) -> None:
        """Equations 7 to 10 over the last ten seconds, of the nodes that were there throughout."""
        if self.over:
            return
        now, uses = self.queue.now, []
        for name, node in self.nodes.items():
            after = node.machine.totals(now)
            before = self._uses.get(name)
            if before is not None and before.at_s < now - BALANCE_S / 2 and node.alive:
                uses.append(node_use(node.machine, before, after))
            self._uses[name] = after
        if uses:
            loads = np.minimum(1.0, load_of(uses))
            self._samples.append((now, balance(loads), float(loads.mean())))
        self.queue.at(now + BALANCE_S, self._sample)

    def _spans_begin(self) -> None:
        for node in self.nodes.values():
            node.begin = node.machine.totals(self.queue.now)

    def _spans_end(self) -> None:
        for node in (*self.nodes.values(), *self.left):
            after, before = node.machine.totals(self.queue.now), node.begin
            self.spans.append(
                Span(
                    worker=str(node.worker.name),
                    type=node.worker.type.name,
                    used_s=sum(after.gpu_used_s) - sum(before.gpu_used_s),
                    busy_s=sum(after.gpu_busy_s) - sum(before.gpu_busy_s),
                    work_s=sum(after.gpu_work_s) - sum(before.gpu_work_s),
                    gpu_s=(after.at_s - before.at_s) * len(node.machine.gpus),
                )
            )

    def result(self) -> Result:
        """What there is to say; after the run is over."""
        nodes = (*self.nodes.values(), *self.left)
        policy: Any = self.policies.cluster
        return Result(
            cluster_policy=self.policies.cluster_name,
            node_policy=self.policies.node_name,
            seed=self.scenario.seed,
            rate_per_min=self.scenario.rate_per_min,
            tasks=len(self.work.tasks),
            arrived_s=self.work.arrives_s[-1],
            ended=self.ended,
            failed=len(self.work.tasks) - len(self.ended),
            spans=self.spans,
            balance=self._samples,
            decision_us=self.timed.micros,
            fallbacks=self.cluster.policy_faults + int(getattr(policy, "fallbacks", 0)),
            refused=sum(node.core.refused for node in nodes),
            retries=sum(node.retries for node in nodes),
            events=self.queue.events,
            log_hash=self.queue.hash(),
        )


def simulate(scenario: Scenario, policies: Policies, work: Work | None = None) -> Result:
    """Run it to its end."""
    run = Simulation(scenario, policies, work)
    while run.step():
        pass
    return run.result()


def _noise(rng: np.random.Generator) -> float:
    """A factor with the mean error of a profile."""
    return float(max(0.05, 1.0 + PROFILE_ERROR / 0.798 * rng.standard_normal()))


def warm(estimates: LearningEstimates, scenario: Scenario, gpu_model: str) -> None:
    """Three finished runs and a profile of every row of this model, with their errors.

    The same for all nodes of a model, all policies and all seeds: it is history.
    """
    rng = np.random.default_rng([0x3157, sum(gpu_model.encode())])
    edges = (SIZES_MB[0] / 2, *SIZE_BUCKETS_MB, 1.5 * SIZE_BUCKETS_MB[-1])
    names = ("sm", "l1", "l2", "tex", "dram", "load", "store")
    specs = {one.kind: one for line in scenario.profiles.pipelines for one in line.subtasks}
    for name, spec in sorted(specs.items()):
        kind = scenario.profiles.kinds[name]
        for low, high in zip(edges, edges[1:], strict=False):
            middle_mb = float(np.sqrt(low * high))
            row = row_of(spec, middle_mb, gpu_model)
            estimates.declare(row, spec)
            for device in sorted(spec.devices, key=lambda one: one.value):
                for _ in range(3):
                    size_mb = float(np.exp(rng.uniform(np.log(low), np.log(high))))
                    on_gpu = device is Device.GPU
                    estimates.observe_run(
                        row,
                        device,
                        kind.run_s(device, size_mb, gpu_model) * _noise(rng),
                        kind.memory_mib(size_mb),
                        kind.gpu_memory_mib(size_mb) if on_gpu else 0.0,
                        (),
                    )
            cells = {"cpu": float(np.clip(kind.cpu_share * _noise(rng), 0.0, 1.0))}
            if Device.GPU in spec.devices:
                for field, value in zip(names, kind.features, strict=True):
                    cells[field] = float(np.clip(value * _noise(rng), 0.0, 1.0))
            estimates.observe_cells(row, cells)
