"""Submitted drivers: what their ends mean, when the next one starts, and that two never run."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.messages.submissions import SubmissionState as S
from hrm.core.submission.driver_lease import DriverLease, LeaseLimits, LeaseState
from hrm.core.submission.hosting import driver_event
from hrm.core.submission.submissions import SubmissionsCore
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerState,
    ContainerStatus,
    EndCause,
    Resources,
    WorkloadClass,
)
from hrm.errors import (
    HrmError,
    LimitReached,
    NotFound,
    StaleEpoch,
    Unavailable,
)
from hrm.testing.virtual import VirtualCluster, unit

ID = "driver-20260101000000-0001"
BOUNDS = m.SubmissionBounds(driver_lease_s=30.0, lease_margin_s=5.0, driver_restarts_max=3)


def record(**changes: Any) -> m.SubmissionRecord:
    plain = m.SubmissionRecord(
        submission_id=ID, key="k", name="app", user="u", driver="{}", resources=Resources(1, 1024)
    )
    return replace(plain, **changes)


class Master:
    """A core, its clock, and what it has written."""

    def __init__(self, bounds: m.SubmissionBounds = BOUNDS, **changes: Any) -> None:
        self.bounds = bounds
        self.now = 100.0
        self.core = SubmissionsCore(bounds)
        self.stored: dict[str, m.SubmissionRecord] = {}
        self.submit = self.feed(m.Submitted, call_id=1, record=record(**changes))

    def feed(self, event: Any, **fields: Any) -> list[m.Command]:
        commands = self.core.handle(event(now=self.now, **fields))
        for command in commands:
            if isinstance(command, m.PersistSubmission):
                self.stored[command.record.submission_id] = command.record
        return commands

    def driver(self, event: Any, attempt: int = 1, **fields: Any) -> list[m.Command]:
        return self.feed(event, submission_id=ID, attempt=attempt, **fields)

    def lease(self, attempt: int = 1, **fields: Any) -> Any:
        """The grant, or the error."""
        replies = self.driver(m.LeaseAsked, attempt, call_id=7, **fields)
        return replies[-1].error if isinstance(replies[-1], m.RefuseCall) else replies[-1]

    def run(self, attempt: int = 1) -> None:
        self.driver(m.DriverLaunched, attempt, node="n1")
        assert isinstance(self.lease(attempt), m.GrantLease)

    def end(self, attempt: int = 1, **fields: Any) -> list[m.Command]:
        fields = {"exit_code": 1, "message": "it broke"} | fields
        return self.driver(m.DriverEnded, attempt, **fields)

    def later(self, seconds: float) -> list[m.Command]:
        """Time passes, with the ticks of a master that is awake."""
        until_s, from_ticks = self.now + seconds, list[m.Command]()
        while self.now < until_s:
            self.now = min(until_s, self.now + 0.5)
            from_ticks += self.feed(m.SubmissionsTicked)
        return from_ticks

    def restart(self) -> None:
        self.core = SubmissionsCore(self.bounds, self.stored.values(), self.now)

    @property
    def record(self) -> m.SubmissionRecord:
        return self.core.entries[ID].record

    @property
    def state(self) -> S:
        return self.record.state


def kinds(commands: list[m.Command]) -> list[type]:
    return [type(command) for command in commands]


def test_a_driver_runs_to_its_end() -> None:
    master = Master()
    assert kinds(master.submit) == [m.PersistSubmission, m.RequestDriver, m.Committed]
    master.driver(m.DriverLaunched, node="n1")
    seen = [master.state]
    assert master.lease() == m.GrantLease(call_id=7, lease_s=0.0, renew_s=BOUNDS.renew_s)
    seen.append(master.state)
    master.driver(m.DriverLinked, application_id="app-1")
    ended = master.end(exit_code=0, message="")
    assert [*seen, master.state] == [S.LAUNCHING, S.RUNNING, S.FINISHED]
    assert (master.record.exit_code, master.record.application_ids) == (0, ("app-1",))
    assert [x.state for x in ended if isinstance(x, m.EndLinked | m.EndHolder)] == [S.FINISHED] * 2


def test_a_driver_without_supervision_fails_once() -> None:
    master = Master()
    master.run()
    master.end(exit_code=3)
    assert (master.state, master.record.exit_code) == (S.FAILED, 3)
    assert master.record.message == "it broke"
    assert isinstance(master.lease(), StaleEpoch)


def test_a_supervised_driver_starts_again_with_growing_pauses_and_a_bound() -> None:
    master = Master(supervise=True)
    for attempt, delay_s in enumerate((1.0, 2.0, 4.0), 1):
        master.run(attempt)
        master.end(attempt)
        assert master.state is S.WAITING_TO_RESTART
        assert not master.later(delay_s - 0.1)
        requested = master.later(0.2)
        assert m.RequestDriver(submission_id=ID, attempt=attempt + 1) in requested
    master.run(4)
    master.end(4)
    assert master.state is S.FAILED
    assert "driver_restarts_max" in master.record.message
    assert "it broke" in master.record.message


def test_restarts_are_forgotten_after_the_window() -> None:
    master = Master(supervise=True)
    for attempt in range(1, 8):
        master.run(attempt)
        master.end(attempt)
        master.later(master.bounds.driver_restart_window_s)
        assert master.state is S.SUBMITTED
        master.now += master.bounds.driver_restart_window_s


def test_a_lost_driver_is_replaced_only_when_its_lease_is_over() -> None:
    master = Master(supervise=True)
    master.run()
    master.now += 10
    assert isinstance(master.lease(), m.GrantLease)
    granted_at_s = master.now
    master.now += 8
    master.end(lost=True, exit_code=-1, message="node n1 is lost")
    assert isinstance(master.lease(), StaleEpoch), "it gets no lease any more"
    assert master.record.restart_at_s == granted_at_s + 35.0
    assert not master.later(granted_at_s + 34.9 - master.now)
    assert m.RequestDriver(submission_id=ID, attempt=2) in master.later(0.2)
    assert isinstance(master.lease(1), StaleEpoch)


@pytest.mark.parametrize("how", ["its runner says so", "its node says so"])
def test_a_lost_driver_that_is_known_to_be_dead_is_not_waited_for(how: str) -> None:
    master = Master(supervise=True)
    master.run()
    master.end(lost=True)
    if how == "its runner says so":
        master.lease(gone=True)
    else:
        master.end(lost=False)
    assert m.RequestDriver(submission_id=ID, attempt=2) in master.later(1.1)


def test_a_container_that_is_lost_before_its_driver_started_is_replaced_at_once() -> None:
    master = Master()
    for attempt in (1, 2):
        master.driver(m.DriverLaunched, attempt, node="n1")
        master.end(attempt, lost=True)
        assert m.RequestDriver(submission_id=ID, attempt=attempt + 1) in master.later(5)
        assert isinstance(master.lease(attempt), StaleEpoch), "should it live after all"
    master.end(3, launched=False, message="no Spark there")
    assert master.state is S.FAILED
    assert "driver_launches_max" in master.record.message


def test_a_container_that_only_waited_at_its_node_does_not_count() -> None:
    """Nodes are lost under it more often than a driver may be launched in vain; then it runs."""
    master = Master()
    for attempt in range(1, 2 * BOUNDS.driver_launches_max + 1):
        master.end(attempt, exit_code=-1, lost=True, launched=False, waited=True)
        assert (master.state, master.record.launches) == (S.WAITING_TO_RESTART, 0)
        assert m.RequestDriver(submission_id=ID, attempt=attempt + 1) in master.later(1.1)
        assert isinstance(master.lease(attempt), StaleEpoch), "should it live after all"
    master.run(2 * BOUNDS.driver_launches_max + 1)
    assert master.state is S.RUNNING


def test_one_that_is_known_to_have_begun_counts_whatever_its_end_reports() -> None:
    master = Master()
    for attempt in (1, 2, 3):
        master.driver(m.DriverLaunched, attempt, node="n1")
        master.end(attempt, exit_code=-1, lost=True, launched=False, waited=True)
        master.later(5)
    assert master.state is S.FAILED
    assert "driver_launches_max" in master.record.message


@pytest.mark.parametrize(
    ("end", "started_at_s", "waited"),
    [
        (ContainerEnd(cause=EndCause.NODE_LOST), 0.0, True),
        (ContainerEnd(cause=EndCause.PREEMPTED), 0.0, True),
        (ContainerEnd(cause=EndCause.NODE_LOST), 7.0, False),
        (ContainerEnd(cause=EndCause.LAUNCH_FAILED), 0.0, False),
        (ContainerEnd(cause=EndCause.EXITED, exit_code=1), 0.0, False),
        (ContainerEnd(cause=EndCause.NODE_LOST, exit_code=143), 0.0, False),
    ],
)
def test_what_an_end_implies_for_the_start(
    end: ContainerEnd, started_at_s: float, waited: bool
) -> None:
    status = ContainerStatus(
        container_id=ContainerId(f"{ID}-x1"),
        application_id=ApplicationId(ID),
        executor_id="1",
        resource_profile_id=0,
        workload_class=WorkloadClass.BATCH,
        state=ContainerState.ENDED,
        resources=Resources(1, 1024),
        started_at_s=started_at_s,
        end=end,
    )
    master_state = VirtualCluster([unit("n1")]).master.master_state
    event = driver_event(record(), status, master_state, 9.0)
    assert isinstance(event, m.DriverEnded)
    assert event.waited is waited


def test_a_driver_that_waits_at_nodes_whose_agents_stop_starts_at_the_next() -> None:
    """End to end: the agent of its node returns what waits there, the next one stops, too."""
    cluster = VirtualCluster([unit("n1", vcores=1)])
    cluster.submit(1, Resources(1, 512))
    cluster.settle()
    driver = cluster.submit(1, Resources(1, 512), new_id=ApplicationId(ID))
    cluster.settle()
    assert cluster.states(driver) == {"waiting": 1}
    node = cluster.nodes["n1"]
    container_id = cluster.container(driver, 1).container_id
    stop = e.StopReceived(
        now=cluster.now, epoch=node.core.epoch, container_id=container_id,
        cause=EndCause.NODE_LOST, reason="the agent of node n1 is restarted", grace_s=1.0,
        only_if_waiting=True,
    )  # fmt: skip
    cluster.submit_to_node(node, stop)
    cluster.settle()
    notice = cluster.notices[driver][-1]
    assert isinstance(notice, c.ContainerChanged)
    event = driver_event(record(), notice.status, cluster.master.master_state, cluster.now)
    assert isinstance(event, m.DriverEnded)
    assert event.waited
    assert event.lost


def test_a_new_master_is_notified_of_a_running_driver_before_it_gives_it_up() -> None:
    master = Master(supervise=True)
    master.run()
    master.restart()
    assert not master.later(BOUNDS.recovery_s + 1)
    assert isinstance(master.lease(), m.GrantLease)
    assert not master.later(34)
    master.driver(m.DriverLaunched, node="n1")
    assert master.later(1000) == []
    assert master.state is S.RUNNING


def test_a_new_master_replaces_a_driver_of_which_nothing_is_received() -> None:
    master = Master(supervise=True)
    master.run()
    master.restart()
    assert not master.later(34.9), "the old master may have renewed its lease just before"
    assert master.later(0.2)
    assert master.state is S.WAITING_TO_RESTART
    assert m.RequestDriver(submission_id=ID, attempt=2) in master.later(1.1)


def test_a_new_master_asks_again_for_what_waited() -> None:
    master = Master()
    for _ in range(2 * BOUNDS.driver_launches_max):
        master.restart()
        master.later(BOUNDS.recovery_s + 1)
        master.later(5)
        assert master.state is S.SUBMITTED, "that counts as no failure"
    assert master.record.attempt == 1 + 2 * BOUNDS.driver_launches_max


def test_a_restart_that_is_due_is_kept_over_a_restart_of_the_master() -> None:
    master = Master(supervise=True)
    master.run()
    master.end(lost=True)
    master.now += 20
    master.restart()
    assert not master.later(34.9)
    assert m.RequestDriver(submission_id=ID, attempt=2) in master.later(0.2)


def test_a_kill_ends_the_driver_and_its_restarts() -> None:
    master = Master(supervise=True)
    master.run()
    master.driver(m.DriverLinked, application_id="app-1")
    killed = master.feed(m.KillAsked, call_id=2, submission_id=ID, reason="enough")
    assert master.state is S.KILLING
    assert {m.EndLinked, m.ReleaseDriver, m.Committed} <= set(kinds(killed))
    assert isinstance(master.lease(), StaleEpoch)
    master.end(exit_code=143)
    assert (master.state, master.record.message) == (S.KILLED, "enough")
    again = master.feed(m.KillAsked, call_id=3, submission_id=ID)
    assert isinstance(again[0], m.RefuseCall)
    unknown = master.feed(m.KillAsked, call_id=3, submission_id="driver-9")
    assert isinstance(unknown[0], m.RefuseCall)
    assert isinstance(unknown[0].error, NotFound)


def test_one_that_submits_again_is_informed_of_the_first_after_it_is_written() -> None:
    """The reply is a command behind the write, for every caller and every repetition."""
    master = Master()
    again = master.feed(m.Submitted, call_id=2, record=record(submission_id="driver-2"))
    assert again == [m.Committed(call_id=2, submission_id=ID)]
    assert list(master.core.entries) == [ID]


def test_a_late_request_for_a_lease_does_not_hold_up_the_next_driver() -> None:
    """It was sent before its runner reported that the driver is gone, and arrives after that."""
    master = Master(supervise=True)
    master.run()
    master.driver(m.LeaseAsked, call_id=8, gone=True)
    assert isinstance(master.lease(), StaleEpoch)
    master.end(lost=True)
    assert m.RequestDriver(submission_id=ID, attempt=2) in master.later(1.1)


def test_one_that_waits_for_a_restart_can_be_killed() -> None:
    master = Master(supervise=True)
    master.run()
    master.end()
    master.feed(m.KillAsked, call_id=2, submission_id=ID)
    assert master.state is S.KILLED
    assert master.later(1000) == []


def test_an_application_that_was_killed_is_not_started_again() -> None:
    master = Master(supervise=True)
    master.run()
    master.end(killed=True)
    assert master.state is S.KILLED


def test_a_driver_that_no_node_could_run_fails_with_the_reason() -> None:
    master = Master()
    master.driver(m.RefusedDriver, message="the largest node has 2 vcores")
    assert (master.state, master.record.message) == (S.FAILED, "the largest node has 2 vcores")


def test_a_kill_is_done_once_the_driver_is_refused() -> None:
    """It has no container then whose end could be reported."""
    master = Master(supervise=True)
    master.feed(m.KillAsked, call_id=2, submission_id=ID, reason="enough")
    refused = master.driver(m.RefusedDriver, message="the largest node has 2 vcores")
    assert (master.state, master.record.message) == (S.KILLED, "enough")
    assert m.EndHolder(submission_id=ID, state=S.KILLED, message="enough") in refused
    assert master.stored[ID].state is S.KILLED
    assert master.later(1000) == []


def test_ends_of_former_drivers_change_nothing() -> None:
    master = Master(supervise=True)
    master.run()
    master.end()
    master.later(2)
    before = master.record
    assert master.end(1) == []
    assert master.driver(m.DriverLaunched, 1, node="n2") == []
    assert master.record == before


def test_live_submissions_are_bounded_and_ended_ones_forgotten() -> None:
    bounds = replace(BOUNDS, submissions_limit=1, ended_submissions_kept=0)
    master = Master(bounds)
    with pytest.raises(LimitReached, match="submissions_limit"):
        master.core.admit()
    master.run()
    master.end()
    master.core.admit()
    assert m.ForgetSubmission(submission_id=ID) in master.later(1)
    assert master.core.entries == {}


def test_files_are_needed_as_long_as_the_submission_lives() -> None:
    master = Master(files=("a" * 64,))
    assert master.core.files() == {"a" * 64}
    master.run()
    master.end()
    assert master.core.files() == set()


def test_ids_are_new() -> None:
    master = Master()
    ids = {master.core.new_id(0.0) for _ in range(10)}
    assert len(ids) == 10
    assert all(name.startswith("driver-19700101000000-") for name in ids)


class Runner:
    """A runner that only holds its lease, with a clock of its own speed."""

    def __init__(self, world: World, attempt: int) -> None:
        self.world = world
        self.attempt = attempt
        self._speed = world.random.uniform(0.98, 1.02)
        self._lease = DriverLease(self._clock_s(), LeaseLimits(start_limit_s=1_000.0))
        self._go_on()

    @property
    def drives(self) -> bool:
        held = self._lease.state is LeaseState.HELD
        return held and not self._lease.has_run_out(self._clock_s())

    def stop(self) -> None:
        self._lease.end()

    def replied(self, number: int, result: m.GrantLease | HrmError) -> None:
        if not self._lease.awaits(number):
            return
        now = self._clock_s()
        if isinstance(result, m.GrantLease):
            lease_s, renew_s = result.lease_s, result.renew_s
            self._lease.granted(number, lease_s=lease_s, renew_s=renew_s, now=now)
        else:
            self._lease.failed(number, result, now)
        self._go_on()

    def _clock_s(self) -> float:
        return self.world.now * self._speed

    def _go_on(self) -> None:
        asked = self._lease.step(self._clock_s())
        if asked is not None:
            self.world.send(lambda: self.world.asked(self, asked.number))
            late = partial(self.replied, asked.number, Unavailable("no answer"))
            self.world.at(asked.timeout_s / self._speed, late)
            return
        due_s = self._lease.due_s()
        if due_s is not None:
            self.world.at(max(0.0, due_s - self._clock_s()) / self._speed, self._go_on)


class World:
    """Drivers of one submission under lost and late messages, lost nodes and dying masters."""

    def __init__(self, seed: int, bounds: m.SubmissionBounds = BOUNDS) -> None:
        self.random = random.Random(seed)
        self.bounds = replace(bounds, driver_restarts_max=1_000)
        self.now = 0.0
        self.counter = itertools.count()
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.stored: dict[str, m.SubmissionRecord] = {}
        self.runners: list[Runner] = []
        self.core = SubmissionsCore(self.bounds)
        self.two_at_once = 0
        self.feed(m.Submitted(now=0.0, call_id=0, record=record(supervise=True)))
        self.at(1.0, self.tick)
        self.at(self.random.uniform(5, 60), self.fault)

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.due, (self.now + delay_s, next(self.counter), action))

    def send(self, deliver: Callable[[], None]) -> None:
        """Over a network that loses some messages and delays some for long."""
        if self.random.random() < 0.2:
            return
        late = self.random.random() < 0.1
        self.at(self.random.uniform(0, 90) if late else self.random.uniform(0, 1), deliver)

    def run(self, until_s: float) -> None:
        while self.due and self.now < until_s:
            self.now, _, action = heapq.heappop(self.due)
            action()
            self.two_at_once += sum(runner.drives for runner in self.runners) > 1

    def tick(self) -> None:
        self.feed(m.SubmissionsTicked(now=self.now))
        self.at(1.0, self.tick)

    def asked(self, runner: Runner, number: int) -> None:
        event = m.LeaseAsked(now=self.now, call_id=1, submission_id=ID, attempt=runner.attempt)
        reply = self.feed(event)[-1]
        assert isinstance(reply, m.GrantLease | m.RefuseCall)
        result = reply.error if isinstance(reply, m.RefuseCall) else reply
        self.send(lambda: runner.replied(number, result))

    def feed(self, event: m.Event) -> list[m.Command]:
        commands = self.core.handle(event)
        for command in commands:
            if isinstance(command, m.PersistSubmission):
                self.stored[ID] = command.record
            elif isinstance(command, m.RequestDriver):
                self.at(self.random.uniform(0.1, 20), self.started(command.attempt))
        return commands

    def started(self, attempt: int) -> Callable[[], None]:
        def start() -> None:
            self.runners = [*self.runners[-5:], Runner(self, attempt)]
            launched = m.DriverLaunched(now=self.now, submission_id=ID, attempt=attempt, node="n1")
            self.feed(launched)

        return start

    def fault(self) -> None:
        self.at(self.random.expovariate(1 / 60), self.fault)
        what = self.random.choice(["node", "driver", "master"])
        if what == "master":
            self.core = SubmissionsCore(self.bounds, self.stored.values(), self.now)
            return
        runner = self.random.choice(self.runners) if self.runners else None
        if runner is None:
            return
        lost = what == "node"  # which may be alive, and only unreachable
        if not lost:
            runner.stop()
        ended = m.DriverEnded(
            now=self.now, submission_id=ID, attempt=runner.attempt, exit_code=1, message=what,
            lost=lost,
        )  # fmt: skip
        self.feed(ended)


@pytest.mark.parametrize("seed", range(15))
def test_two_drivers_never_run_at_once(seed: int) -> None:
    world = World(seed)
    world.run(6_000.0)
    assert world.two_at_once == 0
    assert world.core.entries[ID].record.attempt > 10, "and yet it goes on"


def test_without_the_wait_for_the_lease_two_would_run() -> None:
    hasty = replace(BOUNDS, lease_margin_s=-BOUNDS.driver_lease_s)
    worlds = [World(seed, hasty) for seed in range(10)]
    for world in worlds:
        world.run(6_000.0)
    assert sum(world.two_at_once for world in worlds) > 0
