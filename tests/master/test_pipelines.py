"""PipelineService with workers that a test plays: what it refuses, what it keeps, streams."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm import ownership_keys
from hrm.config import MasterSettings
from hrm.core.vocabulary.gpu_use import USE_PARTS
from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidConfig, InvalidRequest
from hrm.pipelines.core.model import Device, Row, TaskId
from hrm.pipelines.master import kept_tasks
from hrm.pipelines.master.settings import pipeline_policy, resizing
from hrm.pipelines.master.streams import WorkerStream
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.store import merge_estimates
from hrm.policies.guard import GuardRegistry
from hrm.v1 import admin_pb2, common_pb2, policy_pb2, policy_pb2_grpc
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pw
from tests.core.pipeline.building import BOTH, Node, capacity, pipeline, subtask, task
from tests.master.pipeline_service import DONE, refused, request, serving
from tests.master.submitting import ENDED, RUNNING, agent
from tests.master.test_result_files import SlowDisk, content, emptied
from tests.master.test_services import TIMEOUT_S
from tests.spark.fake_master import until

CPU = pb.SubtaskDevice.SUBTASK_DEVICE_CPU
ROW = Row("kind/a", 0, "")


def _spec(**fields: Any) -> pb.PipelineSpec:
    base: dict[str, Any] = {
        "name": "p",
        "reference": "m:p",
        "subtasks": [pb.PipelineSubtask(name="a", devices=[CPU], timeout_s=1, attempts=1)],
    }
    return pb.PipelineSpec(**(base | fields))


def _one(**fields: Any) -> list[pb.PipelineSubtask]:
    base: dict[str, Any] = {"name": "a", "devices": [CPU], "timeout_s": 1, "attempts": 1}
    return [pb.PipelineSubtask(**(base | fields))]


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (request(task_id="../x"), "task_id"),
        (request(pipeline=_spec(name="")), "pipeline.name"),
        (request(pipeline=_spec(reference="m")), "MODULE:ATTRIBUTE"),
        (request(pipeline=_spec(subtasks=[])), "0 subtasks"),
        (request(pipeline=_spec(subtasks=_one(after=["b"]))), "remove the cycle"),
        (request(pipeline=_spec(subtasks=_one() + _one())), "twice"),
        (request(pipeline=_spec(subtasks=_one(devices=[]))), "neither a CPU nor a GPU"),
        (request(pipeline=_spec(subtasks=_one(devices=[7]))), "devices"),
        (request(pipeline=_spec(subtasks=_one(timeout_s=float("nan")))), "timeout_s"),
        (request(pipeline=_spec(subtasks=_one(attempts=0))), "attempts"),
        (request(pipeline=_spec(subtasks=_one(memory_mib=-1))), "memory_mib"),
        (request(size_mb=float("inf")), "size_mb"),
        (request(files=[pb.SourceFile(path="../x.py")]), "'../x.py'"),
        (request(files=[pb.SourceFile(path="/x.py")]), "'/x.py'"),
        (request(files=[pb.SourceFile(path="x", content=bytes(5 << 20))]), "more than"),
    ],
)
async def test_a_bad_submission_is_refused_by_its_field(
    tmp_path: Path, bad: pb.SubmitPipelineTaskRequest, part: str
) -> None:
    async with serving(tmp_path) as at:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, part):
            await at.stub.Submit(bad)
        assert not at.live and at.tasks.files.held_bytes == 0


async def test_bounds_are_named(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"pipeline_queue_limit": 1, "pipeline_payload_mib": 1}
    async with serving(tmp_path, **limits) as at:
        large = request()
        large.payload = bytes(2 << 20)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "pipeline_payload_mib"):
            await at.stub.Submit(large)
        await at.stub.Submit(request(task_id="t"))
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "pipeline_queue_limit"):
            await at.stub.Submit(request())
        with refused(grpc.StatusCode.ALREADY_EXISTS, "t"):
            await at.stub.Submit(request(task_id="t"))
        assert at.tasks.files.held_bytes == 1, "nothing is left of what was refused"
        assert await content(at.tasks.files, "t", "in") == b"x"


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        with refused(grpc.StatusCode.NOT_FOUND, "no pipeline task 'x'"):
            await at.stub.Cancel(pb.CancelPipelineTaskRequest(task_id="x"))
        with refused(grpc.StatusCode.NOT_FOUND, "no pipeline task 'x'", "pipeline_ended_kept"):
            [one async for one in at.stub.GetResult(pb.GetPipelineResultRequest(task_id="x"))]
        with refused(grpc.StatusCode.NOT_FOUND, "no pipeline task 'x'", "pipeline_ended_kept"):
            [one async for one in at.stub.Watch(pb.WatchPipelineTasksRequest(task_ids=["x"]))]
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "task_ids"):
            [one async for one in at.stub.Watch(pb.WatchPipelineTasksRequest())]


async def test_an_input_goes_out_and_a_result_comes_back_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        await at.stub.Submit(request(task_id="t"))
        worker = at.worker("t")
        await worker.receive("registered")
        data = await worker.receive("data")
        place = await worker.receive("place")
        assert (data.data, place.payload_bytes, place.attempt.task_id) == (b"x", 1, "t")
        worker.end(place.attempt, b"result")
        assert (await worker.receive("acknowledge")).task_id == "t"
        worker.end(place.attempt, b"other!")
        await worker.receive("acknowledge")
        assert await at.result("t") == b"result"
        assert await at.result("t", forget=True) == b"result"
        with refused(grpc.StatusCode.NOT_FOUND, "no result"):
            await at.result("t")
        assert at.tasks.files.held_bytes == 0


async def test_a_result_is_its_clients(tmp_path: Path) -> None:
    async with serving(tmp_path, pipeline_ended_kept=1) as at:
        mine, other = ownership_keys.new_key(), ownership_keys.new_key()
        worker, order = await at.placed("t", ownership_key=mine)
        for key in ("", other):  # such as one that has guessed the next id
            with refused(grpc.StatusCode.PERMISSION_DENIED, "pipeline task t"):
                await at.stub.Submit(request(task_id="t", ownership_key=key))
        with refused(grpc.StatusCode.ALREADY_EXISTS, "t"):
            await at.stub.Submit(request(task_id="t", ownership_key=mine))
        worker.end(order.attempt, b"result")
        await worker.receive("acknowledge")
        for key in ("", other):
            with refused(grpc.StatusCode.PERMISSION_DENIED, "pipeline task t"):
                await at.result("t", forget=True, ownership_key=key)
        assert await at.result("t", forget=True, ownership_key=mine) == b"result"
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "ownership_key"):
            await at.stub.Submit(request(task_id="u", ownership_key="short"))
        nameless = request(task_id="u", ownership_key=other)
        nameless.pipeline.name = ""
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            await at.stub.Submit(nameless)
        assert set(at.tasks._owners) == {"t"}


async def test_a_result_that_is_not_whole_fails_its_task(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        worker, order = await at.placed("t")
        end = pb.PipelineTaskEnd(outcome=DONE, result_bytes=9)
        worker.send_update(ended=pb.PipelineAttemptEnd(attempt=order.attempt, end=end))
        await worker.receive("acknowledge")
        assert "did not arrive whole" in (await at.ended("t")).message


# --- streams of workers ------------------------------------------------------------------------


def _run(order: pb.PlacePipelineTask, **fields: Any) -> pb.PipelineRun:
    kind = order.pipeline.subtasks[0].kind
    base: dict[str, Any] = {
        "subtask": "a", "row": pb.PipelineRow(kind=kind, bucket=0), "device": CPU, "ran_s": 1.0,
        "outcome": pb.SubtaskOutcome.Value("SUBTASK_OUTCOME_DONE"),
    }  # fmt: skip
    return pb.PipelineRun(attempt=order.attempt, timing=pb.SubtaskTiming(**(base | fields)))


async def test_a_run_that_cannot_have_been_is_ignored_and_no_more_are_kept_than_can_be(
    tmp_path: Path,
) -> None:
    """Users' code runs beside the worker, with its token."""
    async with serving(tmp_path) as at:
        worker, order = await at.placed("t")
        gpu = pb.SubtaskDevice.SUBTASK_DEVICE_GPU
        worker.send_update(run=_run(order, device=gpu, gpu_memory_mib=5))
        worker.send_update(run=_run(order, subtask="b"))
        worker.send_update(run=_run(order, row=pb.PipelineRow(kind="another", bucket=0)))
        for _ in range(100):
            worker.send_update(run=_run(order))
        worker.send_update(load=pb.PipelineLoad(cpu=0.5))
        record = at.tasks.workloads.find(TaskId("t"))
        assert record is not None
        worker.end(order.attempt, b"result")
        await worker.receive("acknowledge")
        assert 0 < len(record.timings) < 100
        assert {(x.key.subtask, x.device.value) for x in record.timings} == {("a", "cpu")}


