"""The class of an application before its first request: what its last run turned out to be."""

from __future__ import annotations

import pytest

from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.learned_classes import LearnedClass, LearnedClassTable
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerRequest,
    Gpu,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import Core, Hardware, Partitioning
from hrm.testing.virtual import VirtualCluster, unit

STREAM, BATCH = WorkloadClass.STREAM, WorkloadClass.BATCH
EACH = pytest.mark.parametrize("schedulers", [1, 2, 6])
CORE = Resources(1, 64)


def cluster_of(vcores: int, schedulers: int = 2, bounds: Bounds | None = None) -> VirtualCluster:
    cluster = [unit("n0", vcores, 64 * vcores)]
    return VirtualCluster(cluster, schedulers=schedulers, bounds=bounds)


def observe(cluster: VirtualCluster, app: ApplicationId, workload_class: WorkloadClass) -> None:
    cluster.submit_to_master(
        e.WorkloadClassObserved(
            now=cluster.now,
            application_id=app,
            workload_class=workload_class,
            evidence="streaming query 'clicks' is running (trigger ProcessingTime)",
        )
    )


def class_of(cluster: VirtualCluster, app: ApplicationId) -> WorkloadClass:
    return cluster.app(app).record.workload_class


def streamed(cluster: VirtualCluster, name: str = "clicks") -> ApplicationId:
    """One run of ``name``, which is a stream, and is over."""
    app = cluster.submit(1, CORE, name=name)
    cluster.settle()
    observe(cluster, app, STREAM)
    cluster.finish(app, ApplicationState.KILLED)
    cluster.settle()
    return app


@EACH
def test_the_second_run_of_a_stream_asks_for_its_executors_as_a_stream(schedulers: int) -> None:
    cluster = cluster_of(4, schedulers)
    first = streamed(cluster)
    batch = cluster.submit(4, CORE, BATCH, name="etl")
    cluster.settle()
    second = cluster.submit(2, CORE, name="clicks")
    cluster.advance(5)
    assert cluster.states(second) == {"running": 2}, "batch is preempted before any query runs"
    assert cluster.states(batch) == {"running": 2}
    evidence = f"the last run of clicks by somebody, {first}, was a stream"
    assert cluster.app(second).record.class_evidence == evidence
    _, details = explain(cluster.master.master_state, cluster.app(second), cluster.now)
    assert any(f"it is of class stream: {evidence}" in line for line in details)


@EACH
def test_a_wrong_guess_is_corrected_within_a_minute(schedulers: int) -> None:
    cluster = cluster_of(4, schedulers)
    streamed(cluster)
    wrong = cluster.submit(2, CORE, name="clicks")
    cluster.advance(59)
    assert class_of(cluster, wrong) is STREAM
    cluster.advance(3)
    record = cluster.app(wrong).record
    assert (record.workload_class, record.class_guessed) == (BATCH, False)
    assert "no stream was seen within 60 s of the start of its first" in record.class_evidence
    queue = cluster.nodes["n0"].core.units[cluster.container(wrong, 1).unit_id]
    assert {x.workload_class for x in queue.running.values()} == {BATCH}, "so is what runs"
    cluster.finish(wrong)
    third = cluster.submit(1, CORE, name="clicks")
    assert class_of(cluster, third) is BATCH
    assert cluster.app(third).record.class_evidence.endswith(f"{wrong}, was batch")


def test_a_guess_that_evidence_confirms_stays() -> None:
    cluster = cluster_of(4)
    streamed(cluster)
    second = cluster.submit(1, CORE, name="clicks")
    cluster.advance(30)
    observe(cluster, second, STREAM)
    cluster.advance(90)
    assert class_of(cluster, second) is STREAM
    assert "'clicks' is running" in cluster.app(second).record.class_evidence


def test_a_guess_that_finds_no_capacity_is_batch_after_a_minute() -> None:
    cluster = cluster_of(4)
    streamed(cluster)
    other = cluster.submit(3, CORE, STREAM, name="other")
    cluster.settle()
    second = cluster.submit(2, CORE, name="clicks")
    cluster.advance(59)
    assert cluster.states(second) == {"pending": 2}, "a stream starts whole"
    cluster.advance(5)
    assert class_of(cluster, second) is BATCH
    assert cluster.states(second)["running"] == 1
    assert cluster.states(other) == {"running": 3}


def test_no_request_is_refused_because_of_a_guess() -> None:
    cluster = cluster_of(4)
    streamed(cluster)
    second = cluster.submit(9, CORE, name="clicks")
    cluster.settle()
    assert not [x for x in cluster.notices[second] if isinstance(x, c.RequestRefused)]
    assert cluster.states(second)["running"] == 4


