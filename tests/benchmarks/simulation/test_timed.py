"""What is charged: choices overlap, commits do not, and nothing gets lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulation.costs import REFERENCE, Cost, Fixed, Kind, Measured
from benchmarks.simulation.timed import Setup, TimedCluster, simulate
from benchmarks.simulation.workload import JobPlan, burst, mixed
from hrm.core.vocabulary.model import Resources, WorkloadClass
from hrm.errors import HrmError

SMALL = Setup(nodes=30, network_s=0.0, hop_s=0.0)
CHOICE = Fixed({Kind.ROUND: Cost(0.010)})
COMMIT = Fixed({Kind.COMMIT: Cost(0.010)})


def at_once(jobs: int, containers: int = 4) -> list[JobPlan]:
    return [JobPlan(0.0, containers, 5.0)] * jobs


def test_one_scheduler_chooses_one_job_after_the_other() -> None:
    result = simulate(replace(SMALL, schedulers=0), CHOICE, at_once(12))

    delays_ms = sorted(1e3 * job.delay_s for job in result.jobs)
    assert delays_ms == pytest.approx([10.0 * n for n in range(1, 13)])
    assert result.counts["rounds"] == 12


def test_six_schedulers_choose_at_the_same_time() -> None:
    result = simulate(replace(SMALL, schedulers=6), CHOICE, at_once(12))

    delays_ms = sorted(1e3 * job.delay_s for job in result.jobs)
    assert delays_ms == pytest.approx([10.0] * 6 + [20.0] * 6)
    assert result.loads["schedulers_busy"] == pytest.approx(1.0)


@pytest.mark.parametrize("schedulers", [0, 1, 6])
def test_no_two_commit_at_the_same_time(schedulers: int) -> None:
    result = simulate(replace(SMALL, schedulers=schedulers), COMMIT, at_once(12))

    assert max(job.delay_s for job in result.jobs) == pytest.approx(0.120)
    assert result.loads["master_busy"] == pytest.approx(1.0)


def test_a_hop_is_paid_between_scheduler_and_negotiator_only() -> None:
    far = replace(SMALL, hop_s=0.003)

    centralised = simulate(replace(far, schedulers=0), CHOICE, at_once(1))
    ours = simulate(replace(far, schedulers=6), CHOICE, at_once(1))

    assert centralised.jobs[0].delay_s == pytest.approx(0.010)
    assert ours.jobs[0].delay_s == pytest.approx(0.016)


def test_a_job_is_completed_when_its_containers_have_run() -> None:
    setup = replace(SMALL, schedulers=0, network_s=0.001)

    (job,) = simulate(setup, CHOICE, at_once(1)).jobs

    assert job.delay_s == pytest.approx(0.012)
    assert job.completion_s == pytest.approx(0.012 + 5.0 + 0.002)


def test_reports_that_come_last_hold_up_no_commit() -> None:
    reports = Fixed({Kind.COMMIT: Cost(0.001), Kind.REPORT: Cost(0.010)})
    setup = replace(SMALL, schedulers=6, network_s=0.0005)

    in_order = simulate(setup, reports, at_once(12))
    last = simulate(replace(setup, reports_last=True), reports, at_once(12))

    delays_s = [max(job.delay_s for job in result.jobs) for result in (in_order, last)]
    # At most one report is being taken in when a commit comes.
    assert delays_s[1] < 0.012 + 0.010 + 0.002 < delays_s[0]
    assert all(job.completed_s > 0 for job in last.jobs)


def test_a_full_cluster_lets_containers_wait_and_completes_every_job() -> None:
    tiny = replace(SMALL, nodes=2, vcores=4)

    result = simulate(tiny, REFERENCE, burst(6, seed=1, run_s=2.0, tasks=8))

    assert all(len(job.granted_s) == 8 for job in result.jobs)
    assert result.counts["queued"] > 0
    # 48 containers on 8 slots, 2 s each.
    assert max(job.completed_s for job in result.jobs) >= 12.0


def test_stale_claims_are_counted_where_schedulers_overlap() -> None:
    crowded = replace(SMALL, nodes=4)

    alone = simulate(replace(crowded, schedulers=0), CHOICE, at_once(12))
    together = simulate(replace(crowded, schedulers=6), CHOICE, at_once(12))

    assert alone.counts["stale"] == 0
    assert together.counts["stale"] > 0


def test_fixed_costs_give_the_same_run_twice() -> None:
    setup = replace(SMALL, schedulers=3, lease="candidates", large_nodes=3)

    first, second = (
        simulate(setup, REFERENCE, mixed(300.0, 20, 200.0, 7, run_s=0.2)).values() for _ in range(2)
    )

    assert first == second
    assert first["stream_delay_ms"] > 0


def test_another_seed_gives_another_run() -> None:
    first, second = (simulate(SMALL, REFERENCE, burst(6, seed)).values() for seed in (1, 2))

    assert first != second


def test_a_stream_holds_up_batch_commits_only_with_a_lease() -> None:
    # The stream requests while batch chooses: those choices reach the negotiator during its own.
    stream = JobPlan(0.005, 2, 5.0, WorkloadClass.STREAM)
    plans = [*at_once(5), stream]

    locked = simulate(replace(SMALL, schedulers=6), CHOICE, plans)
    free = simulate(replace(SMALL, schedulers=6, lease="none"), CHOICE, plans)

    assert locked.counts["parked"] > 0
    assert free.counts["parked"] == 0
    assert all(len(job.granted_s) > 0 for job in free.jobs)


def test_streams_wait_for_each_other_s_lease() -> None:
    streams = [JobPlan(0.0, 2, 5.0, WorkloadClass.STREAM)] * 3

    locked = simulate(replace(SMALL, schedulers=3), CHOICE, streams)
    free = simulate(replace(SMALL, schedulers=3, lease="none"), CHOICE, streams)

    assert sorted(job.delay_s for job in locked.jobs) == pytest.approx([0.010, 0.020, 0.030])
    assert [job.delay_s for job in free.jobs] == pytest.approx([0.010] * 3)


def test_measured_costs_are_what_the_core_used() -> None:
    cluster = TimedCluster(replace(SMALL, schedulers=0), Measured(scale=2.0), at_once(6))

    cluster.run(to_completion=False)

    used_s = sum(cluster.tally.used_s.values())
    assert cluster.master.busy_s == pytest.approx(2.0 * used_s)
    assert cluster.tally.events[Kind.ROUND] >= 6
    assert cluster.tally.containers[Kind.COMMIT] == 24


def test_the_master_pays_for_every_copy_and_the_processes_for_taking_it_in() -> None:
    copies = Fixed({Kind.COPY_SENT: Cost(0.004), Kind.COPY_TAKEN: Cost(0.002)})

    centralised = simulate(replace(SMALL, schedulers=0), copies, at_once(1))
    one = TimedCluster(replace(SMALL, schedulers=1), copies, at_once(1))
    result = one.run()

    assert centralised.jobs[0].delay_s == 0.0
    # The job goes to the process with a change; its claims return, and with the reply another.
    assert result.jobs[0].delay_s >= 0.004 + 0.002
    assert one.tally.events[Kind.COPY_SENT] >= one.tally.events[Kind.COPY_TAKEN] > 0


def test_a_unit_is_encoded_once_and_sent_to_every_copy() -> None:
    encoded = []
    for schedulers in (1, 6):
        setup = replace(SMALL, schedulers=schedulers)
        cluster = TimedCluster(setup, Fixed({Kind.UNITS_ENCODED: Cost(0.0, 0.001)}), at_once(1))
        cluster.run(to_completion=False)
        # One job takes four units; the copies of the other schedulers are to show them as well.
        until_s = cluster.clock.now + 0.3
        while cluster.clock.step(until_s):
            pass
        encoded.append(cluster.tally.containers[Kind.UNITS_ENCODED])
        assert cluster.tally.events[Kind.COPY_SENT] >= schedulers

    assert encoded[0] == encoded[1] > 0


def test_messages_and_rows_cost_what_their_production_code_uses() -> None:
    cluster = TimedCluster(replace(SMALL, schedulers=2), Measured(), at_once(4))

    cluster.run()

    used_s = cluster.tally.used_s
    for kind in (Kind.CALL, Kind.UNITS_ENCODED, Kind.COPY_SENT, Kind.COPY_TAKEN, Kind.STORE):
        assert used_s[kind] > 0, kind


def test_an_impossible_experiment_reports_it() -> None:
    huge = [JobPlan(0.0, 1, 1.0, resources=Resources(64, 1024))]

    with pytest.raises(HrmError, match="refused a request of the experiment"):
        simulate(SMALL, REFERENCE, huge)


def test_scaling_leaves_other_kinds_alone() -> None:
    costs = REFERENCE.scaled(3.0, (Kind.ROUND,))

    before_s = REFERENCE.charge_s(Kind.ROUND, 10, 0.0)
    assert costs.charge_s(Kind.ROUND, 10, 0.0) == pytest.approx(3.0 * before_s)
    assert costs.charge_s(Kind.COMMIT, 10, 0.0) == REFERENCE.charge_s(Kind.COMMIT, 10, 0.0)
    assert Fixed({}).charge_s(Kind.REPORT, 1, 0.5) == 0.0