async def test_a_worker_that_reads_gets_every_change_of_its_users_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrm.pipelines.master.estimates.SHARE_PERIOD_S", 0.0)
    async with serving(tmp_path) as at:
        worker, _ = await at.placed("t")
        seen = Stdm(memory_mib=1000.0)
        for seconds in (1.0, 3.0, 5.0):
            at.tasks.estimates.of("ada").observe_run(ROW, Device.CPU, seconds)
            merge_estimates(await worker.receive("estimates"), seen, dict.fromkeys(Device, 1.0))
        assert seen.run_s(ROW, Device.CPU) == pytest.approx(3.0)


async def test_modules_that_cannot_be_written_are_accepted_with_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [pb.SourceFile(path="a.py", content=b"x = 1")]
    full, begun = threading.Event(), threading.Event()

    def write(path: Path, content: bytes) -> None:
        begun.set()
        assert full.wait(TIMEOUT_S)
        raise OSError(errno.ENOSPC, "No space left on device")

    async with serving(tmp_path) as at:
        with monkeypatch.context() as patch:
            patch.setattr(kept_tasks, "write_durably", write)
            both = [at.stub.Submit(request(task_id=x, files=files)) for x in ("t", "u")]
            await asyncio.to_thread(begun.wait, TIMEOUT_S)
            with refused(grpc.StatusCode.UNAVAILABLE, "being accepted"):
                await at.stub.Submit(request(task_id="t", files=files))
            full.set()
            for one in both:
                with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "No space"):
                    await one
        await at.stub.Submit(request(task_id="v", files=files))
        assert len(list((tmp_path / "master/pipelines/code").iterdir())) == 1