@EACH
def test_a_guessed_stream_of_gpus_begins_with_what_there_is(schedulers: int) -> None:
    cluster = VirtualCluster(schedulers=schedulers)
    gpus = tuple(Gpu(index=x, memory_mib=8_192) for x in range(4))
    cores = tuple(Core(x) for x in range(16))
    hardware = Hardware(cores=cores, memory_mib=16_384, gpus=gpus)
    cluster.add_hardware("n0", hardware, Partitioning())
    cluster.settle()
    streamed(cluster)
    app = cluster.submit(0, name="clicks")
    requests = tuple(
        ContainerRequest(executor_id=str(x), resource_profile_id=0, resources=CORE, gpus=1)
        for x in range(1, 7)
    )
    cluster.submit_to_master(
        e.ContainersRequested(now=cluster.now, application_id=app, requests=requests)
    )
    cluster.settle()
    assert class_of(cluster, app) is STREAM
    assert cluster.states(app) == {"running": 4, "pending": 2}


@pytest.mark.parametrize("declared", [BATCH, STREAM])
def test_what_is_declared_is_neither_guessed_nor_learned(declared: WorkloadClass) -> None:
    cluster = cluster_of(4)
    known = streamed(cluster)
    app = cluster.submit(1, CORE, declared, name="clicks")
    cluster.advance(90)
    assert class_of(cluster, app) is declared
    assert cluster.app(app).record.class_evidence == "declared by spark.hrm.class"
    cluster.finish(app)
    rows = cluster.master.master_state.learned_classes.rows
    assert rows["clicks", "somebody"].application_id == known


def test_a_stream_that_stops_its_query_before_it_ends_was_a_stream() -> None:
    cluster = cluster_of(4)
    app = cluster.submit(1, CORE, name="clicks")
    cluster.settle()
    observe(cluster, app, STREAM)
    observe(cluster, app, BATCH)
    cluster.finish(app)
    assert class_of(cluster, cluster.submit(1, CORE, name="clicks")) is STREAM


@pytest.mark.parametrize(
    ("state", "next_class"),
    [(ApplicationState.SUCCEEDED, BATCH), (ApplicationState.FAILED, STREAM)],
)
def test_only_a_run_that_succeeds_shows_that_there_was_no_stream(
    state: ApplicationState, next_class: WorkloadClass
) -> None:
    cluster = cluster_of(4)
    streamed(cluster)
    second = cluster.submit(1, CORE, name="clicks")
    cluster.advance(10)
    cluster.finish(second, state)
    assert class_of(cluster, cluster.submit(1, CORE, name="clicks")) is next_class


def test_others_begin_as_batch() -> None:
    cluster = cluster_of(4)
    streamed(cluster)
    assert class_of(cluster, cluster.submit(1, CORE, name="etl")) is BATCH


def test_the_next_master_knows_what_was_learned_and_settles_what_was_guessed() -> None:
    cluster = cluster_of(4)
    streamed(cluster)
    second = cluster.submit(1, CORE, name="clicks")
    cluster.advance(30)
    cluster.restart_master()
    cluster.advance(5)
    cluster.register(cluster.nodes["n0"])
    assert class_of(cluster, second) is STREAM
    third = cluster.submit(1, CORE, name="clicks")
    assert class_of(cluster, third) is STREAM
    cluster.attach(second)
    cluster.advance(31)
    assert class_of(cluster, second) is BATCH, "a minute after its executor has started"


def test_while_its_appmaster_is_away_a_guess_stands() -> None:
    cluster = cluster_of(4, bounds=Bounds(application_grace_s=100.0))
    streamed(cluster)
    second = cluster.submit(1, CORE, name="clicks")
    cluster.advance(10)
    session = cluster.app(second).session
    assert session is not None
    cluster.submit_to_master(
        e.ApplicationDetached(now=cluster.now, application_id=second, session=session)
    )
    cluster.advance(70)
    assert class_of(cluster, second) is STREAM, "what it has seen cannot be reported"
    cluster.attach(second)
    cluster.advance(2)
    observe(cluster, second, STREAM)
    cluster.advance(20)
    assert class_of(cluster, second) is STREAM


@pytest.mark.parametrize("bounds", [Bounds(class_guess_s=0.0), Bounds(learned_classes_kept=0)])
def test_guessing_can_be_switched_off(bounds: Bounds) -> None:
    cluster = cluster_of(4, bounds=bounds)
    streamed(cluster)
    second = cluster.submit(1, CORE, name="clicks")
    assert class_of(cluster, second) is BATCH
    assert cluster.app(second).record.class_evidence == ""


def row(name: str, workload_class: WorkloadClass = STREAM) -> LearnedClass:
    application_id = ApplicationId(f"app-{name}")
    return LearnedClass(
        name=name, user="ada", workload_class=workload_class, application_id=application_id
    )


def test_the_least_recently_used_is_forgotten() -> None:
    table = LearnedClassTable(limit=2)
    assert table.put(row("a")) == table.put(row("b")) == []
    assert table.find(("a", "ada")) == row("a")
    assert table.put(row("c")) == [("b", "ada")]
    cluster = cluster_of(4, bounds=Bounds(learned_classes_kept=1))
    streamed(cluster, "x")
    streamed(cluster, "y")
    assert [key[0] for key in cluster.disk.learned_classes] == ["y"]
