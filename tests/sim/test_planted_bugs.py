"""The simulator can fail: with a bug planted in the core, some seed of the first few finds it.

Each bug is one that a change could introduce. The same seeds find nothing in the core as it is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

import pytest

from hrm.sim.faults.plan import Limits, Plan
from hrm.sim.faults.plan_generator import draw
from hrm.sim.run import run_plan
from tests.sim.planted import (
    drivers,
    elasticity,
    gangs,
    gpu_waiters,
    gpus,
    masters,
    nodes,
    pipelines,
    platforms,
    pool,
    priorities,
    queue_plans,
    queues,
    scheduling,
    turns,
    yielding,
)
from tests.sim.planted.plans import (
    LATER,
    behind_a_labelled_gang,
    behind_a_large_gang,
    behind_a_stream,
    behind_an_excluded_job,
    behind_large_requests,
    behind_waiting_batch,
    beside_a_free_gpu,
    beside_kept_batch,
    crashing_agents,
    cut_drivers,
    cut_series,
    gpu_rivals,
    halved_streams,
    hanging_agents,
    late_streams,
    recurring,
    rival_gang,
    rivals_of_kinds,
    rivals_of_sizes,
    rivals_that_want_more,
    waiting_streams,
    waves_of_streams,
)

SEEDS = range(150)
_WITH_PLANS = frozenset(
    {"yielding", "pipelines", "priorities", "training", "scaling", "gpu-waiters"}
)
LIMITS = (
    Limits(without=_WITH_PLANS),
    Limits(without=frozenset({"submissions", *_WITH_PLANS})),
)
"""One of the bugs is rare if the nodes are full of drivers; those of what yields and of classes
have plans."""
PLAIN = Limits(
    without=frozenset({"queues", "yielding", "pipelines", "training", "scaling", "gpu-waiters"})
)
"""What the seeds below meant when they found something."""
MODULES = (
    *(scheduling, gangs, nodes, masters, turns, gpus, drivers, queues, platforms, yielding),
    *(pipelines, priorities, elasticity, pool, gpu_waiters),
)
BUGS = [bug for module in MODULES for bug in module.BUGS]

ERRORS = r"\b(?:Attribute|Index|Key|Name|Type|Value)Error\b"
"""A bug that was written for another core than this one raises one of these, and would be found
whatever the simulator checks."""
CAUGHT_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    scheduling.stale_lease: 73,
    scheduling.locked_units_granted: 19,
    scheduling.jobs_of_a_lost_scheduler: 3,
    scheduling.reply_before_its_changes: 32,
    scheduling.drivers_fill_the_cluster: 24,
    scheduling.driver_of_a_late_proposal: 24,
    scheduling.end_of_drivers_awaited: 24,
    nodes.cores_in_two_units: 14,
    nodes.rebinding_replied_twice: 11,
    nodes.too_many_are_preempted: 45,
    nodes.borrowed_from_no_unit: 4,
    nodes.idle_cores_held_back: 4,
    nodes.freed_cores_stay: 4,
    nodes.processes_stay_on_their_cores: 152,
    nodes.old_epoch_honoured: 30,
    scheduling.excluded_node_granted: 44,
    gangs.stream_queued_behind_streams: 0,
    masters.lease_for_former_drivers: 44,
    masters.node_taken_by_its_identity: 17,
    masters.callers_wait_for_a_full_disk: 11,
    masters.begun_on_a_full_disk: 10,
    masters.next_driver_too_early: 78,
    masters.lost_driver_taken_for_dead: 82,
    masters.behind_its_nodes: 64,
    masters.unknown_applications_ended: 95,
    turns.orders_for_the_agent_before: 110,
    turns.batch_waits_for_streams: 218,
    turns.round_begun_twice: 9,
    turns.request_of_a_stream_overlooked: 209,
    scheduling.double_commit: 17,
    gangs.stream_in_parts: 227,
    scheduling.queued_where_cores_are_shared: 21,
    scheduling.run_times_added_up: 5,
}
"""The seed that has found one that the first few do not; the sweep is used if it no longer does."""
CAUGHT_UNDER: dict[Callable[[pytest.MonkeyPatch], None], Plan] = {
    nodes.dead_agents_units: crashing_agents(1),
    nodes.binding_changed_without_gpus: draw(2253, PLAIN),
    nodes.cores_taken_from_a_stream: waiting_streams(16),
    turns.stream_not_ended: crashing_agents(1),
    turns.back_on_a_full_disk: hanging_agents(3),
    masters.lease_that_does_not_run_out: cut_drivers(4),
    masters.turn_before_a_lease_is_over: cut_series(9),
    masters.two_of_one_key: draw(2, PLAIN),
    masters.client_not_missed: draw(2, PLAIN),
    masters.guess_never_settled: recurring(1),
    masters.guess_over_a_declaration: recurring(16),
    masters.nothing_learned: recurring(0),
    gangs.gang_settled_by_its_grant: halved_streams(0),
    gangs.stream_left_with_kept_batch: beside_kept_batch(0),
    gangs.batch_in_line_counts_for_streams: behind_waiting_batch(0),
    gangs.half_a_gang_kept: halved_streams(0),
    gangs.stream_waits_for_kept_batch: halved_streams(0, losses=False),
    nodes.silent_about_preemption: halved_streams(0, losses=False),
    scheduling.place_forgotten: waves_of_streams(0),
    scheduling.place_not_kept_at_the_unit: waves_of_streams(0),
    nodes.replacement_at_the_end: waves_of_streams(0),
    scheduling.stale_lease: draw(73, Limits(without=frozenset({"rival-gpus", *LATER}))),
    gpus.gpu_shares_of_each_scheduler: gpu_rivals(8),
    gpus.gpus_counted_by_request: gpu_rivals(8),
    gpus.one_too_many: gpu_rivals(11),
    gpus.newcomer_without_gpus: gpu_rivals(37),
    gpus.gpus_taken_below_a_share: gpu_rivals(0, preemption=True),
    gpus.gpus_of_all_kinds_as_one: rivals_of_kinds(0, preemption=True),
    gpus.gpu_sizes_counted_alike: rivals_of_sizes(32, preemption=True),
    gpus.freed_gpus_taken_back: rivals_of_sizes(100, preemption=True),
    gpus.returned_and_forgotten: rivals_that_want_more(0),
    gpus.preempted_for_parts_of_gangs: rival_gang(3),
    gpus.started_gangs_preempted_as_others: rival_gang(0),
    gangs.stream_that_stops_batch: late_streams(1),
    scheduling.earlier_requests_count: behind_large_requests(0),
    gangs.gangs_of_all_sizes_alike: behind_a_large_gang(0),
    gangs.gangs_behind_any_smaller: behind_a_labelled_gang(0),
    scheduling.exclusions_of_all_alike: behind_an_excluded_job(0),
    gangs.gang_of_one_size: draw(1597, Limits(without=frozenset({"labels", *PLAIN.without}))),
    scheduling.units_of_one_node_are_one: beside_a_free_gpu(0),
    gpus.gpu_granted_twice: gpu_rivals(0, preemption=True),
    scheduling.end_of_streams_awaited_in_order: behind_a_stream(0),
    scheduling.batch_claims_of_a_stream: draw(8498, PLAIN),
    drivers.share_for_what_streams_hold: drivers.behind_a_labelled_driver(0),
    drivers.turn_for_what_streams_hold: drivers.behind_a_labelled_driver(0, there=True),
    drivers.small_drivers_pass: drivers.behind_small_drivers(0),
    drivers.no_turn_for_large_drivers: drivers.behind_small_drivers(0),
    queues.guarantees_ignored: queue_plans.borrowers(),
    queues.victims_below_guarantees: queue_plans.three_queues(),
    queues.freed_for_nobody: queue_plans.borrowers(),
    queues.borrowed_for_good: queue_plans.borrowers(),
    queues.loans_that_do_not_end: queue_plans.beside_what_does_not_fit(),
    queues.risen_share_overlooked: queue_plans.one_after_the_other(),
    queues.nothing_is_lent: queue_plans.beside_what_does_not_fit(),
    queues.maxima_of_parents_ignored: queue_plans.below_a_maximum(),
    queues.maximum_of_what_runs: queue_plans.below_a_maximum(),
    queues.too_many_at_once: queue_plans.one_after_the_other(),
    queues.gangs_reclaimed_in_parts: queue_plans.gang_of_borrowers(),
    queues.kept_is_reclaimed: queue_plans.kept_borrowers(),
    queues.kept_drivers_hold_up_others: queue_plans.drivers_of_two_queues(),
    queues.ended_applications_hold_nothing: queue_plans.changed_queues(),
    queues.users_wait_for_each_other: queue_plans.two_users(),
    platforms.parts_without_what_is_held: queue_plans.two_platforms(0),
    platforms.platforms_divided_twice: queue_plans.two_platforms(0),
    platforms.platform_awaited_without_end: queue_plans.two_platforms(0),
    platforms.moved_to_what_is_full: queue_plans.two_platforms(3),
    platforms.moved_when_it_has_just_started: queue_plans.two_platforms(0),
    platforms.kept_is_moved: queue_plans.two_platforms(0, preemptible=False),
    yielding.batch_waits_for_what_yields: yielding.beside_what_yields(0),
    yielding.yields_before_others: yielding.beside_what_yields(0),
    yielding.all_yield: yielding.beside_what_yields(0),
    yielding.batch_before_what_yields: yielding.beside_what_yields(0),
    yielding.forgotten_by_the_agent: yielding.beside_what_yields(0, crashes=True),
    yielding.nothing_yields_at_the_master: yielding.beside_what_yields(0),
    priorities.order_as_submitted: queue_plans.raised_and_lowered(),
    priorities.each_request_by_itself: queue_plans.raised_and_lowered(),
    priorities.raised_and_forgotten: queue_plans.raised_and_lowered(),
    priorities.patience_makes_urgent: queue_plans.raised_and_lowered(),
    priorities.interrupted_without_end: queue_plans.interrupted(),
    priorities.the_highest_interrupt_each_other: queue_plans.interrupted(),
    priorities.interrupted_and_last: queue_plans.interrupted(),
    gpu_waiters.passed_without_bound: gpu_waiters.many_for_one_gpu(0),
    gpu_waiters.all_yield_to_what_is_named: gpu_waiters.many_for_one_gpu(0, yields=True),
    gpu_waiters.memory_as_declared: gpu_waiters.many_for_one_gpu(0, greedy=True),
    gpu_waiters.need_of_what_runs_forgotten: gpu_waiters.many_for_one_gpu(0, greedy=True),
    gpu_waiters.kept_back_for_good: gpu_waiters.many_for_one_gpu(0, greedy=True),
    gpu_waiters.named_before_streams: gpu_waiters.many_for_one_gpu(0, stream=True),
    elasticity.gangs_are_broken_up: elasticity.trainings(0),
    elasticity.the_limit_is_forgotten: elasticity.trainings(0),
    elasticity.ended_and_elastic: elasticity.trainings(0),
    elasticity.streams_are_limited: elasticity.trainings(0),
    elasticity.resized_at_every_report: elasticity.trainings(0, resizes_per_minute=2),
    pool.drivers_are_drained: pool.few_wanted(0),
    pool.busy_machines_are_removed: pool.few_wanted(0),
    pool.the_only_node_of_a_stream_goes: pool.few_wanted(0),
    pool.drained_and_forgotten: draw(146, Limits(without=frozenset({"gpu-waiters"}))),
    pool.incomplete_is_complete: draw(646, Limits(without=frozenset({"gpu-waiters"}))),
    elasticity.silent_and_limited: elasticity.silent_for_long(0),
    elasticity.limits_of_the_last_model: elasticity.of_two_models(0),
    elasticity.any_waiter_counts: elasticity.unlike_nodes(0),
    elasticity.any_training_serves: elasticity.unlike_nodes(0),
    elasticity.handed_out_twice: elasticity.others_leave(1),
    elasticity.more_than_the_maximum: elasticity.others_leave(0, stay=1),
    elasticity.taken_though_nothing_wants_it: elasticity.trainings(0, crowded=False),
    pipelines.end_of_an_old_attempt: pipelines.cut_workers(0),
    pipelines.tasks_of_a_lost_worker: pipelines.busy_workers(0),
    pipelines.placed_though_it_came_back: pipelines.busy_workers(0),
    pipelines.acknowledged_too_early: pipelines.busy_workers(0),
    pipelines.another_step_while_yielding: pipelines.cut_workers(1),
    pipelines.tasks_of_a_released_worker: pipelines.busy_workers(0),
    pipelines.numbers_of_an_earlier_master: pipelines.restored_store(16),
    pipelines.mute_workers_are_kept: pipelines.busy_workers(0),
    pipelines.ends_are_forgotten: pipelines.busy_workers(1),
    pipelines.workloads_that_do_not_end: pipelines.busy_workers(0),
    pipelines.workers_that_do_not_yield: pipelines.few_cores(0),
    pipelines.latest_task_first: pipelines.few_cores(0),
    pipelines.remaining_times_freeze: pipelines.busy_workers(0),
}


def plans(bug: Callable[[pytest.MonkeyPatch], None]) -> Iterator[Plan]:
    """What to try, the most promising first."""
    if bug in CAUGHT_BY:
        yield draw(CAUGHT_BY[bug], Limits(without=frozenset(LATER)))
        yield draw(CAUGHT_BY[bug], PLAIN)
    if bug in CAUGHT_UNDER:
        yield CAUGHT_UNDER[bug]
    for limits in LIMITS:
        for seed in SEEDS:
            yield draw(seed, limits)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    tried = ((plan, run_plan(plan).violations) for plan in plans(bug))
    found, violations = next(((plan, some) for plan, some in tried if some), (None, ()))
    assert found is not None, f"{len(SEEDS)} seeds found nothing: {bug.__doc__}"
    assert not re.search(ERRORS, violations[0]), f"it fails by itself: {violations[0]}"
    monkeypatch.undo()
    assert run_plan(found).violations == ()


def test_every_planted_bug_is_tried() -> None:
    for module in MODULES:
        written = {
            function
            for name, function in vars(module).items()
            if inspect.isfunction(function)
            and function.__module__ == module.__name__
            and not name.startswith("_")
            and list(inspect.signature(function).parameters) == ["patch"]
        }
        assert written == set(module.BUGS), module.__name__
    assert len(BUGS) == len(set(BUGS))
    assert {*CAUGHT_BY, *CAUGHT_UNDER} <= set(BUGS)
