"""The AppMaster's decisions: from Spark's target of N executors to containers, and back.

Spark states totals for each resource profile; the master knows containers, each named by its
executor. Every event ends in one reconciliation per profile::

    counted = containers requested or running that have not been asked to stop
    counted < target   request the difference, under new executor ids, unless the profile backs off
    counted > target   cancel what does not run yet, the youngest first; running ones are Spark's

The master may limit the executors of the default profile (``executors_max``). Its target is then no
more than that, and Spark chooses which of those that run finish their tasks and end. The limit is
the master's alone: a new session begins with what it says, and without a session the last holds.

A resource profile that no node can ever serve ends the application where it is the default one, as
nothing could run. One that stages have requested for themselves fails those stages alone, because
others may share the application, such as clients of a Connect server. It is requested again after
the profile's back-off: a node that can serve it may have come.

A running executor is never stopped for a smaller target: Spark lowers the target first and then
names the executors that it can spare. A dead one still counts in Spark's total, so it is replaced.

An executor that ends badly by itself is a failure. Ends delay the profile's next request, by 100 ms
doubling to 10 s while replacements end as well; executors that end together, none of them a
replacement, count as one setback. Too many failures within a window end the application with the
last one's exit code.

While the session with the master is down nothing is sent and nothing is forgotten. Opening it again
reconciles the master's list with ours::

    ours, not running, not listed   requested again, under the same id
    ours, listed as ended           it ended while no session was open
    ours, running, not listed       a master of the same epoch is right: reported dead. A new one
                                    may not have its nodes' reports yet: it gets time to confirm
    listed, given up by us          released: it has been reported to Spark as dead
    listed, not ours                adopted: the previous AppMaster requested it

Each request states whether it is made for the first time: one made again may run on a node that has
not registered with a restarted master yet.

Where each event may lead stands in the tables of ``hrm.core.appmaster.lifecycle``. Events carry
``now`` (seconds, monotonic).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace

from hrm.core.appmaster.appmaster_limits import AppMasterLimits
from hrm.core.appmaster.lifecycle import (
    APPMASTER,
    APPMASTER_CONTAINER,
    AppMasterState,
    ExecutorHappening,
)
from hrm.core.messages.appmaster import (
    AppMasterTicked,
    ClassObserved,
    Command,
    ContainerAsk,
    ContainerListed,
    ContainerSeen,
    DriverFinished,
    EndOrdered,
    Event,
    ExclusionsChanged,
    ExecutorEnded,
    ExecutorLimitSet,
    ExecutorsKilled,
    ExecutorsRefused,
    ExecutorStarted,
    FailApplication,
    FinishApplication,
    KeepExecutors,
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
from hrm.core.vocabulary.event_table import Lifecycle
from hrm.core.vocabulary.model import ApplicationState
from hrm.core.vocabulary.wakefulness import Wakefulness

__all__ = ["AppMasterCore"]

_SEEN = {
    Phase.REQUESTED: ExecutorHappening.SEEN_REQUESTED,
    Phase.RUNNING: ExecutorHappening.SEEN_RUNNING,
    Phase.STOPPING: ExecutorHappening.SEEN_STOPPING,
    Phase.ENDED: ExecutorHappening.SEEN_ENDED,
}
_DEFAULT_PROFILE = 0
_FEWER = "Spark requests fewer executors"
_LATE_S = 1.0
_TICK_S = 0.5
"""How often it needs a tick while it waits for a message of the master, to detect its own sleep."""


@dataclass(slots=True)
class _Container:
    executor_id: str
    profile: int
    begins: InitVar[Phase]
    node: str = ""
    asked_at_s: float = 0.0
    started_at_s: float = 0.0
    confirm_by_s: float | None = None
    released: bool = False
    local: bool = False
    life: Lifecycle[Phase, ExecutorHappening] = field(init=False)

    def __post_init__(self, begins: Phase) -> None:
        self.life = Lifecycle("executor", self.executor_id, APPMASTER_CONTAINER, begins)

    @property
    def phase(self) -> Phase:
        return self.life.state


@dataclass(slots=True)
class _Profile:
    target: ProfileTarget
    has_run: bool = False
    setbacks: int = 0
    setback_at_s: float = float("-inf")
    retry_at_s: float = 0.0


@dataclass(slots=True)
class AppMasterCore:
    """The state machine that the module's docstring describes.

    Attributes that hold after every event (``check`` asserts them):
        containers: all and only the containers not known to have ended, by executor id, in the
            order of their numbers.
        profiles: every profile that was ever wanted; a target of 0 for those no longer wanted.
        last_number: no container has a higher number; ids are never used twice.
        failures: times of the failures within the window, oldest first, no more than the limit.
        life: whether commands to the master are issued (``attached``), and whether the application
            has finished or failed (``ended``), after which nothing is requested.
        given_up: executors reported dead whose end the master has not confirmed; none is in
            ``containers`` unless it is being stopped.
        took_over: there was an earlier AppMaster, which may have requested what this one does.
        epoch: of the master that the latest session was with; None: there was none yet.
        application_id: for messages to the user; empty until the master has given it.
        refuses_profiles: whether the driver can fail the stages of one profile alone.
        limits_executors: whether the driver can end executors beyond a limit.
        executors_max: the master's limit; None: there is none.
    """

    limits: AppMasterLimits = field(default_factory=AppMasterLimits)
    containers: dict[str, _Container] = field(default_factory=dict)
    profiles: dict[int, _Profile] = field(default_factory=dict)
    last_number: int = 0
    failures: deque[float] = field(default_factory=deque)
    life: Lifecycle[AppMasterState, type[Event]] = field(
        default_factory=lambda: Lifecycle(
            "AppMaster", "of this driver", APPMASTER, AppMasterState.DETACHED
        )
    )
    given_up: set[str] = field(default_factory=set)
    took_over: bool = False
    epoch: int | None = None
    application_id: str = ""
    refuses_profiles: bool = True
    limits_executors: bool = True
    executors_max: int | None = None
    _workload: ReportClass | None = None
    _exclusions: ReportExclusions = field(default_factory=lambda: ReportExclusions(hosts=()))
    _finish: FinishApplication | None = None
    _highest_target: int = 0
    _commands: list[Command] = field(default_factory=list)
    _awake: Wakefulness | None = None

    @property
    def attached(self) -> bool:
        return self.life.state.attached

    @property
    def ended(self) -> bool:
        return self.life.state.ended

    @property
    def waits(self) -> bool:
        """Whether executors are requested and none runs."""
        if self.ended or not self.attached:
            return False
        phases = {c.phase for c in self.containers.values()}
        return Phase.REQUESTED in phases and Phase.RUNNING not in phases

    def adopt(self, executors: Mapping[str, int]) -> None:
        """Executors (id to profile) that Spark holds, reported to an AppMaster that takes over."""
        for executor_id in sorted(executors, key=_number):
            profile = executors[executor_id]
            self.containers[executor_id] = _Container(executor_id, profile, Phase.RUNNING)
            self.last_number = max(self.last_number, _number(executor_id))

    def handle(self, event: Event) -> list[Command]:
        """Takes one event; returns what must be done, in order."""
        self._notice_sleep(event.now)
        before = self.life.state
        if self.life.takes(type(event)):
            self._take(event)
            if self.life.state is before:
                self.life.follow(type(event), before, event.now)
        self._give_up_unconfirmed(event.now)
        self._reconcile(event.now)
        commands, self._commands = self._commands, []
        return commands

    def _take(self, event: Event) -> None:
        match event:
            case TargetsChanged():
                self._targets_changed(event)
            case ExecutorsKilled():
                known = [i for i in event.executor_ids if i in self.containers]
                self._release(known, "Spark no longer needs it", event.now)
            case ClassObserved():
                workload_class, evidence = event.workload_class, event.evidence
                self._workload = ReportClass(workload_class=workload_class, evidence=evidence)
                if self.attached:
                    self._commands.append(self._workload)
            case ExclusionsChanged():
                self._exclusions_changed(event)
            case DriverFinished():
                self._end(event.state, event.message, event)
            case SessionOpened():
                self._session_opened(event)
            case SessionLost():
                to = AppMasterState.FINISHING if self.ended else AppMasterState.DETACHED
                self.life.follow(SessionLost, to, event.now)
            case ContainerListed():
                self._container_changed(event.container, event)
            case ExecutorsRefused():
                self._refused(event)
            case ExecutorLimitSet():
                self._limit_executors(event.executors_max)
            case EndOrdered():
                self._fail(event.message, event)
            case AppMasterTicked():
                pass

    def wake_at_s(self) -> float | None:
        """When a back-off ends or a confirmation is overdue; None: nothing waits for time."""
        if self.ended or not self.attached:
            return None
        due = [c.confirm_by_s for c in self.containers.values() if c.confirm_by_s is not None]
        if due and self._awake is not None:
            due.append(self._awake.seen_s + _TICK_S)
        due += [
            profile.retry_at_s
            for number, profile in self.profiles.items()
            if len(self._counted(number)) < self._count(number)
        ]
        return min(due, default=None)

    def check(self) -> None:
        """Asserts the invariants that the class documents."""
        assert all(c.phase is not Phase.ENDED for c in self.containers.values())
        assert all(_number(i) <= self.last_number for i in self.containers)
        for executor_id in self.given_up & set(self.containers):
            assert self.containers[executor_id].phase is Phase.STOPPING
        assert self.ended == (self._finish is not None)
        assert list(self.failures) == sorted(self.failures)
        assert len(self.failures) <= max(1, self.failures_max)

    @property
    def failures_max(self) -> int:
        return self.limits.failures_max or max(3, 2 * self._highest_target)

    def _targets_changed(self, event: TargetsChanged) -> None:
        wanted = {target.profile: target for target in event.targets}
        for number, profile in self.profiles.items():
            if number not in wanted:
                profile.target = replace(profile.target, count=0)
        for number, target in wanted.items():
            if number in self.profiles:
                self.profiles[number].target = target
            else:
                running = any(c.phase is Phase.RUNNING for c in self._counted(number))
                self.profiles[number] = _Profile(target, has_run=running)
        total = sum(target.count for target in wanted.values())
        self._highest_target = max(self._highest_target, total)
        for number, target in wanted.items():
            problem = _unservable(target)
            if problem:
                self.profiles[number].target = replace(target, count=0)
                self._refuse(number, problem, event)

    def _exclusions_changed(self, event: ExclusionsChanged) -> None:
        if set(event.hosts) == set(self._exclusions.hosts):
            return
        self._exclusions = ReportExclusions(hosts=event.hosts)
        if self.attached:
            self._commands.append(self._exclusions)

    def _limit_executors(self, executors_max: int | None) -> None:
        """At every start of a session, too: the driver has lost what an earlier AppMaster said."""
        if self.ended or not self.limits_executors:
            return
        self.executors_max = executors_max
        if executors_max is not None:
            self._commands.append(KeepExecutors(executors_max=executors_max))

    def _count(self, profile: int) -> int:
        """How many executors of the profile there are to be."""
        wanted = self.profiles[profile].target.count
        if self.executors_max is None or profile != _DEFAULT_PROFILE:
            return wanted
        return min(wanted, self.executors_max)

    def _session_opened(self, event: SessionOpened) -> None:
        # An AppMaster that took over cannot know whether its executors' master has started again.
        same_master = self.epoch == event.epoch
        if self.epoch is None:  # later it knows itself what it has requested
            self.last_number = max(self.last_number, event.last_executor_number)
        to = AppMasterState.FINISHED if self.ended else AppMasterState.ATTACHED
        self.life.follow(SessionOpened, to, event.now)
        self.epoch = event.epoch
        self._limit_executors(event.executors_max)
        if self._workload is not None:
            self._commands.append(self._workload)
        if self._exclusions.hosts:  # the master has none at first
            self._commands.append(self._exclusions)
        if self._finish is not None:
            self._commands.append(self._finish)
            return
        listed = {c.executor_id for c in event.containers}
        missing = sorted(set(self.containers) - listed, key=_number)
        for seen in event.containers:
            self._container_changed(seen, event)
        again: list[ContainerAsk] = []
        for executor_id in missing:
            container, kept = self.containers[executor_id], True
            if container.phase is Phase.REQUESTED and container.profile in self.profiles:
                target = self.profiles[container.profile].target
                again.append(self._ask(container, target))
            elif container.phase is Phase.RUNNING and not same_master:
                container.confirm_by_s = event.now + self.limits.confirm_s
            else:  # or this master has had the time before, and has some of it left
                kept = container.phase is Phase.RUNNING and container.confirm_by_s is not None
            to_phase = container.phase if kept else Phase.ENDED
            container.life.follow(ExecutorHappening.UNLISTED, to_phase, event.now)
            if not kept:
                self._give_up(container, "the master no longer has a record of it")
        if again:
            self._request(again, again=True)
        # Not those that their node decommissions: a release would shorten that.
        released = [i for i, c in self.containers.items() if c.released]
        self._send_release(released, "released before")

    def _container_changed(self, seen: ContainerSeen, event: Event) -> None:
        container, now = self.containers.get(seen.executor_id), event.now
        if container is None:
            self._unknown_container(seen, now)
            return
        was, happening, moved = container.phase, _SEEN[seen.phase], False
        if container.life.takes(happening):
            moved = container.life.follow(happening, seen.phase, now)
        if seen.phase is Phase.ENDED:
            self._container_ended(container, seen, was, event)
            return
        container.node = seen.node or container.node
        container.confirm_by_s = None
        if moved and seen.phase is Phase.RUNNING:
            container.started_at_s = now
            started = ExecutorStarted(executor_id=container.executor_id, node=seen.node)
            self._commands.append(started)
        if seen.phase is Phase.RUNNING and container.profile in self.profiles:
            self.profiles[container.profile].has_run = True

    def _unknown_container(self, seen: ContainerSeen, now: float) -> None:
        if seen.phase is Phase.ENDED:
            self.given_up.discard(seen.executor_id)
            return
        self.last_number = max(self.last_number, _number(seen.executor_id))
        self.containers[seen.executor_id] = _Container(
            seen.executor_id, seen.profile, seen.phase, seen.node, now, now
        )
        if self.ended or seen.executor_id in self.given_up:
            self._release([seen.executor_id], "it has been abandoned", now)
        elif seen.phase is Phase.RUNNING and seen.profile in self.profiles:
            self.profiles[seen.profile].has_run = True

    def _container_ended(
        self, container: _Container, seen: ContainerSeen, was: Phase, event: Event
    ) -> None:
        del self.containers[container.executor_id]
        self.given_up.discard(container.executor_id)
        was_asked, now = was is Phase.STOPPING, event.now
        failed = seen.blame.caused_by_app and not was_asked
        ended = ExecutorEnded(
            executor_id=container.executor_id,
            exit_code=seen.exit_code,
            message=seen.message or f"it ended with exit code {seen.exit_code}",
            caused_by_app=failed,
            lost_host=seen.lost_host if seen.blame.lost_machine else "",
        )
        self._commands.append(ended)
        if self.ended or was_asked or seen.blame.replaced_at_once:
            return
        if container.profile in self.profiles:
            # Also after an unrequested clean exit: what ends at once must not spin.
            ran_s = now - container.started_at_s if was is Phase.RUNNING else 0.0
            settled = ran_s >= self.limits.settled_s
            profile = self.profiles[container.profile]
            replacement = container.asked_at_s >= profile.setback_at_s
            self._back_off(profile, now, restart=settled, again=replacement)
        if failed:
            self._count_failure(seen, was, event)

    def _count_failure(self, seen: ContainerSeen, was: Phase, event: Event) -> None:
        now = event.now
        while self.failures and self.failures[0] <= now - self.limits.failures_window_s:
            self.failures.popleft()
        self.failures.append(now)
        if len(self.failures) >= self.failures_max:
            count = len(self.failures)
            self._fail(
                f"{count} executor{'' if count == 1 else 's'} failed within "
                f"{self.limits.failures_window_s:.0f} s ({self.limits.failures_setting} is "
                f"{self.failures_max}); the last, {self._how_it_ended(seen, was)}",
                event,
            )

    def _how_it_ended(self, seen: ContainerSeen, was: Phase) -> str:
        """For the user: the reason once, and where to read more if there is more."""
        where = f" on {seen.node}" if seen.node else ""
        who, code = f"executor {seen.executor_id}{where}", seen.exit_code
        if code < 0 and was is not Phase.RUNNING:
            # No process of it has run: there is neither an exit code nor a log.
            return f"{who}, did not start{': ' + seen.message if seen.message else ''}"
        reason = seen.message.removeprefix(f"exited with code {code}").removeprefix(": ")
        log = f"hrm app logs {self.application_id} --executor {seen.executor_id}"
        return (
            f"{who}, ended with exit code {code}{': ' + reason if reason else ''}"
            f"{'; see its log: ' + log if self.application_id else ''}"
        )

    def _back_off(
        self, profile: _Profile, now: float, *, restart: bool = False, again: bool = True
    ) -> None:
        """Request no more for a while. ``restart``: the pauses start again from the first;
        ``again``: what failed was requested after the latest setback, so that the pause doubles."""
        if restart or again or not profile.setbacks:
            profile.setbacks = 1 if restart else profile.setbacks + 1
            profile.setback_at_s = now
        doubled = self.limits.backoff_s * 2.0 ** min(profile.setbacks - 1, 30)
        profile.retry_at_s = now + min(doubled, self.limits.backoff_max_s)

    def _refused(self, event: ExecutorsRefused) -> None:
        for executor_id in event.executor_ids:
            container = self.containers.get(executor_id)
            if container is not None and container.life.take(ExecutorHappening.REFUSED, event.now):
                del self.containers[executor_id]
                self.given_up.add(executor_id)
        profile = self.profiles.get(event.profile)
        if profile is None:
            return
        if profile.has_run:
            # The cluster has shrunk: go on with the executors there are, and request again later.
            self._back_off(profile, event.now)
        elif profile.target.count > 0:
            self._back_off(profile, event.now)
            self._refuse(event.profile, event.message, event)

    def _refuse(self, profile: int, message: str, event: Event) -> None:
        """No node can serve this profile."""
        if profile == _DEFAULT_PROFILE or not self.refuses_profiles:
            self._fail(message, event)
        elif not self.ended:
            self._commands.append(RefuseProfile(profile=profile, message=message))

    def _fail(self, message: str, event: Event) -> None:
        if not self.ended:
            self._commands.append(FailApplication(message=message))
            self._end(ApplicationState.FAILED, message, event)

    def _end(self, state: ApplicationState, message: str, event: Event) -> None:
        to = AppMasterState.FINISHED if self.attached else AppMasterState.FINISHING
        self.life.follow(type(event), to, event.now)
        self._finish = FinishApplication(state=state, message=message)
        if self.attached:
            self._commands.append(self._finish)

    def _give_up(self, container: _Container, message: str) -> None:
        del self.containers[container.executor_id]
        self.given_up.add(container.executor_id)
        executor_id = container.executor_id
        self._commands.append(
            ExecutorEnded(
                executor_id=executor_id, exit_code=-1, message=message, caused_by_app=False
            )
        )

    def _notice_sleep(self, now: float) -> None:
        """This process slept, and a confirmation by the master may not have been read yet. A long
        time between two events is a sleep only while it waits for such a confirmation."""
        unsure = [c for c in self.containers.values() if c.confirm_by_s is not None]
        slept_s = self._awake.passed(now) if unsure and self._awake is not None else 0.0
        self._awake = Wakefulness(_LATE_S, now)
        for container in unsure if slept_s else ():
            assert container.confirm_by_s is not None
            container.confirm_by_s += slept_s

    def _give_up_unconfirmed(self, now: float) -> None:
        if not self.attached:
            return
        for container in list(self.containers.values()):
            if container.confirm_by_s is not None and now >= container.confirm_by_s:
                container.life.follow(ExecutorHappening.UNCONFIRMED, Phase.ENDED, now)
                self._give_up(container, "no node has it since the master started again")

    def _counted(self, profile: int) -> list[_Container]:
        ours = (c for c in self.containers.values() if c.profile == profile)
        return [c for c in ours if c.phase is not Phase.STOPPING]

    def _reconcile(self, now: float) -> None:
        if self.ended or not self.attached:
            return
        if self.profiles:
            stray = [c for c in self.containers.values() if c.profile not in self.profiles]
            unwanted = [c.executor_id for c in stray if c.phase is not Phase.STOPPING]
            self._release(unwanted, "its resource profile is no longer requested", now)
        asks: list[ContainerAsk] = []
        for number, profile in sorted(self.profiles.items()):
            counted = self._counted(number)
            missing = self._count(number) - len(counted)
            if missing < 0:
                surplus = [c.executor_id for c in counted if c.phase is Phase.REQUESTED]
                surplus.sort(key=_number)
                limited = self._count(number) < profile.target.count
                reason = "the master allows it fewer executors now" if limited else _FEWER
                self._release(surplus[missing:], reason, now)
            elif missing > 0 and now >= profile.retry_at_s:
                local = profile.target.local_executors - sum(c.local for c in counted)
                asks.extend(
                    self._new_ask(profile.target, now, local=index < local)
                    for index in range(missing)
                )
        if asks:
            self._request(asks, again=False)

    def _request(self, asks: list[ContainerAsk], *, again: bool) -> None:
        known = None if self.took_over else again
        self._commands.append(RequestContainers(asks=tuple(asks), again=known))

    def _new_ask(self, target: ProfileTarget, now: float, *, local: bool) -> ContainerAsk:
        self.last_number += 1
        executor_id = str(self.last_number)
        container = self.containers[executor_id] = _Container(
            executor_id, target.profile, Phase.REQUESTED, asked_at_s=now, local=local
        )
        return self._ask(container, target)

    def _ask(self, container: _Container, target: ProfileTarget) -> ContainerAsk:
        ask = ContainerAsk(executor_id=container.executor_id, target=target)
        if not (container.local and target.hosts):
            return ask
        return replace(ask, hosts=target.hosts, locality_wait_s=self.limits.locality_wait_s)

    def _release(self, executor_ids: Iterable[str], reason: str, now: float) -> None:
        """Stops counting them; they stay known until the master reports their end."""
        ids = list(executor_ids)
        for executor_id in ids:
            container = self.containers[executor_id]
            container.life.follow(ExecutorHappening.RELEASED, Phase.STOPPING, now)
            container.released = True
        if self.attached:
            self._send_release(ids, reason)

    def _send_release(self, executor_ids: list[str], reason: str) -> None:
        if executor_ids:
            release = ReleaseContainers(executor_ids=tuple(executor_ids), reason=reason)
            self._commands.append(release)


def _unservable(target: ProfileTarget) -> str:
    """Why no cluster of HRM's could serve this profile; empty if one could."""
    if target.unknown_resources:
        return (
            f"resource profile {target.profile} requests {', '.join(target.unknown_resources)}; "
            f"the only custom resource that HRM manages is gpu"
        )
    return ""


def _number(executor_id: str) -> int:
    return int(executor_id) if executor_id.isdecimal() else 0
