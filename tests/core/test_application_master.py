"""The AppMaster's core: one scenario first, then each rule, then its invariants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.appmaster.appmaster_limits import AppMasterLimits
from hrm.core.messages.appmaster import (
    AppMasterTicked,
    ClassObserved,
    Command,
    ContainerListed,
    ContainerSeen,
    DriverFinished,
    EndOrdered,
    ExclusionsChanged,
    ExecutorEnded,
    ExecutorsKilled,
    ExecutorsRefused,
    ExecutorStarted,
    FailApplication,
    FinishApplication,
    Phase,
    ProfileTarget,
    RefuseProfile,
    ReleaseContainers,
    ReportClass,
    ReportExclusions,
    RequestContainers,
    SessionLost,
    SessionOpened,
    TargetsChanged,
)
from hrm.core.vocabulary.ends import Blame
from hrm.core.vocabulary.model import ApplicationState


def target(count: int, profile: int = 0) -> ProfileTarget:
    return ProfileTarget(profile=profile, count=count, vcores=1, heap_mib=512, memory_mib=896)


def want(now: float, *targets: ProfileTarget) -> TargetsChanged:
    return TargetsChanged(now=now, targets=targets)


def opened(now: float, *containers: ContainerSeen, epoch: int = 1, last: int = 0) -> SessionOpened:
    return SessionOpened(now=now, epoch=epoch, containers=containers, last_executor_number=last)


def seen(executor_id: str, phase: Phase, profile: int = 0) -> ContainerSeen:
    return ContainerSeen(executor_id=executor_id, profile=profile, phase=phase, node="n1")


def ended(executor_id: str, exit_code: int = 1, blame: Blame = Blame.APPLICATION) -> ContainerSeen:
    return replace(seen(executor_id, Phase.ENDED), exit_code=exit_code, blame=blame, message="why")


def changed(now: float, container: ContainerSeen) -> ContainerListed:
    return ContainerListed(now=now, container=container)


def asked(commands: list[Command]) -> list[str]:
    return [ask.executor_id for c in commands if isinstance(c, RequestContainers) for ask in c.asks]


def released(commands: list[Command]) -> list[str]:
    return [i for c in commands if isinstance(c, ReleaseContainers) for i in c.executor_ids]


def running(count: int, limits: AppMasterLimits | None = None) -> AppMasterCore:
    """An application of ``count`` running executors, at time 0."""
    core = AppMasterCore(limits=limits or AppMasterLimits())
    core.handle(want(0, target(count)))
    core.handle(opened(0))
    for number in range(1, count + 1):
        core.handle(changed(0, seen(str(number), Phase.RUNNING)))
    return core


def ticked(core: AppMasterCore, until_s: float, *, begin_s: float = 2.0) -> list[Command]:
    """Ticks as the core wants them, until then."""
    commands, now = list[Command](), begin_s
    while now < until_s:
        due_s = core.wake_at_s()
        now = until_s if due_s is None else min(until_s, max(due_s, now + 0.01))
        commands += core.handle(AppMasterTicked(now=now))
    return commands


def test_the_life_of_an_application() -> None:
    core = AppMasterCore()
    assert core.handle(want(0, target(2))) == []  # no session yet
    assert asked(core.handle(opened(1))) == ["1", "2"]
    assert core.handle(changed(2, seen("1", Phase.RUNNING))) == [
        ExecutorStarted(executor_id="1", node="n1")
    ]
    core.handle(changed(2, seen("2", Phase.RUNNING)))
    # One dies: Spark is notified, and a new one, with a new id, replaces it after the pause.
    assert core.handle(changed(3, ended("1", 137))) == [
        ExecutorEnded(executor_id="1", exit_code=137, message="why", caused_by_app=True)
    ]
    assert core.wake_at_s() == 3.1
    assert asked(core.handle(AppMasterTicked(now=3.1))) == ["3"]
    assert core.wake_at_s() is None
    assert core.handle(DriverFinished(now=5, state=ApplicationState.SUCCEEDED, message="")) == [
        FinishApplication(state=ApplicationState.SUCCEEDED, message="")
    ]
    assert core.handle(changed(6, ended("2", 0, Blame.NONE)))  # reported, but not replaced
    assert core.wake_at_s() is None


def test_a_smaller_target_cancels_what_waits_and_keeps_what_runs() -> None:
    core = running(2)
    assert asked(core.handle(want(1, target(4)))) == ["3", "4"]
    assert released(core.handle(want(2, target(3)))) == ["4"], "the youngest first"
    assert released(core.handle(want(3, target(1)))) == ["3"], "running ones are Spark's"
    assert released(core.handle(ExecutorsKilled(now=4, executor_ids=("2", "9")))) == ["2"]
    assert core.handle(changed(5, ended("2", 143))) == [
        ExecutorEnded(executor_id="2", exit_code=143, message="why", caused_by_app=False)
    ]
    assert list(core.failures) == []


def test_a_killed_executor_that_still_counts_is_replaced_at_once() -> None:
    core = running(2)
    commands = core.handle(ExecutorsKilled(now=1, executor_ids=("1",)))
    assert released(commands) == ["1"]
    assert asked(commands) == ["3"]


def test_failures_back_off_doubling_to_a_cap() -> None:
    core = running(1, AppMasterLimits(failures_max=100))
    now, pauses = 0.0, []
    for number in range(1, 10):
        core.handle(changed(now, ended(str(number))))
        due = core.wake_at_s()
        assert due is not None
        pauses.append(round(due - now, 3))
        assert core.handle(AppMasterTicked(now=due - 0.01)) == []
        assert asked(core.handle(AppMasterTicked(now=due))) == [str(number + 1)]
        now = due
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_executors_that_end_together_are_one_setback() -> None:
    core = running(50, AppMasterLimits(failures_max=1000))
    for number in range(1, 51):
        core.handle(changed(5.0 + number / 1000, ended(str(number))))
    assert core.wake_at_s() == 5.05 + 0.1, "the pause is counted from the last, and not doubled"
    assert len(asked(core.handle(AppMasterTicked(now=5.2)))) == 50, "and then all are replaced"
    for number in range(51, 101):
        core.handle(changed(6.0, ended(str(number))))
    assert core.wake_at_s() == 6.2
    assert asked(core.handle(AppMasterTicked(now=6.19))) == []
    assert len(asked(core.handle(AppMasterTicked(now=6.2)))) == 50


def test_an_executor_that_ran_long_begins_the_back_off_again() -> None:
    core = running(1, AppMasterLimits(failures_max=100))
    for number in range(1, 6):
        core.handle(changed(core.wake_at_s() or 0, ended(str(number))))
        core.handle(AppMasterTicked(now=core.wake_at_s() or 0))
    core.handle(changed(10, seen("6", Phase.RUNNING)))
    core.handle(changed(70, ended("6")))
    assert core.wake_at_s() == 70.1


def test_too_many_failures_end_the_application_and_name_the_last() -> None:
    core = running(1)
    core.application_id = "application_7"
    for number in (1, 2):
        core.handle(changed(number, ended(str(number))))
        core.handle(AppMasterTicked(now=core.wake_at_s() or 0))
    commands = core.handle(changed(3, ended("3", 42)))
    (failure,) = [c for c in commands if isinstance(c, FailApplication)]
    assert "3 executors failed" in failure.message
    assert "exit code 42" in failure.message
    assert failure.message.endswith("why; see its log: hrm app logs application_7 --executor 3")
    assert FinishApplication(state=ApplicationState.FAILED, message=failure.message) in commands
    assert asked(core.handle(AppMasterTicked(now=1000))) == []


def test_the_message_names_the_setting_by_which_the_limit_was_set() -> None:
    limits = AppMasterLimits(failures_max=1, failures_setting="spark.executor.maxNumFailures")
    commands = running(1, limits).handle(changed(3, ended("1", 42)))
    (failure,) = [c for c in commands if isinstance(c, FailApplication)]
    assert "1 executor failed within" in failure.message
    assert "(spark.executor.maxNumFailures is 1)" in failure.message


@pytest.mark.parametrize(
    ("was", "code", "message", "expected"),
    [
        (Phase.RUNNING, 77, "exited with code 77: no x", "ended with exit code 77: no x; see its"),
        (Phase.RUNNING, 77, "exited with code 77", "ended with exit code 77; see its"),
        (Phase.RUNNING, -1, "its shim is gone", "ended with exit code -1: its shim is gone; see"),
        (Phase.REQUESTED, 1, "exited with code 1", "ended with exit code 1; see its log: hrm app"),
        (Phase.REQUESTED, -1, "no such archive", "did not start: no such archive"),
    ],
)
def test_the_reason_is_given_once_and_a_log_only_of_what_has_run(
    was: Phase, code: int, message: str, expected: str
) -> None:
    core = running(1, AppMasterLimits(failures_max=1))
    core.application_id = "a7"
    if was is Phase.REQUESTED:
        core.handle(want(1, target(2)))
    number = "1" if was is Phase.RUNNING else "2"
    end = replace(ended(number, code), message=message)
    (failure,) = [c for c in core.handle(changed(3, end)) if isinstance(c, FailApplication)]
    assert f"the last, executor {number} on n1, {expected}" in failure.message
    assert failure.message.endswith(f"hrm app logs a7 --executor {number}") is (expected[0] == "e")


def test_the_limit_follows_the_highest_target() -> None:
    assert running(1).failures_max == 3
    assert running(5).failures_max == 10
    assert running(5, AppMasterLimits(failures_max=2)).failures_max == 2


def test_old_failures_are_forgotten() -> None:
    core = running(1, AppMasterLimits(failures_window_s=100))
    for number in range(1, 9):
        commands = core.handle(changed(number * 60.0, ended(str(number))))
        assert not any(isinstance(c, FailApplication) for c in commands)
        core.handle(AppMasterTicked(now=number * 60.0 + 20))


def test_a_lost_node_is_no_fault_of_the_application_and_its_executor_is_replaced_at_once() -> None:
    core = running(1)
    lost = replace(ended("1", -1, Blame.NODE), lost_host="10.0.0.1")
    commands = core.handle(changed(1, lost))
    assert commands[0] == ExecutorEnded(
        executor_id="1", exit_code=-1, message="why", caused_by_app=False, lost_host="10.0.0.1"
    )
    assert asked(commands) == ["2"]
    assert not core.failures


def test_a_clean_exit_is_no_failure_but_cannot_spin() -> None:
    core = running(1)
    assert asked(core.handle(changed(1, ended("1", 0, Blame.NONE)))) == []
    assert core.wake_at_s() == 1.1
    assert not core.failures


def test_a_refused_first_request_fails_at_once() -> None:
    core = AppMasterCore()
    core.handle(want(0, target(1)))
    core.handle(opened(0))
    refused = ExecutorsRefused(now=1, executor_ids=("1",), profile=0, message="too large")
    assert core.handle(refused)[0] == FailApplication(message="too large")


def test_what_no_cluster_can_serve_fails_at_once() -> None:
    core = AppMasterCore()
    core.handle(opened(0.0))
    commands = core.handle(want(1.0, replace(target(1), unknown_resources=("fpga",))))
    failure = next(x for x in commands if isinstance(x, FailApplication))
    assert "requests fpga" in failure.message
    assert not asked(commands)
    fine = AppMasterCore()
    fine.handle(opened(0.0))
    assert asked(fine.handle(want(1.0, replace(target(1), gpus=1)))) == ["1"]


def test_a_profile_of_stages_that_nothing_can_serve_fails_those_stages_alone() -> None:
    core = running(1)
    large = replace(target(2), profile=3)
    core.handle(want(1, target(1), large))
    refused = ExecutorsRefused(now=1, executor_ids=("2", "3"), profile=3, message="too large")
    assert core.handle(refused) == [RefuseProfile(profile=3, message="too large")]
    again = core.handle(AppMasterTicked(now=core.wake_at_s() or 0))
    assert asked(again) == ["4", "5"], "a node that can serve it may have come"
    assert not core.ended
    assert core.handle(want(2, target(1))) != [], "what is not wanted any more is released"

    unknown = replace(target(1), profile=4, unknown_resources=("fpga",))
    commands = core.handle(want(3, target(1), unknown))
    (refusal,) = [x for x in commands if isinstance(x, RefuseProfile)]
    assert refusal.profile == 4 and "requests fpga" in refusal.message
    assert not asked(commands)


def test_a_plugin_that_cannot_fail_stages_alone_ends_the_application() -> None:
    core = AppMasterCore(refuses_profiles=False)
    core.handle(want(0, target(1), replace(target(1), profile=3)))
    core.handle(opened(0))
    refused = ExecutorsRefused(now=1, executor_ids=("2",), profile=3, message="too large")
    assert core.handle(refused)[0] == FailApplication(message="too large")


def test_a_later_refusal_goes_on_with_what_there_is() -> None:
    core = running(1)
    core.handle(want(1, target(2)))
    refused = ExecutorsRefused(now=1, executor_ids=("2",), profile=0, message="too large")
    assert core.handle(refused) == []
    assert asked(core.handle(AppMasterTicked(now=core.wake_at_s() or 0))) == ["3"]


def test_without_a_session_nothing_is_sent_and_nothing_forgotten() -> None:
    core = running(1)
    core.handle(SessionLost(now=1))
    assert core.handle(want(2, target(3))) == []
    assert core.handle(ClassObserved(now=2, workload_class="STREAM", evidence="e")) == []
    assert core.handle(ExecutorsKilled(now=2, executor_ids=("1",))) == []
    assert core.wake_at_s() is None
    commands = core.handle(opened(3, seen("1", Phase.RUNNING)))
    assert ReportClass(workload_class="STREAM", evidence="e") in commands
    assert released(commands) == ["1"]
    assert asked(commands) == ["2", "3", "4"]


def test_hosts_that_spark_excludes_are_reported_whole_and_in_each_session() -> None:
    core = running(1)
    some, more = ExclusionsChanged(now=1, hosts=("h1",)), ExclusionsChanged(now=2, hosts=())
    assert core.handle(some) == [ReportExclusions(hosts=("h1",))]
    assert core.handle(some) == [], "the same again"
    core.handle(SessionLost(now=3))
    commands = core.handle(opened(4, seen("1", Phase.RUNNING)))
    assert commands == [ReportExclusions(hosts=("h1",))]
    assert core.handle(more) == [ReportExclusions(hosts=())]
    core.handle(SessionLost(now=5))
    assert core.handle(opened(6, seen("1", Phase.RUNNING))) == [], "a master has none at first"


def test_an_exclusion_goes_before_the_request_that_it_concerns() -> None:
    core = AppMasterCore()
    core.handle(ExclusionsChanged(now=0, hosts=("h1",)))
    core.handle(want(0, target(1)))
    commands = core.handle(opened(1))
    assert [type(x) for x in commands] == [ReportExclusions, RequestContainers]


def test_the_same_master_that_lacks_a_running_executor_is_right() -> None:
    core = running(2)
    core.handle(SessionLost(now=1))
    commands = core.handle(opened(2, seen("1", Phase.RUNNING)))
    assert [c.executor_id for c in commands if isinstance(c, ExecutorEnded)] == ["2"]
    assert asked(commands) == ["3"]
    # It appears after all: Spark has removed it, so it must be stopped.
    assert released(core.handle(changed(3, seen("2", Phase.RUNNING)))) == ["2"]


def test_a_new_master_has_time_to_find_running_executors() -> None:
    core = running(2)
    core.handle(SessionLost(now=1))
    assert core.handle(opened(2, epoch=2)) == []
    core.handle(changed(3, seen("1", Phase.RUNNING)))
    commands = ticked(core, 31.9)
    assert commands == []
    commands = ticked(core, 32)
    assert [c.executor_id for c in commands if isinstance(c, ExecutorEnded)] == ["2"]
    assert asked(commands) == ["3"]


def test_an_appmaster_that_slept_does_not_give_up_what_a_new_master_may_have_found() -> None:
    core = running(2)
    core.handle(SessionLost(now=1))
    core.handle(opened(2, epoch=2))
    assert core.handle(AppMasterTicked(now=500)) == [], "its clock may be what it hears first"
    core.handle(changed(500, seen("1", Phase.RUNNING)))
    assert ticked(core, 528.9, begin_s=500) == []
    commands = ticked(core, 529, begin_s=528.9)
    assert [c.executor_id for c in commands if isinstance(c, ExecutorEnded)] == ["2"]


def test_a_session_that_breaks_costs_no_executor_its_time_to_be_confirmed() -> None:
    core = running(1)
    core.handle(SessionLost(now=1))
    core.handle(opened(2, epoch=2))
    core.handle(SessionLost(now=3))
    assert core.handle(opened(4, epoch=2)) == []
    assert core.handle(changed(5, seen("1", Phase.RUNNING))) == []


def test_a_new_master_is_asked_again_for_what_waits() -> None:
    core = running(1)
    core.handle(want(1, target(2)))
    core.handle(SessionLost(now=2))
    assert asked(core.handle(opened(3, seen("1", Phase.RUNNING), epoch=2))) == ["2"]


def test_an_appmaster_that_takes_over_adopts() -> None:
    core = AppMasterCore()
    core.adopt({"3": 0, "10": 0})
    core.handle(want(0, target(4)))
    commands = core.handle(
        opened(1, seen("3", Phase.RUNNING), seen("11", Phase.REQUESTED), epoch=7, last=12)
    )
    assert not any(isinstance(c, ExecutorEnded) for c in commands)
    assert asked(commands) == ["13"], "no id is used twice"
    commands = ticked(core, 31, begin_s=1.0)
    assert [c.executor_id for c in commands if isinstance(c, ExecutorEnded)] == ["10"]
    assert asked(commands) == ["14"]
    assert set(core.containers) == {"3", "11", "13", "14"}


def test_adopted_executors_outlive_a_master_that_is_still_waiting_for_them() -> None:
    """AppMaster and master restarted together: nodes have yet to report what runs on them."""
    core = AppMasterCore()
    core.adopt({"1": 0, "2": 0})
    core.handle(want(0, target(2)))
    assert core.handle(opened(1, epoch=7, last=2)) == []
    assert core.handle(changed(2, seen("1", Phase.RUNNING))) == []
    core.handle(changed(3, seen("2", Phase.RUNNING)))
    assert core.wake_at_s() is None
    assert core.handle(AppMasterTicked(now=100)) == []
    # From now on this master has them: one that is missing is gone.
    core.handle(SessionLost(now=101))
    commands = core.handle(opened(102, seen("1", Phase.RUNNING), epoch=7, last=2))
    assert [c.executor_id for c in commands if isinstance(c, ExecutorEnded)] == ["2"]


def test_the_master_may_end_the_application() -> None:
    core = running(1)
    commands = core.handle(EndOrdered(now=1, message="killed by an administrator"))
    assert FailApplication(message="killed by an administrator") in commands


def test_a_profile_that_is_not_wanted_any_more() -> None:
    core = running(1)
    assert asked(core.handle(want(1, target(1), target(2, profile=5)))) == ["2", "3"]
    assert released(core.handle(want(2, target(1)))) == ["2", "3"]


class Machine(RuleBasedStateMachine):
    """Random events against a model of a correct master."""

    @initialize()
    def start(self) -> None:
        self.core = AppMasterCore(limits=AppMasterLimits(failures_max=1000))
        self.now = 0.0
        self.epoch = 1
        self.attached = False
        self.at_master: dict[str, Phase] = {}
        self.alive_in_spark: set[str] = set()
        self.ever: set[str] = set()
        self.want = 0

    def step(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case RequestContainers(asks=asks):
                    assert self.attached
                    for ask in asks:
                        if ask.executor_id not in self.at_master:
                            assert ask.executor_id not in self.alive_in_spark
                            self.at_master[ask.executor_id] = Phase.REQUESTED
                        self.ever.add(ask.executor_id)
                case ReleaseContainers(executor_ids=ids):
                    assert self.attached
                    for executor_id in ids:
                        if executor_id in self.at_master:
                            self.at_master[executor_id] = Phase.STOPPING
                case ExecutorStarted(executor_id=executor_id):
                    assert executor_id not in self.alive_in_spark
                    self.alive_in_spark.add(executor_id)
                case ExecutorEnded(executor_id=executor_id):
                    self.alive_in_spark.discard(executor_id)
                case FailApplication():
                    raise AssertionError(command)

    @rule(count=st.integers(0, 6))
    def aim(self, count: int) -> None:
        self.want = count
        self.step(self.core.handle(want(self.now, target(count))))

    @rule(seconds=st.floats(0.01, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.step(self.core.handle(AppMasterTicked(now=self.now)))

    @precondition(lambda self: not self.attached)
    @rule(new_master=st.booleans())
    def open(self, new_master: bool) -> None:
        self.epoch += new_master
        self.attached = True
        listed = [seen(i, p) for i, p in self.at_master.items()]
        last = max(map(int, self.at_master), default=0)
        self.step(self.core.handle(opened(self.now, *listed, epoch=self.epoch, last=last)))

    @precondition(lambda self: self.attached)
    @rule()
    def lose(self) -> None:
        self.attached = False
        self.step(self.core.handle(SessionLost(now=self.now)))

    @precondition(lambda self: self.attached and self.at_master)
    @rule(data=st.data())
    def run_one(self, data: st.DataObject) -> None:
        executor_id = data.draw(st.sampled_from(sorted(self.at_master)))
        if self.at_master[executor_id] is Phase.REQUESTED:
            self.at_master[executor_id] = Phase.RUNNING
            self.step(self.core.handle(changed(self.now, seen(executor_id, Phase.RUNNING))))

    @precondition(lambda self: self.at_master)
    @rule(data=st.data(), blame=st.sampled_from(Blame), code=st.integers(-1, 255))
    def end_one(self, data: st.DataObject, blame: Blame, code: int) -> None:
        executor_id = data.draw(st.sampled_from(sorted(self.at_master)))
        del self.at_master[executor_id]
        if self.attached:  # otherwise it is not reported
            self.step(self.core.handle(changed(self.now, ended(executor_id, code, blame))))

    @precondition(lambda self: self.alive_in_spark)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        executor_id = data.draw(st.sampled_from(sorted(self.alive_in_spark)))
        event = ExecutorsKilled(now=self.now, executor_ids=(executor_id,))
        self.step(self.core.handle(event))

    @invariant()
    def holds(self) -> None:
        self.core.check()

    @invariant()
    def nothing_wanted_is_missing_for_ever(self) -> None:
        counted = [c for c in self.core.containers.values() if c.phase is not Phase.STOPPING]
        if self.attached and len(counted) < self.want:
            due = self.core.wake_at_s()
            assert due is not None
            assert due <= self.now + 30

    @invariant()
    def no_more_waits_than_is_wanted(self) -> None:
        counted = [c for c in self.core.containers.values() if c.phase is not Phase.STOPPING]
        waiting = [c for c in counted if c.phase is Phase.REQUESTED]
        if self.attached and waiting:
            assert len(counted) <= self.want


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRandomEvents = Machine.TestCase