async def test_a_worker_that_comes_back_keeps_its_task(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        worker, order = await at.placed("t")
        with refused(grpc.StatusCode.ALREADY_EXISTS, "another live process"):
            await at.worker("t", identity="i2").receive("registered")
        worker.hang_up()
        unknown_attempt = pb.PipelineAttempt(task_id="old", attempt=1)
        again = at.worker("t", tasks=[order.attempt, unknown_attempt])
        await again.receive("registered")
        assert (await again.receive("withdraw")).attempt.task_id == "old"
        again.end(order.attempt, b"result")
        await again.receive("acknowledge")
        assert await at.result("t") == b"result"
        assert at.tasks.workloads.ended[TaskId("t")].attempt == 1


async def test_a_worker_speaks_for_its_own_application_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        other_pipeline = pw.from_pipeline(pipeline(subtask("a")))
        other_pipeline.name = "other"
        await at.stub.Submit(request(task_id="t"))
        await at.stub.Submit(request(task_id="u", pipeline=other_pipeline))
        of_other = next(iter(at.workload_of("u").workers))
        assert of_other not in at.workload_of("t").workers
        with refused(grpc.StatusCode.PERMISSION_DENIED, "speaks for that alone"):
            await at.worker("t", name=of_other).receive("registered")
        for name in (f"{at.workload_of('t').application_id}-x9", "n1"):
            with refused(grpc.StatusCode.NOT_FOUND, f"{name} is no worker"):
                await at.worker("t", name=name).receive("registered")
        assert not at.tasks.streams


async def test_a_bad_message_ends_the_stream_and_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        worker, _ = await at.placed("t")
        worker.send_update(load=pb.PipelineLoad(cpu=float("nan")))
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "load.cpu"):
            await worker.receive("place")
        await at.stub.Submit(request(task_id="u"))
        (row,) = at.workload_of("t").cluster.table.nodes.values()
        assert row.away, "its stream is down, so that it gets nothing new"
        assert at.live == ["t", "u"]


