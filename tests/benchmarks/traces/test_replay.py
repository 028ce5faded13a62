"""Replaying traces through the core: how long jobs wait, what is measured, and that it is
repeatable."""

from __future__ import annotations

import random
from functools import partial

import pytest

from benchmarks.traces.replay import Estimates, ReplayResult, Setup, replay
from benchmarks.traces.replay_measures import Measures, distribution
from benchmarks.traces.replay_plan import (
    PARTS_PER_CORE,
    Assumptions,
    offered_load,
    plan_jobs,
    poisson,
    sampled_nodes,
    uniform_nodes,
    with_load,
)
from benchmarks.traces.trace_records import TraceJob, TraceNode, TraceTask
from hrm import policies
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.errors import InvalidRequest, LimitReached

POLICIES = (
    "min-wait", "fifo", "centralized-drf", "best-fit", "worst-fit", "random", "round-robin",
)  # fmt: skip
NEAR = 0.02
"""Messages take a thousandth of a second each way."""


def job(name: str, at_s: float, *tasks: TraceTask, together: bool = False) -> TraceJob:
    return TraceJob(job_id=name, arrival_s=at_s, tasks=tasks, together=together)


def work(
    name: str,
    seconds: float,
    *,
    instances: int = 1,
    vcores: float = 1.0,
    parents: tuple[str, ...] = (),
    gpus: int = 0,
    share: float = 1.0,
) -> TraceTask:
    return TraceTask(
        name=name, duration_s=seconds, instances=instances, vcores=vcores, memory_mib=1024,
        gpus=gpus, gpu_share=share, parents=parents,
    )  # fmt: skip


def run(
    jobs: list[TraceJob],
    nodes: list[TraceNode],
    policy: str = "min-wait",
    estimates: Estimates = Estimates.EXACT,
) -> ReplayResult:
    setup = Setup(policy=partial(policies.load, policy), estimates=estimates)
    return replay(plan_jobs(jobs, Assumptions()), nodes, setup)


def test_the_second_of_two_jobs_waits_for_the_only_core() -> None:
    result = run(
        [job("a", 5, work("t", 10)), job("b", 7, work("t", 10))], uniform_nodes(1, 1, 2048)
    )

    assert (result.jobs, result.containers, result.jobs_refused) == (2, 2, 0)
    assert result.wait.largest == pytest.approx(8, abs=NEAR)
    assert result.completion.mean == pytest.approx((10 + 18) / 2, abs=NEAR)
    assert result.makespan_s == pytest.approx(20, abs=NEAR)
    assert result.vcore_utilisation == pytest.approx(1.0, abs=NEAR)


