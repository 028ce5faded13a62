"""The live interpreter of ``PipelineNode`` in a worker: runs steps in processes, keeps their data.

What the worker receives (orders, ends, the clock, samples) becomes events; the core's commands are
executed here. A task's data stay in the container (``task_dirs``) until the master has acknowledged
the end. A worker that is to end gives back what has not begun, ends the steps that run, and gives
back the rest; what it does not manage in its grace period dies with its container, and the master
places the tasks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc.aio
import numpy as np
import structlog

from hrm import clock
from hrm.errors import InvalidRequest
from hrm.pipelines.client.results import check_result_dir, result_name
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.model import Device, TaskSpec
from hrm.pipelines.core.node import NodeBounds, PipelineNode
from hrm.pipelines.core.node_messages import RunOutcome, TaskOutcome
from hrm.pipelines.policies import corun
from hrm.pipelines.policies.corun.gpu_sharing import sharing_of
from hrm.pipelines.policies.corun.store import merge_estimates
from hrm.pipelines.policies.corun.subtask_estimates import Stdm
from hrm.pipelines.telemetry import Profiler, Sampler
from hrm.pipelines.worker.document import WorkerDocument
from hrm.pipelines.worker.gpu_use_recorder import GpuUseRecording
from hrm.pipelines.worker.link import WorkerLink
from hrm.pipelines.worker.policy import WorkerPolicies
from hrm.pipelines.worker.step_pool import RunResult, StepProcesses
from hrm.pipelines.worker.task_dirs import Attempt, TaskDirs, TaskFiles
from hrm.text import shortened
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import codec, pipeline_stream
from hrm.wire import pipelines as pw

__all__ = ["WorkerRuntime"]

_PERIOD_S = 1.0
_PROFILE_S = 4.0
_PROFILE_SAMPLES = 16
_FLUSH_LIMIT_S = 3.0
_CHECK_LIMIT_S = 10.0
"""In which a directory of results responds."""
ALONE_S = 3_600.0
"""A worker that has nothing to run, and has had no master for so long, ends: its agent may be dead,
and then nobody else would end it."""
_ON_DECLARED = "on a declared GPU: it has no device, its GPU version ran on the CPU"
_log = structlog.get_logger("hrm.pipelines.worker")


class WorkerRuntime:
    """One worker, from ``start`` to ``close``.

    Invariants: every task of the core, and every end that is not acknowledged, has an entry in
    ``_placed`` until it is acknowledged or withdrawn.
    """

    def __init__(
        self,
        document: WorkerDocument,
        directory: Path,
        open_channel: Callable[[], grpc.aio.Channel],
        alone_s: float = ALONE_S,
    ) -> None:
        """``directory``: of the container."""
        self._alone_s = alone_s
        self.document = document
        self._identity = uuid.uuid4().hex
        self._dirs = TaskDirs(directory / "tasks", document.node)
        capacity = document.capacity
        models = {gpu.model: gpu.memory_mib for gpu in capacity.gpus}
        self._stdm = Stdm(
            memory_mib=capacity.memory_mib,
            gpu_memory_mib=models,
            sharing=sharing_of(os.environ),
        )
        policy = corun.load_guarded(
            document.policy,
            rng=np.random.default_rng(),
            node=capacity.name,
            estimates=self._stdm,
            sampled_at_s=self._sampled_at_s,
        )
        self.core = PipelineNode(
            capacity,
            policy,
            self._stdm,
            bounds=NodeBounds(device_memory_risk=document.device_memory_risk),
            machine=document.node,
        )
        self._policies = WorkerPolicies(policy)
        has_device = document.gpu_device is not None
        self._processes = StepProcesses(directory, document.import_path, has_device=has_device)
        self._sampler = Sampler([document.gpu_device] if document.gpu_device is not None else [])
        self._files: dict[Attempt, TaskFiles] = {}
        self._checking: dict[Attempt, asyncio.Task[None]] = {}
        """Those whose ``result_dir`` is being checked; the core gets them after that."""
        self._unacknowledged: dict[Attempt, m.EndTask] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self._refusals_reported = (0, 0)
        self._all_over = asyncio.Event()
        self.broken = asyncio.Event()
        """This worker ends: after a bug in the core, whose state may be inconsistent, or because
        its master has been away for too long."""
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._link = WorkerLink(
            target=document.master,
            open_channel=open_channel,
            register=self._registration,
            on_up=self._connected,
            on_message=self._message_received,
            load=self._load,
            delay_max_s=document.reconnect_delay_max_s,
        )

    def _sampled_at_s(self) -> float | None:
        sample = self.core.resources.sample
        return None if sample is None else sample.now

    def _load(self, *, whole: bool = False) -> pb.PipelineLoad:
        """``whole``: with the state of every policy, for a master that has none yet."""
        now, policies = clock.now(), self._policies
        reported = policies.report(now) if whole else policies.changed(now)
        return pipeline_stream.from_load(self.core.load(now), reported)

    async def start(self) -> None:
        """Connect to the master."""
        await asyncio.to_thread(self._dirs.prepare)
        self._tasks = [asyncio.create_task(self._link.run()), asyncio.create_task(self._tick())]

    async def yield_all(self) -> None:
        """Take nothing new, end the steps that run, give back the rest; returns when the master has
        acknowledged the ends of all tasks. Whoever calls this has a time limit."""
        self._deliver(m.DrainAsked(now=clock.now(), after_step=True))
        while self.core.tasks or self._checking or self._unacknowledged:
            self._all_over.clear()
            await self._all_over.wait()

    async def close(self) -> None:
        """End all processes, and the stream."""
        await self._link.close(_FLUSH_LIMIT_S)
        await self._processes.close()
        self._report_refusals()
        tasks = [*self._tasks, *self._checking.values(), *self._runs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._dirs.close()

    async def _tick(self) -> None:
        """The clock: time limits, samples, idle workers."""
        sampled_s = 0.0
        while True:
            self._wake.clear()
            wait_s = min(_PERIOD_S, self.core.next_deadline() - clock.now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._wake.wait()
            now = clock.now()
            if now >= self.core.next_deadline():
                self._deliver(m.ClockTicked(now=now))
            if now - sampled_s < _PERIOD_S:
                continue
            sampled_s = now
            if self._link.down_s >= self._alone_s and not self.core.tasks:
                _log.error(
                    "no master any more, and nothing to run: ending", master=self.document.master
                )
                self.broken.set()
            self._report_refusals()
            self._processes.end_idle()
            try:
                sample = self._sampler.sample(now)
            except Exception:
                _log.exception("the machine cannot be sampled")
            else:
                self._deliver(sample)

    def _report_refusals(self) -> None:
        """Log, at most once a period, that the policy failed or named what it may not."""
        dispatcher = self.core.dispatcher
        counts = (dispatcher.refused, dispatcher.faults)
        if counts != self._refusals_reported:
            self._refusals_reported = counts
            _log.warning(
                "the node policy was not followed",
                policy=self.core.policy.name,
                refused=dispatcher.refused,
                failed=dispatcher.faults,
                latest=dispatcher.refusals[-1],
            )

    # --- events in, commands out --------------------------------------------------------------

    def _deliver(self, event: m.NodeEvent) -> None:
        if self.broken.is_set():
            return
        try:
            commands = self.core.handle(event)
        except Exception:
            _log.critical(
                "core of pipelines failed; this worker ends",
                input=type(event).__name__,
                exc_info=True,
            )
            self.broken.set()
            return
        for command in commands:
            match command:
                case m.StartSubtask():
                    run = asyncio.create_task(self._run(command))
                    self._runs.add(run)
                    run.add_done_callback(self._runs.discard)
                    self._wake.set()
                case m.StopSubtask():
                    self._processes.stop(command.run)
                case m.ReportSubtask():
                    self._report(command)
                case m.EndTask():
                    self._ended(command)

    async def _run(self, start: m.StartSubtask) -> None:
        profiles: list[asyncio.Task[None]] = []
        recording = GpuUseRecording(
            self.document.gpu_device if start.device is Device.GPU else None
        )

        def started(pid: int) -> None:
            if start.profile:
                profiles.append(asyncio.create_task(self._profile(start, pid)))
            recording.begin(pid)

        files = self._files[start.key.task_id, start.attempt]
        spec = files.spec
        assert spec is not None
        subtask = next(one for one in spec.pipeline.subtasks if one.name == start.key.subtask)
        job = {
            "reference": spec.pipeline.reference,
            "subtask": subtask.name,
            "device": start.device.value,
            "inputs": [str(files.output(one)) for one in subtask.after] or [str(files.input)],
            "raw": files.raw and not subtask.after,
            "output": str(files.output(subtask.name)),
            "memory_limit_mib": start.memory_limit_mib if start.device is Device.CPU else 0,
            "node": self.document.node,
        }
        if subtask.name == files.last:
            job |= {
                "result_format": spec.result_format.value,
                "result_key": files.key.hex(),
                "task_id": spec.task_id,
                "placement": start.attempt,
                "result_dir": spec.result_dir,
            }
        place = (start.device, start.number)
        try:
            result = await self._processes.run(start.run, place, files.code, job, started)
        except Exception as error:
            _log.exception("a run could not be carried out", task=start.key.task_id)
            result = RunResult(outcome=RunOutcome.CRASHED, message=f"the worker failed: {error!r}")
        finally:
            for profile in profiles:
                profile.cancel()
            recording.end()
        message = result.message
        if result.outcome is RunOutcome.DONE and subtask.name == files.last:
            files.kind, files.proof = result.kind, result.proof
            files.in_dir_bytes = result.in_dir_bytes
        if result.outcome is RunOutcome.DONE and self._is_declared(start):
            message = _ON_DECLARED
        self._deliver(
            m.SubtaskEnded(
                now=clock.now(),
                key=start.key,
                run=start.run,
                outcome=result.outcome,
                message=message,
                ran_s=result.ran_s,
                memory_mib=result.memory_mib,
                gpu_memory_mib=result.gpu_memory_mib,
                gpu_use=recording.use(result.ran_s, result.gpu_memory_mib),
            )
        )

    def _is_declared(self, start: m.StartSubtask) -> bool:
        return start.device is Device.GPU and self.document.gpu_device is None

    async def _profile(self, start: m.StartSubtask, pid: int) -> None:
        """Profile a run's first seconds; a shorter one updates the estimates when it ends."""
        real_gpu = start.device is Device.GPU and not self._is_declared(start)
        profiler = Profiler(pid, self.document.gpu_device if real_gpu else None)
        try:
            for _ in range(_PROFILE_SAMPLES):
                if not profiler.sample():
                    return
                await asyncio.sleep(_PROFILE_S / _PROFILE_SAMPLES)
            profiler.sample()
            figures = profiler.figures()
        finally:
            profiler.close()
        if figures:
            event = m.SubtaskProfiled(now=clock.now(), key=start.key, run=start.run, cells=figures)
            self._deliver(event)

    def _report(self, command: m.ReportSubtask) -> None:
        self._policies.ended(command.timing, clock.now())
        attempt = pw.attempt_of(command.task_id, command.attempt)
        self._link.send(pipeline_stream.run_ended(attempt, command))

    def _ended(self, command: m.EndTask) -> None:
        self._unacknowledged[command.task_id, command.attempt] = command
        if (files := self._files.get((command.task_id, command.attempt))) is not None:
            files.key = b""
        _log.info(
            "task ended", task=command.task_id, outcome=command.outcome.value, why=command.message
        )
        self._link.send_each(self._end_messages(command))

    def _end_messages(self, command: m.EndTask) -> Iterator[pb.NodePipelineMessage]:
        """The result in pieces, then the end; nothing if the task is forgotten by then."""
        if (command.task_id, command.attempt) not in self._unacknowledged:
            return
        attempt = pw.attempt_of(command.task_id, command.attempt)
        message = shortened(command.message, codec.TEXT_LENGTH_MAX)
        end = pipeline_stream.from_end(command.outcome, message, command.timings)
        files = self._files.get((command.task_id, command.attempt))
        if command.outcome is TaskOutcome.DONE and files is not None:
            end.result_format = pw.from_result_format(files.kind)
            end.proof = files.proof
            try:
                if files.in_dir_bytes is not None:
                    end.in_result_dir, end.result_bytes = True, files.in_dir_bytes
                    yield pipeline_stream.attempt_ended(attempt, end)
                    return
                with files.open_result() as file:
                    while data := file.read(pw.CHUNK_BYTES):
                        yield pipeline_stream.result_piece(attempt, end.result_bytes, data)
                        end.result_bytes += len(data)
            except OSError as error:
                end.outcome = pw.from_outcome(TaskOutcome.FAILED)
                end.message = (
                    f"node {self.document.node}: what {files.last!r} returned cannot be "
                    f"read: {error}"
                )
        yield pipeline_stream.attempt_ended(attempt, end)

    # --- the master ---------------------------------------------------------------------------

    def _registration(self) -> pb.RegisterPipelineNode:
        self._forget_unplaced()
        here = [(task_id, task.attempt) for task_id, task in self.core.tasks.items()]
        return pipeline_stream.from_node(
            self.document.capacity,
            self._load(whole=True),
            (*here, *self._checking, *self._unacknowledged),
            identity=self._identity,
        )

    def _forget_unplaced(self) -> None:
        """Drop inputs whose order did not arrive before the stream broke: the master may resend."""
        for attempt in [one for one, files in self._files.items() if not files.filled]:
            self._forget(attempt)

    def _connected(self, estimates: bytes) -> None:
        """``estimates``: what the master knows of this user's steps."""
        self._learn(estimates)
        _log.info("connected", worker=self.document.container_id)
        for command in self._unacknowledged.values():
            self._link.send_each(self._end_messages(command))

    def _learn(self, estimates: bytes) -> None:
        """Take in what all workers of this user have measured."""
        if not estimates:
            return
        capacity = self.document.capacity
        speeds = {Device.CPU: capacity.cpu_speed, Device.GPU: capacity.gpu_speed}
        try:
            merge_estimates(estimates, self._stdm, speeds)
        except InvalidRequest as error:
            _log.warning("estimates cannot be used", why=error.message)

    def _message_received(self, message: pb.MasterPipelineMessage) -> None:
        now, kind = clock.now(), message.WhichOneof("message")
        if kind == "data":
            self._input_data(message.data)
        elif kind == "place":
            self._place(message.place, now)
        elif kind == "withdraw":
            attempt = message.withdraw.attempt
            named = (pw.to_task_id(attempt.task_id), attempt.attempt)
            self._withdraw(named, message.withdraw.reason, now)
        elif kind == "acknowledge":
            attempt = message.acknowledge
            self._forget((pw.to_task_id(attempt.task_id), attempt.attempt))
        elif kind == "policy":
            self._policies.follow(message.policy)
        elif kind == "estimates":
            self._learn(message.estimates)

    def _files_of(self, attempt: pb.PipelineAttempt) -> TaskFiles:
        key = (pw.to_task_id(attempt.task_id), attempt.attempt)
        files = self._files.get(key)
        if files is None:
            files = self._files[key] = self._dirs.make(*key)
        return files

    def _input_data(self, data: pb.PipelineData) -> None:
        files = self._files_of(data.attempt)
        if not files.filled:
            self._dirs.add_input(files, data.offset, data.data)

    def _place(self, order: pb.PlacePipelineTask, now: float) -> None:
        files = self._files_of(order.attempt)
        task_id = pw.to_task_id(order.attempt.task_id)
        attempt = (task_id, order.attempt.attempt)
        task = pw.to_task(
            order, task_id, size_mb=order.size_mb, submitted_at_s=order.submitted_at_s
        )
        if attempt in self._checking or files.spec is not None:
            return  # the order is repeated
        if not files.filled:
            self._dirs.fill(files, order, {one.code for one in self._files.values()})
        if task.result_dir and not files.problem:
            checking = asyncio.create_task(self._check_result_dir(attempt, files, task))
            self._checking[attempt] = checking
        else:
            self._take_in(attempt, files, task, now)

    async def _check_result_dir(self, attempt: Attempt, files: TaskFiles, task: TaskSpec) -> None:
        """Take the task in once that is known: no step is to run in vain. The directory is on
        another machine, perhaps, which may not respond."""
        directory = task.result_dir
        try:
            async with asyncio.timeout(_CHECK_LIMIT_S):
                await asyncio.to_thread(check_result_dir, directory, result_name(*attempt))
        except TimeoutError:
            files.refuse(
                f"result_dir {directory}: it has not responded for {_CHECK_LIMIT_S:g} s; check "
                f"what serves it, or leave result_dir out"
            )
        except OSError as error:
            files.refuse(str(error))
        del self._checking[attempt]
        self._take_in(attempt, files, task, clock.now())

    def _take_in(self, attempt: Attempt, files: TaskFiles, task: TaskSpec, now: float) -> None:
        task_id, number = attempt
        if not files.problem:
            files.spec = task
            self._deliver(m.TaskPlaced(now=now, task=task, attempt=number))
            return
        self._ended(
            m.EndTask(
                task_id=task_id,
                attempt=number,
                outcome=TaskOutcome.REFUSED if files.refused else TaskOutcome.GIVEN_BACK,
                message=f"node {self.document.node}: {files.problem}",
                timings=(),
            )
        )

    def _withdraw(self, attempt: Attempt, why: str, now: float) -> None:
        if (checking := self._checking.pop(attempt, None)) is not None:
            checking.cancel()
        task_id, number = attempt
        self._deliver(m.TaskWithdrawn(now=now, task_id=task_id, attempt=number, why=why))
        if task_id not in self.core.tasks:
            self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        self._unacknowledged.pop(attempt, None)
        files = self._files.pop(attempt, None)
        if files is not None:
            self._dirs.remove(files.directory)
        self._all_over.set()
