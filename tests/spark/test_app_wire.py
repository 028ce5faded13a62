"""Conversions between the wire, the driver's JSON and the AppMaster's core."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hrm import request_bounds
from hrm.core.messages import appmaster as messages
from hrm.core.vocabulary.ends import Blame
from hrm.core.vocabulary.model import ApplicationState
from hrm.v1 import application_pb2, common_pb2
from hrm.wire import appmaster as app_wire
from tests.spark.fake_driver import progress

TARGET = messages.ProfileTarget(profile=3, count=2, vcores=4, heap_mib=1024, memory_mib=1408)


@pytest.mark.parametrize("state", common_pb2.ContainerState.values())
def test_every_container_state_has_a_phase(state: common_pb2.ContainerState) -> None:
    seen = app_wire.seen(common_pb2.ContainerStatus(executor_id="1", state=state))
    name = common_pb2.ContainerState.Name(state).removeprefix("CONTAINER_STATE_")
    expected = name if name in ("RUNNING", "STOPPING", "ENDED") else "REQUESTED"
    assert seen.phase is messages.Phase[expected]


@pytest.mark.parametrize(
    ("cause", "exit_code", "blame"),
    [
        ("EXITED", 1, Blame.APPLICATION),
        ("EXITED", 0, Blame.NONE),
        ("RELEASED", 143, Blame.NONE),
        ("MEMORY_LIMIT", 137, Blame.APPLICATION),
        ("DISK_LIMIT", 137, Blame.APPLICATION),
        ("GPU_MEMORY_LIMIT", 137, Blame.APPLICATION),
        ("NODE_LOST", -1, Blame.NODE),
        ("LAUNCH_FAILED", -1, Blame.APPLICATION),
        ("UNSUITABLE", -1, Blame.APPLICATION),
        ("KILLED", 143, Blame.NONE),
        ("LOST", -1, Blame.NONE),
        ("PREEMPTED", 143, Blame.NONE),
        ("UNSPECIFIED", 0, Blame.NONE),
    ],
)
def test_blame_follows_the_cause(cause: str, exit_code: int, blame: Blame) -> None:
    end = common_pb2.ContainerEnd(cause=f"END_CAUSE_{cause}", exit_code=exit_code, message="why")
    status = common_pb2.ContainerStatus(
        executor_id="7", state=common_pb2.CONTAINER_STATE_ENDED, node="n", end=end
    )
    seen = app_wire.seen(status)
    assert (seen.blame, seen.exit_code, seen.message) == (blame, exit_code, "why")


def test_a_request_carries_the_profile() -> None:
    command = messages.RequestContainers(
        asks=(messages.ContainerAsk(executor_id="9", target=TARGET),)
    )
    update = app_wire.update(command)
    assert update is not None
    (request,) = update.request.containers
    assert (request.executor_id, request.resource_profile_id) == ("9", 3)
    assert (request.resources.vcores, request.resources.memory_mib) == (4, 1408)
    assert request.heap_mib == 1024


def test_gpus_and_their_memory_travel() -> None:
    item = {
        "profile": 3, "count": 2, "vcores": 4, "heap_mib": 1024, "memory_mib": 1408,
        "gpus": 1, "gpu_memory_mib": 4096, "unknown_resources": ["fpga"],
    }  # fmt: skip
    (target,) = app_wire.targets([item])
    assert (target.gpus, target.gpu_memory_mib, target.unknown_resources) == (1, 4096, ("fpga",))
    (without,) = app_wire.targets([{**item, "gpus": 0}])
    assert without.gpu_memory_mib == 0, "the setting means nothing to executors without a GPU"
    ask = messages.ContainerAsk(executor_id="9", target=target)
    update = app_wire.update(messages.RequestContainers(asks=(ask,)))
    assert update is not None
    (request,) = update.request.containers
    assert (request.gpus, request.resources.gpu_memory_mib) == (1, 4096)


def test_what_is_for_spark_is_not_for_the_master() -> None:
    assert app_wire.update(messages.FailApplication(message="no")) is None
    assert app_wire.update(messages.ExecutorStarted(executor_id="1", node="n")) is None


def test_a_finish_carries_how_it_ended() -> None:
    for ended, state in (
        (ApplicationState.SUCCEEDED, common_pb2.APPLICATION_STATE_SUCCEEDED),
        (ApplicationState.FAILED, common_pb2.APPLICATION_STATE_FAILED),
        (ApplicationState.KILLED, common_pb2.APPLICATION_STATE_KILLED),
    ):
        update = app_wire.update(messages.FinishApplication(state=ended, message="m"))
        assert update is not None
        assert (update.finished.state, update.finished.message) == (state, "m")


def test_the_drivers_targets_and_progress() -> None:
    item = {
        "profile": 3, "count": 2, "vcores": 4, "heap_mib": 1024, "memory_mib": 1408,
        "gpus": 0, "gpu_memory_mib": 0,
    }  # fmt: skip
    assert app_wire.targets([item]) == (TARGET,)
    counts = {
        f"tasks_{name}": number
        for number, name in enumerate(("total", "running", "completed", "failed"))
    }
    report = {
        "event": "progress", "active_jobs": 1, "active_stages": 2, "completed_stages": 3,
        "mean_task_s": 0.5, "streaming_queries": ["q"], **counts,
        "stages": [{"stage_id": 4, "attempt": 1, "name": "map", "mean_task_s": 0.1, **counts}],
    }  # fmt: skip
    sent = app_wire.progress(report).progress
    assert (sent.active_jobs, sent.completed_stages, sent.tasks_failed) == (1, 3, 3)
    assert sent.streaming_queries == ["q"]
    assert (sent.stages[0].stage_id, sent.stages[0].tasks_completed) == (4, 2)
    below = dict.fromkeys(counts, -1)
    stages = [{**report["stages"][0], **below}]  # type: ignore[index]
    clamped = app_wire.progress(
        {**report, **below, "active_jobs": -1, "active_stages": 2**40, "stages": stages}
    ).progress
    assert (clamped.active_jobs, clamped.active_stages) == (0, 2**31 - 1)
    assert (clamped.tasks_total, clamped.stages[0].tasks_failed) == (0, 0)


def report_of(*executors: str, completed: int = 0) -> application_pb2.ApplicationUpdate:
    some = [
        {"executor_id": x, "stage": "map", "tasks": 2, "run_s": 1.5, "input_bytes": 7}
        for x in executors
    ]
    return app_wire.progress({**progress(completed), "executor_tasks": some})


def executors_of(update: application_pb2.ApplicationUpdate) -> list[str]:
    return [each.executor_id for each in update.progress.executor_tasks]


def test_times_of_tasks_are_within_what_the_wire_holds() -> None:
    (sound,) = report_of("1").progress.executor_tasks
    assert (sound.stage, sound.tasks, sound.run_s, sound.input_bytes) == ("map", 2, 1.5, 7)
    odd = {"executor_id": "1", "stage": "x" * 9_999, "tasks": 2**40, "run_s": -1, "input_bytes": -1}
    (clamped,) = app_wire.progress({**progress(0), "executor_tasks": [odd]}).progress.executor_tasks
    assert (clamped.tasks, clamped.run_s, clamped.input_bytes) == (2**31 - 1, 0.0, 0)
    assert len(clamped.stage) <= request_bounds.ID
    assert len(executors_of(report_of(*map(str, range(300))))) == 200
    assert executors_of(app_wire.progress(progress(0))) == [], "older plugins report none"


def test_a_report_that_is_repeated_has_its_counts_alone() -> None:
    report = report_of("1", completed=3)
    assert executors_of(app_wire.counts_alone(report)) == []
    assert app_wire.counts_alone(report).progress.tasks_completed == 3
    assert executors_of(report) == ["1"]


def test_a_report_that_replaces_another_takes_over_its_times_of_tasks() -> None:
    earlier, later = report_of("1", "2", completed=1), report_of("3", completed=2)
    both = app_wire.with_unsent(later, earlier)
    assert executors_of(both) == ["3", "1", "2"]
    assert both.progress.tasks_completed == 2
    assert executors_of(later) == ["3"]
    many = report_of(*map(str, range(199)))
    assert executors_of(app_wire.with_unsent(many, earlier))[-1] == "2"
    full = report_of(*map(str, range(200)))
    assert len(executors_of(app_wire.with_unsent(full, earlier))) == 200


def test_a_class_by_another_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        app_wire.workload_class("fast")


def test_the_appmaster_imports_nothing_heavy() -> None:
    """It starts with every driver, which waits for its imports."""
    script = (
        "import sys, hrm.spark.appmaster\n"
        "print([m for m in ('numpy', 'pydantic', 'rich', 'structlog', 'typer', 'psutil') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("stated", "expected"), [(None, None), (2, 2), (0, 1)])
def test_the_limit_of_executors_arrives_alone_and_at_the_start(
    stated: int | None, expected: int | None
) -> None:
    limit = application_pb2.ExecutorLimit(executors_max=stated)
    notice = application_pb2.ApplicationNotice(limit=limit)
    assert app_wire.events(notice, 0, 5.0) == [
        messages.ExecutorLimitSet(now=5.0, executors_max=expected)
    ]
    attached = application_pb2.AttachedApplication(epoch=1, limit=limit)
    notice = application_pb2.ApplicationNotice(attached=attached)
    (opened,) = app_wire.events(notice, 0, 5.0)
    assert isinstance(opened, messages.SessionOpened)
    assert opened.executors_max == expected


def epochs_of(update: application_pb2.ApplicationUpdate) -> list[int]:
    return [each.epoch for each in update.progress.training]


def trained(*epochs: int) -> application_pb2.ApplicationUpdate:
    some = [{"epoch": each, "loss": "NaN", "accuracy": 0.5, "seconds": 1.0} for each in epochs]
    return app_wire.progress({**progress(1), "training": some})


def test_epochs_that_were_not_sent_go_with_the_next_report_in_order_and_once() -> None:
    both = app_wire.with_unsent(trained(3), trained(1, 2))
    assert epochs_of(both) == [1, 2, 3]
    assert epochs_of(app_wire.counts_alone(both)) == []
    many = request_bounds.FIELDS["Progress.training"].count
    assert epochs_of(app_wire.with_unsent(trained(many), trained(*range(many)))) == [
        *range(1, many + 1)
    ]
    (epoch,) = trained(1).progress.training
    assert epoch.loss != epoch.loss, "as stated"
    assert not trained().progress.training
