"""The live interpreter of ``PipelineNode``: runs subtasks in workers, and keeps their data.

What the agent receives (orders, ends, the clock, samples) becomes events; the core's commands are
executed here. A task's data stay on its node (``task_dirs``) until the master has acknowledged
the end. Where ``run_as`` is active, workers and data are the submitter's, and a task of a user that
its rules refuse fails. A crash of the agent ends its workers; the master places the tasks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import grpc.aio
import numpy as np
import structlog

from hrm import clock
from hrm.agent.run_as import RunAs
from hrm.config import AgentSettings
from hrm.errors import HrmError, LaunchFailed, LimitReached, Unavailable, Unsatisfiable
from hrm.pipelines.agent.link import PipelineLink
from hrm.pipelines.agent.memory import EstimatesFile
from hrm.pipelines.agent.policy import AgentPolicies
from hrm.pipelines.agent.share import PipelineShare
from hrm.pipelines.agent.task_dirs import Attempt, TaskDirs, TaskFiles
from hrm.pipelines.agent.telemetry import Profiler, Sampler
from hrm.pipelines.agent.worker_pool import RunResult, Workers
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.model import Device
from hrm.pipelines.core.node import PipelineNode
from hrm.pipelines.core.node_messages import RunOutcome, TaskOutcome
from hrm.pipelines.policies import corun
from hrm.pipelines.policies.corun.subtask_estimates import Stdm
from hrm.text import shortened
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import codec, pipeline_stream
from hrm.wire import pipelines as pw

__all__ = ["PipelineRuntime"]

_PERIOD_S = 1.0
_PROFILE_S = 4.0
_PROFILE_SAMPLES = 16
_STOP_LIMIT_S = 10.0
_FLUSH_LIMIT_S = 3.0
_ON_DECLARED = "on a declared GPU: it has no device, its GPU version ran on the CPU"
_log = structlog.get_logger("hrm.agent.pipelines")


class PipelineRuntime:
    """Pipelines on this node, from ``start`` to ``close``.

    Invariants: every task of the core, and every end that is not acknowledged, has an entry in
    ``_placed`` until it is acknowledged or withdrawn.
    """

    def __init__(
        self,
        settings: AgentSettings,
        share: PipelineShare,
        identity: str,
        open_channel: Callable[[], grpc.aio.Channel],
        run_as: RunAs,
        ownership_key: str = "",
    ) -> None:
        self.share = share
        self._identity = identity
        self._ownership_key = ownership_key
        self._run_as = run_as
        self._dirs = TaskDirs(settings.work_dir / "pipelines", shared=run_as.active)
        capacity = share.capacity
        models = {gpu.model: gpu.memory_mib for gpu in capacity.gpus}
        self._stdm = Stdm(memory_mib=capacity.memory_mib, gpu_memory_mib=models)
        policy = corun.load_guarded(
            settings.pipeline_policy,
            rng=np.random.default_rng(),
            node=capacity.name,
            estimates=self._stdm,
            sampled_at_s=self._sampled_at_s,
        )
        self.core = PipelineNode(capacity, policy, self._stdm)
        self._policies = AgentPolicies(settings.work_dir, policy)
        self._estimates = EstimatesFile(settings.work_dir, self._stdm)
        self._workers = Workers(
            share, self._dirs.root, settings.pipeline_path, mark=f"pipelines-{identity}"
        )
        self._sampler = Sampler(share)
        self._files: dict[Attempt, TaskFiles] = {}
        self._unacknowledged: dict[Attempt, m.EndTask] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self._claims: dict[str, asyncio.Future[int]] = {}
        self._refusals_reported = (0, 0)
        self._giving_up: asyncio.Task[None] | None = None
        """Set after a bug in the core."""
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._link = PipelineLink(
            target=settings.master,
            open_channel=open_channel,
            register=self._registration,
            on_up=self._connected,
            on_message=self._message_received,
            load=self._load,
            delay_max_s=settings.reconnect_delay_max_s,
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
        """Remove what an earlier agent left, and connect to the master."""
        await self._workers.end_former()
        await asyncio.to_thread(self._dirs.prepare)
        self._tasks = [asyncio.create_task(self._link.run()), asyncio.create_task(self._tick())]

    async def close(self) -> None:
        """Return the tasks, end the workers, and report that."""
        self._deliver(m.DrainAsked(now=clock.now(), begun=True))
        if self._runs:
            await asyncio.wait(self._runs, timeout=_STOP_LIMIT_S)
        await self._link.close(_FLUSH_LIMIT_S)
        await self._workers.close()
        await self._estimates.close()
        self._report_refusals()
        for task in [*self._tasks, *self._runs]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._runs, return_exceptions=True)
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
            self._report_refusals()
            self._workers.end_idle()
            self._estimates.save_if_due()
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
        if self._giving_up is not None:
            return
        try:
            commands = self.core.handle(event)
        except Exception:
            _log.critical(
                "core of pipelines failed; this agent runs none any more until it is restarted",
                input=type(event).__name__,
                exc_info=True,
            )
            self._giving_up = asyncio.create_task(self._give_up())
            return
        for command in commands:
            match command:
                case m.StartSubtask():
                    run = asyncio.create_task(self._run(command))
                    self._runs.add(run)
                    run.add_done_callback(self._runs.discard)
                    self._wake.set()
                case m.StopSubtask():
                    self._workers.stop(command.run)
                case m.ReportSubtask():
                    self._report(command)
                case m.EndTask():
                    self._ended(command)
                case m.GrantGpu():
                    self._complete_claim(command.holder, command.number)
                case m.RefuseGpu():
                    refusal = Unsatisfiable if command.never else LimitReached
                    self._complete_claim(command.holder, refusal(command.why))

    async def _give_up(self) -> None:
        """The core's state may be inconsistent: fall silent, so that other nodes get the tasks."""
        for claim in self._claims.values():
            if not claim.done():
                claim.set_exception(_broken())
        await self._link.close(0.0)
        await self._workers.close()

    async def _run(self, start: m.StartSubtask) -> None:
        profiles: list[asyncio.Task[None]] = []

        def started(pid: int) -> None:
            if start.profile:
                profiles.append(asyncio.create_task(self._profile(start, pid)))

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
        }
        if subtask.name == files.last:
            job |= {
                "result_format": spec.result_format.value,
                "result_key": files.key.hex(),
                "task_id": spec.task_id,
                "placement": start.attempt,
            }
        place = (start.device, start.number)
        try:
            result = await self._workers.run(
                start.run, place, files.code, job, started, files.account
            )
        except Exception as error:
            _log.exception("a run could not be carried out", task=start.key.task_id)
            result = RunResult(outcome=RunOutcome.CRASHED, message=f"the agent failed: {error!r}")
        finally:
            for profile in profiles:
                profile.cancel()
        message = result.message
        if result.outcome is RunOutcome.DONE and subtask.name == files.last:
            files.kind, files.proof = result.kind, result.proof
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
            )
        )

    def _is_declared(self, start: m.StartSubtask) -> bool:
        return start.device is Device.GPU and self.share.gpus[start.number].declared

    async def _profile(self, start: m.StartSubtask, pid: int) -> None:
        """Profile a run's first seconds; a shorter one updates the estimates when it ends."""
        real_gpu = start.device is Device.GPU and not self._is_declared(start)
        profiler = Profiler(pid, start.number if real_gpu else None)
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
        self._link.send(pipeline_stream.run_ended(attempt, command.timing))

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
                with files.open_result() as file:
                    while data := file.read(pw.CHUNK_BYTES):
                        yield pipeline_stream.result_piece(attempt, end.result_bytes, data)
                        end.result_bytes += len(data)
            except OSError as error:
                end.outcome = pw.from_outcome(TaskOutcome.FAILED)
                end.message = (
                    f"node {self.share.capacity.name}: what {files.last!r} returned cannot be "
                    f"read: {error}"
                )
        yield pipeline_stream.attempt_ended(attempt, end)

    # --- the master ---------------------------------------------------------------------------

    def _registration(self) -> pb.RegisterPipelineNode:
        self._forget_unplaced()
        tasks = self.core.tasks.items()
        here = [(task_id, task.attempt) for task_id, task in tasks if not task.claim]
        return pipeline_stream.from_node(
            self.share.capacity,
            self._load(whole=True),
            (*here, *self._unacknowledged),
            identity=self._identity,
            ownership_key=self._ownership_key,
            runs_as=self._run_as.name,
        )

    def _forget_unplaced(self) -> None:
        """Drop inputs whose order did not arrive before the stream broke: the master may resend."""
        for attempt in [one for one, files in self._files.items() if files.spec is None]:
            if attempt not in self._unacknowledged:
                self._forget(attempt)

    def _connected(self) -> None:
        _log.info("pipelines are connected", cores=self.share.capacity.cores)
        for command in self._unacknowledged.values():
            self._link.send_each(self._end_messages(command))

    def _message_received(self, message: pb.MasterPipelineMessage) -> None:
        now, kind = clock.now(), message.WhichOneof("message")
        if kind == "data":
            self._input_data(message.data)
        elif kind == "place":
            self._place(message.place, now)
        elif kind == "withdraw":
            attempt = message.withdraw.attempt
            task_id, why = pw.to_task_id(attempt.task_id), message.withdraw.reason
            self._deliver(
                m.TaskWithdrawn(now=now, task_id=task_id, attempt=attempt.attempt, why=why)
            )
            if task_id not in self.core.tasks:
                self._forget((task_id, attempt.attempt))
        elif kind == "acknowledge":
            attempt = message.acknowledge
            self._forget((pw.to_task_id(attempt.task_id), attempt.attempt))
        elif kind == "drain":
            self._deliver(m.DrainAsked(now=now, draining=message.drain))
        elif kind == "policy":
            self._policies.follow(message.policy)

    def _files_of(self, attempt: pb.PipelineAttempt) -> TaskFiles:
        key = (pw.to_task_id(attempt.task_id), attempt.attempt)
        files = self._files.get(key)
        if files is None:
            files = self._files[key] = self._dirs.make(*key)
        return files

    def _input_data(self, data: pb.PipelineData) -> None:
        files = self._files_of(data.attempt)
        if files.filled:
            return
        try:
            with files.input.open("ab" if data.offset else "wb") as file:
                file.write(data.data)
        except OSError as error:
            files.problem = f"its input cannot be kept: {error}"

    def _place(self, order: pb.PlacePipelineTask, now: float) -> None:
        files = self._files_of(order.attempt)
        task_id = pw.to_task_id(order.attempt.task_id)
        task = pw.to_task(
            order, task_id, size_mb=order.size_mb, submitted_at_s=order.submitted_at_s
        )
        if not files.filled:
            files.filled = True
            try:
                account = self._run_as.account_of(task.user)
                used = {one.code for one in self._files.values()}
                self._dirs.fill(files, order, account, used)
            except LaunchFailed as error:
                files.refusal = f"pipelines run as their submitter here: {error}"
            except OSError as error:
                files.problem = f"its files cannot be kept: {error}"
        if files.refusal or files.problem:
            ended = m.EndTask(
                task_id=task_id,
                attempt=order.attempt.attempt,
                outcome=TaskOutcome.FAILED if files.refusal else TaskOutcome.GIVEN_BACK,
                message=f"node {self.share.capacity.name}: {files.refusal or files.problem}",
                timings=(),
            )
            self._ended(ended)
            return
        files.spec = task
        self._deliver(m.TaskPlaced(now=now, task=task, attempt=order.attempt.attempt))

    def _forget(self, attempt: Attempt) -> None:
        self._unacknowledged.pop(attempt, None)
        files = self._files.pop(attempt, None)
        if files is not None:
            self._dirs.remove(files.directory)

    # --- claims on GPUs -----------------------------------------------------------------------

    async def acquire(self, asked: m.GpuAsked) -> int:
        """Wait for a share of a GPU; returns its number. ``release`` it in any case.

        Raises:
            Unsatisfiable: no GPU of this node can ever hold the share.
            LimitReached: too many wait.
            Unavailable: pipelines have ended on this node.
        """
        if self._giving_up is not None:
            raise _broken()
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._claims[asked.holder] = granted
        self._deliver(asked)
        return await granted

    def _complete_claim(self, holder: str, claim_result: int | HrmError) -> None:
        """No call is waiting if the holder just disconnected; ``release`` follows."""
        claim = self._claims.get(holder)
        if claim is None or claim.done():
            return
        if isinstance(claim_result, HrmError):
            claim.set_exception(claim_result)
        else:
            claim.set_result(claim_result)

    def release(self, holder: str) -> None:
        """The holder is done, or gone; does nothing if it neither holds a share nor waits."""
        claim = self._claims.pop(holder, None)
        if claim is not None:
            self._deliver(m.GpuReleased(now=clock.now(), holder=holder))


def _broken() -> Unavailable:
    return Unavailable("pipelines of this node have failed; its log shows why; restart its agent")