async def test_a_worker_that_was_silent_for_too_long_has_to_register_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        worker, _ = await at.placed("t")
        rows = at.workload_of("t").cluster.table.nodes
        rows[NodeName(worker.name)].reported_at_s = 0.0
        await worker.disconnected()
        assert not rows and worker.name not in at.tasks.streams


async def test_a_worker_that_does_not_read_is_disconnected() -> None:
    stream = WorkerStream("i1")
    for _ in range(30_000):
        stream.put(pb.MasterPipelineMessage(acknowledge=pb.PipelineAttempt(task_id="t")))
    assert stream.closed and stream.stream_ended.is_set()
    assert stream.queue.qsize() <= 10_001


# --- workers as containers ---------------------------------------------------------------------


async def test_a_worker_is_a_container_of_its_users_application(tmp_path: Path) -> None:
    async with serving(tmp_path, pipeline_worker_idle_s=0.0) as at, agent(at.master) as node:
        await at.stub.Submit(request(task_id="t"))
        spec = await node.assigned()
        assert spec.application_id == at.workload_of("t").application_id
        assert (spec.user, spec.resources.vcores, spec.resources.memory_mib) == ("ada", 1, 1024)
        assert spec.launch.worker and not spec.launch.driver
        assert spec.launch.decommission_signal == "TERM"
        await node.report_state(spec, RUNNING)
        worker = at.worker("t")
        await worker.receive("registered")
        await worker.receive("data")
        order = await worker.receive("place")
        (listed,) = (await at.stub.List(pb.ListPipelineTasksRequest())).tasks
        assert (listed.node, listed.application_id) == ("n1", spec.application_id)
        worker.end(order.attempt, b"result")
        await worker.receive("acknowledge")
        stop = await node.stopped()
        assert stop.container_id == spec.container_id and "no task for it" in stop.reason


async def test_the_task_of_a_worker_that_ended_is_placed_at_the_next(tmp_path: Path) -> None:
    async with serving(tmp_path) as at, agent(at.master) as node:
        await at.stub.Submit(request(task_id="t"))
        for number in (1, 2):
            spec = await node.assigned()
            await node.report_state(spec, RUNNING)
            worker = at.worker("t", number)
            assert worker.name == spec.container_id
            await worker.receive("registered")
            await worker.receive("data")
            assert (await worker.receive("place")).attempt.task_id == "t"
            if number == 1:
                await node.report_state(spec, ENDED, code=1)
                await worker.disconnected()
        assert at.tasks.workloads.find(TaskId("t")).attempt == 2  # type: ignore[union-attr]