def test_a_scheduler_is_woken_only_when_it_counts_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake that another has replaced must not be repeated, or wakes would multiply."""
    woken, handle = [], MasterCore.handle

    def observe(self: MasterCore, event: e.MasterEvent) -> list[c.MasterCommand]:
        if isinstance(event, e.SchedulerWoken):
            due_s = self.placement.schedulers[event.scheduler].wake_at_s
            woken.append(due_s is None or due_s <= event.now)
        return handle(self, event)

    monkeypatch.setattr(MasterCore, "handle", observe)
    jobs = [job(str(n), 0.3 * n, work("t", 3 + n % 5, instances=1 + n % 4)) for n in range(40)]
    run(jobs, uniform_nodes(2, 4, 8192), "fifo")
    assert len(woken) > len(jobs)
    assert all(woken)


def test_tasks_start_when_those_before_them_have_ended() -> None:
    tasks = (work("a", 4, instances=2), work("b", 3), work("c", 5, parents=("a", "b")))
    result = run([job("j", 0, *tasks)], uniform_nodes(1, 8, 8192))
    assert result.containers == 4
    assert result.completion.mean == pytest.approx(4 + 5, abs=NEAR)
    assert result.wait.largest < NEAR


def test_a_task_after_others_waits_from_their_end_on() -> None:
    """One core: a runs until 4, then what came at 1 and takes 10, then b, for which a was run."""
    tasks = (work("a", 4), work("b", 3, parents=("a",)))
    result = run([job("j", 0, *tasks), job("k", 1, work("t", 10))], uniform_nodes(1, 1, 2048))
    assert result.wait.largest == pytest.approx(10, abs=NEAR)
    assert result.wait.p50 == pytest.approx(3, abs=NEAR)
    assert result.wait.mean == pytest.approx((0 + 3 + 10) / 3, abs=NEAR)


def test_a_gang_starts_together_or_waits() -> None:
    blocker = job("a", 0, work("t", 10, gpus=1))
    gang = job("b", 1, work("t", 5, instances=2, gpus=1), together=True)
    node = uniform_nodes(1, 8, 65_536, gpus=2)
    result = run([blocker, gang], node)
    assert result.wait.largest == pytest.approx(9, abs=NEAR)
    assert result.wait.p50 == pytest.approx(9, abs=NEAR)


@pytest.mark.parametrize(
    "policy", ["min-wait", "fifo", "centralized-drf", "best-fit", "round-robin"]
)
def test_a_gang_finds_the_second_node_where_the_first_has_more_gpus_than_cores(policy: str) -> None:
    nodes = uniform_nodes(2, 4, 65_536, gpus=8)
    gang = job("g", 0, work("t", 5, instances=8, gpus=1), together=True)
    assert run([gang], nodes, policy).wait.largest < NEAR


def test_shares_of_a_gpu_run_together_and_whole_ones_do_not() -> None:
    node = uniform_nodes(1, 8, 65_536, gpus=1)
    halves = [job(str(i), 0.001 * i, work("t", 10, gpus=1, share=0.5)) for i in range(2)]
    assert run(halves, node).wait.largest < NEAR
    wholes = [job(str(i), 0.001 * i, work("t", 10, gpus=1)) for i in range(2)]
    assert run(wholes, node).wait.largest == pytest.approx(10, abs=NEAR)


def test_what_no_node_could_ever_run_is_refused_and_counted() -> None:
    small = uniform_nodes(1, 2, 4096)
    result = run([job("a", 0, work("t", 3, vcores=3)), job("b", 1, work("t", 3))], small)
    assert (result.jobs_refused, result.containers, result.completion.count) == (1, 1, 1)


def test_batch_that_is_preempted_for_a_stream_runs_again_from_the_start() -> None:
    stream = TraceJob(
        job_id="s", arrival_s=5, tasks=(work("t", 10),), workload_class=WorkloadClass.STREAM
    )
    result = run([job("b", 0, work("t", 60)), stream], uniform_nodes(1, 1, 2048))
    assert (result.restarts, result.containers) == (1, 2)
    assert result.makespan_s == pytest.approx(5 + 15 + 10 + 60, abs=1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("estimates", Estimates)
def test_every_policy_brings_every_job_to_its_end_the_same_way_each_time(
    policy: str, estimates: Estimates
) -> None:
    chance = random.Random(3)
    jobs = [
        job(
            str(number),
            chance.uniform(0, 300),
            work("m", chance.uniform(1, 40), instances=chance.randint(1, 6)),
            work("r", chance.uniform(1, 40), vcores=2.5, parents=("m",)),
        )
        for number in range(30)
    ]
    nodes = uniform_nodes(3, 8, 32_768)
    first, second = (run(jobs, nodes, policy, estimates) for _ in range(2))
    assert first == second
    assert first.completion.count == 30
    assert first.containers == first.wait.count == sum(j.instances for j in jobs)
    assert 0 < first.vcore_utilisation <= 1
    assert 0 <= first.fragmentation <= 1


def test_an_overloaded_replay_ends_with_a_reason() -> None:
    setup = Setup(policy=partial(policies.load, "fifo"), events_max=5)
    with pytest.raises(LimitReached, match="lower load"):
        replay(
            plan_jobs([job("a", 0, work("t", 1))], Assumptions()), uniform_nodes(1, 1, 2048), setup
        )


def test_measures_count_free_capacity_that_the_median_request_cannot_use() -> None:
    unit = ResourceUnit(unit_id=ResourceUnitId("n/cpu"), capacity=Resources(10, 1000), run_limit=10)
    measures = Measures([(NodeName("n"), [unit])], median=Resources(4, 100))
    measures.begin(0.0, 20.0)
    measures.started("x", NodeName("n"), unit.unit_id, Resources(5, 100), 10.0)
    measures.ended(NodeName("n"), unit.unit_id, Resources(5, 100), 30.0)
    assert measures.vcore_utilisation == pytest.approx(5 / 2 / 10)
    # 10 s with 10 free, 8 of them usable; 10 s with 5 free, 4 of them usable.
    assert measures.fragmentation == pytest.approx(1 - (80 + 40) / (100 + 50))
    assert measures.device_utilisation == 0.0


def test_memory_that_is_used_up_makes_free_gpus_unusable() -> None:
    unit = ResourceUnit(
        unit_id=ResourceUnitId("n/gpu0"),
        capacity=Resources(4, 1000, 16),
        run_limit=4,
        gpu=Gpu(index=0, memory_mib=16),
    )
    measures = Measures([(NodeName("n"), [unit])], median=Resources(1, 500, 8))
    measures.begin(0.0, 10.0)
    measures.started("x", NodeName("n"), unit.unit_id, Resources(1, 600), 0.0)
    measures.finish(10.0)
    assert measures.fragmentation == 1.0


def test_percentiles_of_nothing_are_nothing() -> None:
    assert distribution([]).largest == 0.0
    measured_spread = distribution([1.0, 2.0, 3.0])
    assert (
        measured_spread.count,
        measured_spread.mean,
        measured_spread.p50,
        measured_spread.largest,
    ) == (3, 2.0, 2.0, 3.0)


def test_plans_keep_the_work_and_split_what_hrm_serves_one_by_one() -> None:
    assumed = Assumptions(containers_per_task=4)
    many = job("a", 9, work("t", 10, instances=100, vcores=0.5))
    big = job("b", 9, work("t", 7, vcores=8, gpus=4))
    measured = job("c", 9, TraceTask(name="t", duration_s=2.0, instances=6,
                                     measured_s=(1, 1, 2, 2, 3, 3)))  # fmt: skip
    folded, split, exact = plan_jobs([many, big, measured], assumed)
    assert len(folded.tasks[0].durations_s) == 4
    assert sum(folded.tasks[0].durations_s) == pytest.approx(1000)
    assert folded.tasks[0].resources.vcores == PARTS_PER_CORE // 2
    assert (split.gang, split.containers) == (4, 4)
    assert split.tasks[0].resources == Resources(2 * PARTS_PER_CORE, 256, assumed.gpu_memory_mib)
    assert sorted(exact.tasks[0].durations_s) == [2.0, 2.0, 4.0, 4.0]
    assert folded.arrival_s == 0.0


def test_offered_load_is_work_over_capacity_between_the_arrivals() -> None:
    jobs = [job("a", 0, work("t", 1000, vcores=2)), job("b", 50, work("t", 30, vcores=2)),
            job("c", 100, work("t", 30))]  # fmt: skip
    plans = plan_jobs(jobs, Assumptions())
    nodes = uniform_nodes(1, 10, 10**9)
    assert offered_load(plans, nodes, 1) == pytest.approx((2 * 100 + 2 * 30) / (10 * 100))
    faster = with_load(plans, 2)
    assert [plan.arrival_s for plan in faster] == [0, 25, 50]
    with pytest.raises(InvalidRequest, match="scaled"):
        with_load(plans, 0)


def test_jobs_without_times_are_drawn_and_jobs_without_run_times_refused() -> None:
    plans = plan_jobs([job("a", 0, work("t", 1)), job("b", 0, work("t", 2))], Assumptions())
    drawn = poisson(plans, 400, 25.0, seed=1)
    assert drawn == poisson(plans, 400, 25.0, seed=1)
    assert drawn[-1].arrival_s / 399 == pytest.approx(25, rel=0.2)
    with pytest.raises(InvalidRequest, match="run time"):
        plan_jobs([job("a", 0, work("t", 0))], Assumptions())
    with pytest.raises(InvalidRequest, match="no job"):
        plan_jobs([], Assumptions())


def test_a_smaller_cluster_is_an_even_sample_of_the_real_one() -> None:
    real = [TraceNode(name=str(i), vcores=1, memory_mib=1, gpus=i) for i in range(10)]
    assert [node.gpus for node in sampled_nodes(real, 5)] == [0, 2, 4, 6, 8]
    twice = sampled_nodes(real, 20)
    assert len({node.name for node in twice}) == 20
    assert sum(node.gpus for node in twice) == 90
