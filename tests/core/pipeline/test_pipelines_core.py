"""Pipelines as applications, on the production cores in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationState,
    ContainerEnd,
    ContainerState,
    EndCause,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.workload_bounds import WorkloadBounds
from hrm.errors import AlreadyExists, HrmError, InvalidRequest, NotFound
from hrm.pipelines.core.model import Device, TaskId
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.pipelines.core.resizing import InForce, OnePerTask, WorkloadView
from hrm.pipelines.core.workload import WorkerSize, size_for
from hrm.pipelines.policies.resizing.guarded import GuardedResizing
from hrm.policies.guard import GuardMode
from hrm.testing.virtual import VirtualCluster, unit
from tests.core.pipeline.building import BOTH, GPU, pipeline, subtask, task
from tests.core.pipeline.pool import SMALL, Pool


def pool(nodes: int = 2, cores: int = 4, **more: object) -> Pool:
    units = [unit(f"n{x}", cores) for x in range(nodes)]
    return Pool(VirtualCluster(units, **more))  # type: ignore[arg-type]


def test_tasks_get_workers_of_an_application_and_these_are_given_back() -> None:
    here = pool()
    app = here.submit(*(f"t{x}" for x in range(6)))
    here.advance(2)

    assert here.virtual.states(app) == {"running": 6}
    assert here.virtual.app(app).record.name == "p"

    here.finish_all()
    here.advance(60)
    assert here.outcomes == {f"t{x}": TaskOutcome.DONE for x in range(6)}
    assert here.virtual.app(app).record.state.value == "succeeded"
    assert here.virtual.running() == 0


def test_no_more_workers_than_tasks_and_as_many_more_as_run_already() -> None:
    here = pool(nodes=10)
    app = here.submit(*(f"t{x}" for x in range(30)))
    begun = here.workloads.bounds.begun_max
    assert len(here.virtual.app(app).containers) == begun
    here.advance(5)
    assert here.virtual.states(app) == {"running": 30}


def test_tasks_of_another_pipeline_user_queue_or_class_are_another_application() -> None:
    here = pool(queues=(spec_from("root.a", {}), spec_from("root.b", {})))
    first = here.submit("one", user="ana", queue="a")
    same = here.submit("two", user="ana", queue="a")
    others = {
        here.submit("three", user="bob", queue="a"),
        here.submit("four", user="ana", queue="b"),
        here.submit("five", user="ana", queue="a", workload=WorkloadClass.STREAM),
    }
    assert same == first
    assert len(others - {first}) == 3
    assert here.virtual.app(first).record.queue == "root.a"


def test_workers_wait_in_the_queues_of_units_like_executors_and_within_their_queue() -> None:
    queues = (
        spec_from("root.spark", {"guaranteed": "50%"}),
        spec_from("root.pipelines", {"guaranteed": "50%"}),
    )
    bounds = Bounds(queue_reclaim_wait_s=1.0, queue_preemption_grace_s=1.0)
    here = pool(nodes=2, cores=4, queues=queues, bounds=bounds)
    spark = here.virtual.submit(16, queue="spark")
    here.advance(2)
    assert here.virtual.states(spark)["running"] == 8

    app = here.submit(*(f"t{x}" for x in range(8)), queue="pipelines")
    here.advance(40)

    assert here.virtual.states(app)["running"] == 4
    assert here.virtual.states(spark)["running"] == 4


def test_a_task_of_a_worker_that_is_preempted_or_lost_runs_elsewhere_and_ends_once() -> None:
    here = pool()
    app = here.submit("t")
    here.advance(2)
    worker = here.worker_of("t")
    here.end_worker(worker, ContainerEnd(cause=EndCause.PREEMPTED, message="for a stream"))
    here.advance(3)
    assert here.worker_of("t") != worker
    record = here.workloads.find(here.task_id("t"))
    assert record is not None
    assert (record.losses, record.given_back) == (0, 1)

    here.finish_all()
    here.advance(1)
    assert here.outcomes == {"t": TaskOutcome.DONE}
    assert here.virtual.states(app) in ({"running": 1}, {"running": 1, "pending": 0})


def test_workers_that_keep_failing_end_the_tasks_with_the_reason() -> None:
    here = pool()
    app = here.submit("t")
    for _ in range(60):
        here.advance(1)
        for worker in list(here.connected):
            here.end_worker(worker, ContainerEnd(cause=EndCause.EXITED, exit_code=1, message="boo"))
        if here.outcomes:
            break
    assert here.outcomes == {"t": TaskOutcome.FAILED}
    assert "boo" in here.messages["t"]
    assert here.virtual.app(app).record.state.ended
    assert here.virtual.running() == 0


def test_a_worker_that_never_connects_is_given_up_and_another_is_requested() -> None:
    here = pool()
    here.connects = False
    app = here.submit("t")
    here.advance(here.workloads.bounds.connect_s + 5)
    ended = [x for x in here.virtual.app(app).ended if x.end is not None]
    assert ended
    here.connects = True
    here.advance(5)
    here.finish_all()
    here.advance(1)
    assert here.outcomes == {"t": TaskOutcome.DONE}


def test_a_killed_application_cancels_its_tasks() -> None:
    here = pool()
    app = here.submit("t", "u")
    here.advance(2)
    here.virtual.submit_to_master(
        e.KillRequested(
            now=here.virtual.now, call_id=here.virtual.next_call(), application_id=app,
            reason="by an operator",
        )
    )  # fmt: skip
    here.advance(3)
    assert here.outcomes == dict.fromkeys(("t", "u"), TaskOutcome.CANCELLED)
    assert "by an operator" in here.messages["t"]
    assert here.virtual.running() == 0


def test_what_no_node_can_hold_fails_at_once_with_the_reason() -> None:
    here = pool()
    here.submit("t", size=WorkerSize(64, 1024))
    here.advance(1)
    assert here.outcomes == {"t": TaskOutcome.FAILED}
    assert "64 vcores" in here.messages["t"]


def test_a_queue_that_there_is_not_refuses_the_task_itself() -> None:
    here = pool(queues=(spec_from("root.a", {}),))
    with pytest.raises(HrmError, match="nowhere"):
        here.submit("t", queue="root.nowhere")
    assert not here.workloads.live
    assert here.workloads.find(here.task_id("t")) is None


def test_ids_of_tasks_are_unique_over_all_workloads() -> None:
    here = pool()
    here.submit("t")
    with pytest.raises(AlreadyExists):
        here.submit("t", user="bob")


def test_only_workers_of_live_workloads_may_report() -> None:
    here = pool()
    here.submit("t")
    here.advance(2)
    (worker,) = here.connected
    here.finish_all()
    here.advance(60)
    with pytest.raises(NotFound):
        here.join(worker)


def test_idle_workers_are_kept_for_a_while_and_the_workload_for_longer() -> None:
    bounds = WorkloadBounds(worker_idle_s=5.0, workload_idle_s=20.0)
    here = pool()
    here.workloads.bounds = bounds
    app = here.submit("t")
    here.advance(2)
    here.finish_all()
    here.advance(3)
    assert here.virtual.states(app) == {"running": 1}
    here.advance(5)
    assert here.virtual.running() == 0
    assert not here.virtual.app(app).record.state.ended
    assert here.submit("u") == app
    here.advance(2)
    here.finish_all()
    here.advance(40)
    assert here.virtual.app(app).record.state.ended
    assert here.submit("v") != app


def test_workers_of_class_stream_are_kept_for_longer() -> None:
    here = pool()
    here.workloads.bounds = WorkloadBounds(worker_idle_s=1.0, stream_idle_s=20.0)
    app = here.submit("t", workload=WorkloadClass.STREAM)
    here.advance(2)
    here.finish_all()
    here.advance(15)
    assert here.virtual.states(app) == {"running": 1}
    here.advance(10)
    assert here.virtual.running() == 0


def test_those_of_class_stream_are_no_more_than_stay_for_they_yield_to_none() -> None:
    here = Pool(VirtualCluster([unit(f"n{x}", 4) for x in range(2)]))
    here.virtual.submit(0)
    here.virtual.settle()
    app = here.submit(*(f"t{x}" for x in range(10)), workload=WorkloadClass.STREAM)
    here.advance(5)
    assert here.virtual.states(app) == {"running": 2}, "8 cores, two applications and one more"
    here.finish_all()
    here.advance(5)
    here.finish_all()
    assert sum(x is TaskOutcome.DONE for x in here.outcomes.values()) >= 6


def test_the_cluster_sees_what_the_tasks_do() -> None:
    here = pool()
    app = here.submit("t", "u")
    here.advance(2)
    here.finish("t")
    here.advance(2)
    progress = here.virtual.app(app).progress
    assert progress is not None
    assert (progress.tasks_total, progress.tasks_completed, progress.tasks_running) == (2, 1, 1)


def test_why_a_task_waits_names_the_application() -> None:
    here = pool(nodes=1, cores=1)
    app = here.submit("t", "u")
    here.advance(2)
    waiting = next(x for x in ("t", "u") if here.worker_of(x) is None)
    said = here.workloads.explain(here.task_id(waiting))
    assert f"1 of 2 workers run (hrm app why {app})" in said


def test_what_a_worker_needs_follows_from_the_steps() -> None:
    bounds = WorkloadBounds()
    plain = pipeline(subtask("a"), subtask("b", "a", memory_mib=4000))
    assert size_for(plain, bounds, has_gpus=True) == WorkerSize(1, 5000)
    both = pipeline(subtask("a", on=frozenset(Device), gpu_memory_mib=900))
    assert size_for(both, bounds, has_gpus=False) == SMALL
    assert size_for(both, bounds, has_gpus=True) == WorkerSize(1, 1024, 1000)
    unsaid = pipeline(subtask("a", on=GPU))
    assert size_for(unsaid, bounds, has_gpus=False).gpu_memory_mib > 2000
    assert replace(bounds, worker_cores=3).worker_cores == 3
    assert Resources(1, 1024) == SMALL.resources
    assert WorkerSize(2, 1024, 1000).slots == 3
    assert issubclass(InvalidRequest, HrmError)
    assert task("x").workload_class is WorkloadClass.BATCH


def test_it_wants_as_many_workers_as_its_policy_says() -> None:
    class Two:
        name = "two"

        def workers(self, view: WorkloadView) -> int:
            return min(2, view.tasks)

    here = Pool(VirtualCluster([unit("n0", 4), unit("n1", 4)]), resizing=InForce(Two()))
    app = here.submit(*(f"t{x}" for x in range(10)))
    here.advance(5)
    assert here.virtual.states(app) == {"running": 2}
    assert "2 of 2 workers run" in here.workloads.explain(here.task_id("t9"))
    here.finish_all()
    assert set(here.outcomes.values()) == {TaskOutcome.DONE}


def test_a_candidate_hears_how_the_tasks_of_its_workloads_have_fared() -> None:
    class Some:
        name = "some"

        def workers(self, view: WorkloadView) -> int:
            return min(4, view.tasks)

    both = GuardedResizing(
        "some", Some(), OnePerTask(), origin="here", clock_s=lambda: 0.0, mode=GuardMode.ON
    )
    here = Pool(VirtualCluster([unit("n0", 4), unit("n1", 4)]), resizing=both)
    app = here.submit(*(f"t{x}" for x in range(6)))
    here.advance(3)
    assert both.guard.status(here.virtual.now).learned > 0
    assert here.virtual.states(app)["running"] == 4
    here.finish_all()
    here.submit("late")
    here.advance(2)
    here.finish_all()
    status = both.guard.status(here.virtual.now)
    assert (status.compared, status.reference_compared) == (1, 0), "of the first six none had ended"


def test_a_drained_node_gets_no_task_and_its_workers_end() -> None:
    here = Pool(VirtualCluster([unit("n0", 2), unit("n1", 2)]))
    app = here.submit("a", "b", "c", "d")
    here.advance(3)
    on = {x.container_id: x.node for x in here.virtual.app(app).in_state(ContainerState.RUNNING)}
    busy = [x for x in "abcd" if on[here.worker_of(x)] == "n0"]  # type: ignore[index]
    assert len(busy) == 2
    drain = e.DrainRequested(
        now=here.virtual.now, call_id=here.virtual.next_call(), nodes=(NodeName("n0"),), undo=False
    )
    here.virtual.submit_to_master(drain)
    here.advance(2)
    here.submit("late")
    here.finish(busy[0])
    here.advance(2)
    assert here.worker_of("late") is None, "all of n1 is busy, and n0 is drained"
    here.finish(busy[1])
    here.advance(3)
    running = here.virtual.app(app).in_state(ContainerState.RUNNING)
    assert {x.node for x in running} == {"n1"}
    here.finish_all()
    assert set(here.outcomes.values()) == {TaskOutcome.DONE}


@pytest.mark.parametrize(
    ("failing", "state", "message"),
    [
        (0, ApplicationState.SUCCEEDED, "it has no task any more"),
        (1, ApplicationState.SUCCEEDED, "it has no task any more: 1 of 2 tasks failed"),
        (2, ApplicationState.FAILED, "2 of 2 tasks failed or were cancelled"),
    ],
)
def test_an_application_all_of_whose_tasks_failed_has_failed(
    failing: int, state: ApplicationState, message: str
) -> None:
    here = pool()
    app = here.submit("t0", "t1")
    here.advance(2)
    for number in range(2):
        failed = TaskOutcome.FAILED if number < failing else TaskOutcome.DONE
        here.finish(f"t{number}", failed)
    here.advance(60)
    record = here.virtual.app(app).record
    assert record.state is state and record.message.startswith(message)


def gpu_node() -> ResourceUnit:
    """Two workers may share its GPU."""
    return ResourceUnit(
        unit_id=ResourceUnitId("gpu/gpu0"), capacity=Resources(8, 16_384, 4_000), run_limit=8
    )


def test_steps_that_need_no_gpu_use_cores_while_gpus_are_short() -> None:
    here = Pool(VirtualCluster([gpu_node(), unit("cpu", 4)]))
    both = pipeline(subtask("a", on=BOTH))
    app = here.submit(*(f"t{x}" for x in range(6)), spec=both, size=WorkerSize(1, 512, 2_000))
    here.advance(2)
    assert here.virtual.states(app)["running"] == 2
    here.advance(8)
    running = here.virtual.app(app).in_state(ContainerState.RUNNING)
    on_gpu = [x for x in running if x.request.resources.gpu_memory_mib]
    assert (len(on_gpu), len(running)) == (2, 3), "each is to have two of the six"
    (waits,) = [x for x in here.virtual.app(app).containers.values() if x not in running]
    assert waits.request.resources.gpu_memory_mib == 2_000, "one more waits for the GPU"
    here.finish_all()
    assert set(here.outcomes.values()) == {TaskOutcome.DONE}
    here.advance(60)
    assert here.virtual.app(app).record.state is ApplicationState.SUCCEEDED


def test_those_that_need_one_wait_for_it() -> None:
    here = Pool(VirtualCluster([gpu_node(), unit("cpu", 4)]))
    only = pipeline(subtask("a", on=GPU))
    app = here.submit(*(f"t{x}" for x in range(6)), spec=only, size=WorkerSize(1, 512, 2_000))
    here.advance(20)
    running = here.virtual.app(app).in_state(ContainerState.RUNNING)
    assert [x.node for x in running] == ["gpu"] * 2


def test_it_does_not_end_while_a_task_is_written_down_for_it() -> None:
    here = pool()
    app = here.submit("t")
    here.advance(2)
    here.finish("t")
    here.workloads.arrive(TaskId("late"))
    record = here.workloads.find(TaskId("t"))
    assert record is not None
    key = here.workloads.live[app].key
    here.workloads.open(99, key, TaskId("late"), here.virtual.now)
    here.advance(120)
    assert app in here.workloads.live
    here.workloads.arrived(TaskId("late"))
    here.advance(5)
    assert app not in here.workloads.live


def test_where_no_cores_would_do_all_wait_for_the_gpu() -> None:
    """Its node has cores for what uses the GPU, and no others."""
    node = replace(gpu_node(), gpu_only=True)
    here = Pool(VirtualCluster([node]))
    both = pipeline(subtask("a", on=BOTH))
    app = here.submit(*(f"t{x}" for x in range(6)), spec=both, size=WorkerSize(1, 512, 3_000))
    here.advance(10)
    assert app in here.workloads.live
    running = here.virtual.app(app).in_state(ContainerState.RUNNING)
    assert [x.request.resources.gpu_memory_mib for x in running] == [3_000]
    here.finish_all()
    assert set(here.outcomes.values()) == {TaskOutcome.DONE}