async def test_a_killed_application_cancels_its_tasks(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        worker, _ = await at.placed("t")
        application_id = at.workload_of("t").application_id
        await at.master.admin.KillApplication(
            admin_pb2.KillApplicationRequest(application_id=application_id, reason="enough")
        )
        end = await at.ended("t")
        assert end.outcome == pb.PIPELINE_TASK_OUTCOME_CANCELLED
        assert application_id in end.message and "enough" in end.message
        await worker.disconnected()
        await at.stub.Submit(request(task_id="u"))
        assert at.workload_of("u").application_id != application_id, "the next begins another"


async def test_what_the_queue_refuses_is_refused_to_its_client(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        with refused(grpc.StatusCode.NOT_FOUND, "root.nowhere"):
            await at.stub.Submit(request(task_id="t", queue="root.nowhere"))
        assert not at.live and at.tasks.files.held_bytes == 0 and not at.tasks._owners


async def test_what_a_run_used_of_its_gpu_is_in_its_users_profiles(tmp_path: Path) -> None:
    spec = pw.from_pipeline(pipeline(subtask("a", on=BOTH)))
    part = common_pb2.GpuUsePart(gpu=0.5, memory_mib=700.0, cores=0.5, pcie=0.25)
    async with serving(tmp_path) as at:
        worker, order = await at.placed("t", gpus=1, pipeline=spec)
        row = pb.PipelineRow(kind="kind/a", bucket=0, gpu_model="P4")
        on_gpu = _run(order, row=row, device=pb.SubtaskDevice.SUBTASK_DEVICE_GPU)
        on_gpu.gpu_use.extend([part] * USE_PARTS)
        worker.send_update(run=on_gpu)
        worker.end(order.attempt, b"result")
        await worker.receive("acknowledge")
        ask = pb.GetPipelineProfilesRequest(name="p", asker="ada")
        assert not (await at.stub.GetProfiles(ask)).profiles, "its name is not that of a kind"
        ask.name = "kind/a"
        (found,) = (await at.stub.GetProfiles(ask)).profiles
        assert list(found.gpu_use) == [part] * USE_PARTS
        assert 0 < found.gpu_s <= 1.0, "no longer than its task exists"
        ask.asker = "bob"
        assert not (await at.stub.GetProfiles(ask)).profiles
        (task,) = (await at.stub.List(pb.ListPipelineTasksRequest(all=True))).tasks
        assert task.outcome == DONE


async def test_one_that_placed_a_task_and_its_steps_is_listed(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        worker, order = await at.placed("t")
        for number, (decided_by, why) in enumerate([("iawp", ""), ("pats", "over-budget: 12 ms")]):
            run = _run(order, run=number, placed_by=decided_by, fallback=why)
            worker.send_update(run=run)
        worker.end(order.attempt, b"result")
        await worker.receive("acknowledge")
        (task,) = (await at.stub.List(pb.ListPipelineTasksRequest(all=True))).tasks
        assert (task.placed_by, task.fallback) == ("min-wait", "")
        assert dict(task.runs_placed_by) == {"iawp": 1, "pats": 1}
        assert task.run_fallback == "over-budget: 12 ms"
        assert at.tasks.workloads.chosen(TaskId("t")) == [
            "its worker was chosen by min-wait",
            "a on cpu 0 by iawp",
            "a on cpu 0 by pats, not by the policy in charge: over-budget: 12 ms",
        ]


async def test_the_master_replies_while_an_input_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "t")
    async with serving(tmp_path) as at:
        first = at.stub.Submit(request(task_id="t"))
        await disk.writing()
        with refused(grpc.StatusCode.UNAVAILABLE, "t is being accepted"):
            await at.stub.Submit(request(task_id="t"))
        assert not (await at.stub.List(pb.ListPipelineTasksRequest())).tasks
        disk.go_on.set()
        await first
        assert at.live == ["t"]
        assert await content(at.tasks.files, "t", "in") == b"x", "the second took nothing away"


async def test_one_that_goes_away_while_its_input_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, "t")
    async with serving(tmp_path) as at:
        submitting = at.stub.Submit(request(task_id="t"))
        await disk.writing()
        submitting.cancel()
        await until(lambda: not at.tasks.files.held_bytes)
        disk.go_on.set()
        await emptied(tmp_path / "master" / "pipelines" / "files")
        await at.stub.Submit(request(task_id="t"))
        assert at.live == ["t"]


def test_the_policy_is_loaded_by_name(tmp_path: Path) -> None:
    settings = MasterSettings(state_dir=tmp_path)
    assert pipeline_policy(settings, GuardRegistry(), seed=1).name == "min-wait"
    settings = settings.model_copy(update={"pipeline_policy": "nobody"})
    with pytest.raises(InvalidConfig, match="'nobody'"):
        pipeline_policy(settings, GuardRegistry(), seed=1)


def test_records_survive_the_wire() -> None:
    node = Node(capacity("n1", gpus=2))
    steps = pipeline(subtask("a", on=BOTH, memory_mib=5), subtask("b", "a", timeout_s=1.5))
    assert pw.to_pipeline(pw.from_pipeline(steps)) == steps
    assert pw.to_capacity(pw.from_capacity(node.core.capacity)) == node.core.capacity
    node.place(task("t", steps))
    load = node.core.load(1.0)
    assert pw.to_load(pw.from_load(load)) == load
    node.end("t.a", 2.0)
    node.end("t.b", 3.0)
    for timing in node.ended[0].timings:
        assert pw.to_timing(pw.from_timing(timing), TaskId("t")) == timing


def test_a_row_of_no_bucket_is_refused() -> None:
    row = pb.PipelineRow(kind="k", bucket=6)
    timing = pb.SubtaskTiming(row=row, device=CPU, outcome=pb.SUBTASK_OUTCOME_DONE)
    with pytest.raises(InvalidRequest, match=r"row\.bucket"):
        pw.to_timing(timing, TaskId("t"))


async def test_tasks_of_the_same_code_hold_it_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        files = [pb.SourceFile(path="a.py", content=b"x = 1")]
        for name, raw in (("a", False), ("b", False), ("raw", True)):
            await at.stub.Submit(request(task_id=name, files=files, raw=raw))
        code = at.tasks._code
        assert code[TaskId("a")] is code[TaskId("b")] is not code[TaskId("raw")]
        assert code[TaskId("raw")].raw and not code[TaskId("a")].raw
        directory = tmp_path / "master" / "pipelines" / "code"
        assert len(list(directory.iterdir())) == 2
        del code
        for name in ("a", "b", "raw"):
            await at.stub.Cancel(pb.CancelPipelineTaskRequest(task_id=name))
        assert not at.tasks._code and not at.tasks._kept._shared
        at.tasks._kept.drop_unused()
        assert not list(directory.iterdir())


async def test_a_candidate_for_the_number_of_workers_is_shown_and_set(tmp_path: Path) -> None:
    async with serving(tmp_path, pipeline_resize_candidate="few-starts") as at:
        await at.placed("t")
        stub: Any = policy_pb2_grpc.PolicyServiceStub(at.master.channel)
        asked = policy_pb2.ShowPoliciesRequest(policy="few-starts")
        (one,) = (await stub.ShowPolicies(asked, timeout=TIMEOUT_S)).policies
        assert (one.kind, one.heuristic, one.mode) == ("resizing", "one-per-task", "shadow")
        assert one.asked == one.shadowed == one.agreed > 0
        assert "few_starts:FewStarts" in one.model
        order = policy_pb2.SetPolicyModeRequest(policy="few-starts", mode="canary-10")
        assert (await stub.SetPolicyMode(order, timeout=TIMEOUT_S)).mode == "canary-10"


def test_a_resize_policy_that_there_is_not_is_refused(tmp_path: Path) -> None:
    settings = MasterSettings(state_dir=tmp_path, pipeline_resize_policy="nobody")
    with pytest.raises(InvalidConfig, match="no resize policy is called 'nobody'"):
        resizing(settings, GuardRegistry())
    settings = MasterSettings(state_dir=tmp_path, pipeline_resize_candidate="few-starts")
    guards = GuardRegistry()
    resizing(settings, guards)
    assert [x.policy for x in guards.statuses(0.0)] == ["few-starts"]
