"""An application in virtual time: a driver that requests executors, and its AppMaster's process.

The driver does work while executors run, changes its target for them as dynamic allocation does,
and ends when its work is done. The AppMaster registers, keeps a session open, and opens it again
whenever it breaks. It may die alone (the driver starts another), or with the driver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.appmaster.appmaster_limits import AppMasterLimits
from hrm.core.messages import appmaster as am
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary import retries
from hrm.core.vocabulary.backoff import Backoff
from hrm.core.vocabulary.latest_timer import LatestTimer, Ring
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerId,
    ContainerRequest,
    ContainerStatus,
    Followed,
    Progress,
    Resources,
    TrainingReport,
    WorkloadClass,
)
from hrm.core.vocabulary.wakefulness import Patience
from hrm.sim import event_format
from hrm.sim.faults.labels import requirement_of
from hrm.sim.faults.network import CALL_TIMEOUT_S, Peer, Stream
from hrm.sim.faults.plan import ApplicationPlan

if TYPE_CHECKING:
    from hrm.sim.world import World

__all__ = ["Driver", "seen"]

WORK_STEP_S = 0.5
_OTHER = 1
"""The profile of an application's other size."""
_FINAL_UPDATE_S = 2.0
_ORPHAN_S = 0.8
_RECONNECT_S = 0.1
_RECONNECT_MAX_S = 2.0
_MASTER_TIMEOUT_S = 40.0
_LIMITS = AppMasterLimits(backoff_max_s=2.0, settled_s=5.0, confirm_s=4.0, locality_wait_s=1.5)


def seen(status: ContainerStatus) -> am.ContainerSeen:
    """A container as the master reports it to an AppMaster."""
    return am.container_seen(
        status.executor_id, status.resource_profile_id, status.state, status.node, status.end
    )


class Driver:
    """One driver. ``outcome`` is empty while it lives, then ``succeeded`` or why it is over.

    ``client``: whose connection to the master it uses; its own, unless it runs on a node.
    ``executors``: id to profile, of those that were reported to it as started and not as dead.
    ``profiles``: the same of all that were ever requested for it.
    """

    def __init__(self, world: World, plan: ApplicationPlan) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.client = plan.name
        self.application_id = ApplicationId("")
        self.executors: dict[str, int] = {}
        self.profiles: dict[str, int] = {}
        self.outcome = ""
        self.had_appmaster = False
        self.appmaster: _AppMaster | None = None
        self._wanted = [plan.targets[0][1]]
        if plan.other is not None:
            self._wanted.append(plan.other.targets[0][1])
        self._class = ""
        self._excluded: tuple[str, ...] = ()
        self._done_s = 0.0
        self._begun = False
        clock = world.clock
        begin_s = clock.now + plan.start_s
        clock.at(begin_s, self.start_appmaster)
        clock.at(begin_s + WORK_STEP_S, self._work)
        for at_s, count in plan.targets[1:]:
            clock.at(max(begin_s, clock.now + at_s), self._want, 0, count)
        for at_s, count in () if plan.other is None else plan.other.targets[1:]:
            clock.at(max(begin_s, clock.now + at_s), self._want, _OTHER, count)
        for at_s, name in plan.classes:
            clock.at(begin_s + at_s, self._observe, name)
        for at_s, steps in plan.priority_requests:
            clock.at(max(begin_s, clock.now + at_s), self._ask_priority, steps)
        for at_s, report in plan.training:
            clock.at(begin_s + at_s, self._report, report)
        for at_s, hosts in plan.exclusions:
            clock.at(max(begin_s, clock.now + at_s), self._exclude, hosts)

    def _ask_priority(self, steps: int) -> None:
        """Its user requests another priority, whatever has become of it."""
        if self.application_id:
            self.world.ask_master(
                e.PriorityRequested(
                    now=0.0, call_id=0, application_id=self.application_id, steps=steps,
                    by=self.plan.user,
                )
            )  # fmt: skip

    def targets(self) -> tuple[am.ProfileTarget, ...]:
        target = self._profile_target(0, self.plan.resources)
        target = replace(
            target,
            gpus=self.plan.gpus,
            hosts=self.plan.hosts,
            local_executors=self.plan.local_executors,
        )
        if self.plan.other is None:
            return (target,)
        other = self._profile_target(_OTHER, self.plan.other.resources)
        return (target, replace(other, gpus=self.plan.other.gpus))

    def _profile_target(self, profile: int, resources: Resources) -> am.ProfileTarget:
        return am.ProfileTarget(
            profile=profile,
            count=self._wanted[profile],
            vcores=resources.vcores,
            heap_mib=resources.memory_mib,
            memory_mib=resources.memory_mib,
            gpu_memory_mib=resources.gpu_memory_mib,
        )

    @property
    def owner(self) -> str:
        """The digest of its ownership key."""
        return f"owner {self.name}"

    def registration(self, application_id: ApplicationId) -> e.ApplicationRegistered:
        """Its AppMaster's first message; the id is empty where it has none yet."""
        return e.ApplicationRegistered(
            now=0.0,
            call_id=0,
            application_id=application_id,
            submission_key=f"key-of-{self.name}",
            name=self.plan.title or self.name,
            user=self.plan.user,
            queue=self.plan.queue,
            priority=self.plan.priority,
            declared_class=self.plan.declared,
            gang_min=self.plan.gang_min,
            stream_min=self.plan.stream_min,
            owner=self.owner,
            requires=requirement_of(self.plan),
            proven=bool(application_id),
        )

    def start_appmaster(self) -> None:
        self._begun = True
        if not self.outcome and self.appmaster is None:
            self.appmaster = _AppMaster(self)
            known = dict.fromkeys([*self.executors, *self.alive()])
            self.appmaster.begin({x: self.profiles[x] for x in known})
            if self._class:
                self._observe(self._class)
            if self._excluded:
                self._exclude(self._excluded)

    def start_appmaster_if_begun(self) -> None:
        """Start another AppMaster where one has crashed."""
        if self._begun:
            self.start_appmaster()

    def crash_appmaster(self) -> None:
        if self.appmaster is not None:
            self.world.log.emit(self.name, "AppMaster crashes")
            self.world.sleepers.died(self.name)
            self.appmaster.leave()
            self.appmaster = None

    def die(self, *, with_appmaster: bool) -> None:
        if self.outcome:
            return
        self.world.log.emit(self.name, "driver dies")
        self.outcome = "the driver died"
        if with_appmaster:
            self.crash_appmaster()
        elif self.appmaster is not None:
            self.appmaster.finish(ApplicationState.FAILED, "the driver is gone", _ORPHAN_S)

    def end(self) -> None:
        """It has done its work."""
        self.world.log.emit(self.name, "driver is done")
        self.outcome = "succeeded"
        if self.appmaster is not None:
            self.appmaster.finish(ApplicationState.SUCCEEDED, "done", _FINAL_UPDATE_S)

    def failed(self, why: str) -> None:
        """The AppMaster reports that the application cannot go on."""
        if not self.outcome:
            self.world.log.emit(self.name, f"driver gives up: {why}")
            self.outcome = why
            if self.appmaster is not None:
                self.appmaster.finish(ApplicationState.FAILED, why, _FINAL_UPDATE_S)

    def alive(self) -> list[str]:
        """Executors that run, wherever: they talk to the driver themselves."""
        if not self.application_id:
            return []
        prefix = f"{self.application_id}-x"
        processes = self.world.oracle.processes
        return [x.removeprefix(prefix) for x in processes if x.startswith(prefix)]

    def _work(self) -> None:
        if self.outcome:
            return
        self._done_s += WORK_STEP_S * len(self.alive())
        if self._done_s >= self.plan.work_s and self.appmaster is not None:
            self.end()
            return
        self.world.clock.after(WORK_STEP_S, self._work)

    def _want(self, profile: int, count: int) -> None:
        if self.outcome:
            return
        before, self._wanted[profile] = self._wanted[profile], count
        if self.appmaster is None:
            return
        self.appmaster.deliver(am.TargetsChanged(now=0.0, targets=self.targets()))
        if count < before and self.world.chance.random() < self.plan.kill_chance:
            mine = [x for x, of in self.executors.items() if of == profile]
            surplus = sorted(mine)[: before - count]
            self.appmaster.deliver(am.ExecutorsKilled(now=0.0, executor_ids=tuple(surplus)))

    def _observe(self, name: str) -> None:
        self._class = name
        if self.appmaster is not None and not self.outcome:
            self.appmaster.deliver(
                am.ClassObserved(now=0.0, workload_class=name, evidence="observed")
            )

    def _report(self, report: TrainingReport) -> None:
        """It trains while it has executors; what it reports goes the way of its counts."""
        if self.appmaster is not None and not self.outcome and self.alive():
            self.appmaster.report(report)

    def limit(self, executors_max: int) -> None:
        """Executors beyond so many finish what they do, and end by themselves."""
        prefix = f"{self.application_id}-x"
        mine = sorted(x for x in self.alive() if self.profiles.get(x) == 0)
        for executor_id in mine[executors_max:]:
            container_id = ContainerId(prefix + executor_id)
            for machine in self.world.machines:
                if container_id in machine.processes:
                    machine.end_by_itself(container_id, WORK_STEP_S)

    def _exclude(self, hosts: tuple[str, ...]) -> None:
        """Tasks failed on these hosts, or the time of earlier exclusions is over."""
        self._excluded = hosts
        if self.appmaster is not None and not self.outcome:
            self.appmaster.deliver(am.ExclusionsChanged(now=0.0, hosts=hosts))


class _AppMaster(Peer):
    """One AppMaster process, from its start to its end. ``left``: it is no more."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.world = driver.world
        self.clock = driver.world.clock_of(driver.name)
        self.core = AppMasterCore(limits=_LIMITS, took_over=driver.had_appmaster)
        driver.had_appmaster = True
        self.left = False
        self._application_id = driver.application_id
        self._stream: Stream | None = None
        self._last_number = 0
        self._followed: Followed | None = None
        self._ended_by_master = False
        # Pauses of AppMasters do not vary here; kept seeds depend on it.
        self._backoff = Backoff(_RECONNECT_S, _RECONNECT_MAX_S, lambda: 1.0)
        self._patience = Patience(
            self.clock.now,
            limit_s=_MASTER_TIMEOUT_S,
            late_s=CALL_TIMEOUT_S + _RECONNECT_MAX_S + 1.0,
        )
        self._timer = LatestTimer()

    def begin(self, executors: dict[str, int]) -> None:
        self.core.adopt(executors)
        now = self.clock.now
        self.handle(am.TargetsChanged(now=now, targets=self.driver.targets()))
        self._register()

    def finish(self, state: ApplicationState, message: str, limit_s: float) -> None:
        self.deliver(am.DriverFinished(now=0.0, state=state, message=message))
        self.clock.after(limit_s, self.leave)

    def leave(self) -> None:
        if not self.left:
            self.left = True
            if self._stream is not None:
                self._stream.close_client()

    def report(self, report: TrainingReport) -> None:
        """Without a session it is lost: counts are sent again, epochs are not."""
        if self._stream is not None and self.core.attached:
            progress = e.ProgressReported(
                now=0.0,
                application_id=self._application_id,
                progress=Progress(tasks_running=1),
                training=(report,),
            )
            self._stream.send_to_server(progress)

    def deliver(self, event: am.Event) -> None:
        """An event from the driver, when this process takes it in."""
        self.world.sleepers.deliver(self.driver.name, self._deliver, event)

    def _deliver(self, event: am.Event) -> None:
        self.handle(replace(event, now=self.clock.now))

    def handle(self, event: am.Event) -> None:
        if self.left:
            return
        log, name = self.world.log, self.driver.name
        try:
            commands = self.core.handle(event)
        except Exception as error:
            log.emit(name, type(event).__name__)
            self.world.oracle.violated(f"the AppMaster of {name} raised {error!r}")
            return
        log.emit(name, _event_words(event) + event_format.of_commands(commands))
        self.world.oracle.after_application(name, self.core, commands)
        for command in commands:
            self._carry_out(command)
        self._set_timer()

    def _set_timer(self) -> None:
        ring = self._timer.set(self.core.wake_at_s(), self.clock.now)
        if ring is not None:
            self.clock.at(ring.at_s, self._tick, ring)

    def _tick(self, ring: Ring) -> None:
        if self._timer.rings(ring):
            self.handle(am.AppMasterTicked(now=self.clock.now))

    def _carry_out(self, command: am.Command) -> None:
        driver, application_id = self.driver, self._application_id
        message: e.MasterEvent
        match command:
            case am.ExecutorStarted():
                driver.executors[command.executor_id] = driver.profiles[command.executor_id]
                return
            case am.ExecutorEnded():
                driver.executors.pop(command.executor_id, None)
                return
            case am.KeepExecutors():
                driver.limit(command.executors_max)
                return
            case am.FailApplication() | am.RefuseProfile():
                # Its program does not catch the failure of a job.
                driver.failed(command.message)
                return
            case am.RequestContainers():
                message = e.ContainersRequested(
                    now=0.0,
                    application_id=application_id,
                    requests=tuple(self._request(ask) for ask in command.asks),
                    again=command.again,
                )
            case am.ReleaseContainers():
                message = e.ContainersReleased(
                    now=0.0,
                    application_id=application_id,
                    executor_ids=command.executor_ids,
                    reason=command.reason,
                )
            case am.ReportClass():
                message = e.WorkloadClassObserved(
                    now=0.0,
                    application_id=application_id,
                    workload_class=WorkloadClass[command.workload_class],
                    evidence=command.evidence,
                )
            case am.ReportExclusions():
                message = e.HostsExcluded(
                    now=0.0, application_id=application_id, hosts=frozenset(command.hosts)
                )
            case am.FinishApplication():
                message = e.ApplicationFinished(
                    now=0.0,
                    application_id=application_id,
                    state=command.state,
                    message=command.message,
                )
        if self._stream is not None:
            self._stream.send_to_server(message)

    def _request(self, ask: am.ContainerAsk) -> ContainerRequest:
        target = ask.target
        self.driver.profiles[ask.executor_id] = target.profile
        return ContainerRequest(
            executor_id=ask.executor_id,
            resource_profile_id=target.profile,
            resources=Resources(target.vcores, target.memory_mib, target.gpu_memory_mib),
            heap_mib=target.heap_mib,
            expected_duration_s=self.driver.plan.duration_hint_s,
            gpus=target.gpus,
            hosts=ask.hosts,
            locality_wait_s=ask.locality_wait_s,
            yields=self.driver.plan.yields,
        )

    def _register(self) -> None:
        if self.left:
            return
        event = self.driver.registration(self._application_id)
        event = replace(event, followed=self._followed)
        self.world.network.call(
            self.driver.client,
            lambda reply: self.world.master.register(event, reply),
            self._registered,
            process=self.driver.name,
        )

    def _registered(self, result: Any) -> None:
        if self.left:
            return
        if result is None:
            self._again()
            return
        if isinstance(result, c.Refuse):
            self._refused(result)
            return
        admitted = result.result
        assert isinstance(admitted, c.ApplicationAdmitted)
        self._application_id = admitted.application_id
        self._followed = Followed(admitted.epoch, admitted.epoch_id)
        self._last_number = admitted.last_executor_number
        driver = self.driver
        self._stream = Stream(
            self.world.network, driver.client, self, strict=True, process=driver.name
        )
        self.world.master.accept_session(self._stream)
        attach = e.ApplicationAttached(
            now=0.0,
            call_id=0,
            application_id=admitted.application_id,
            session=0,
            epoch=admitted.epoch,
            owner=driver.owner,
        )
        self._stream.send_to_server(attach)

    def _refused(self, refusal: c.Refuse) -> None:
        """The first registration is repeated after any passing failure: its user types it again."""
        if retries.APP_MASTER.allows(refusal.error, known=True):
            self._again()
        else:
            self._ended_by_master = True
            self.driver.failed(refusal.error.message)
            self.leave()

    def _again(self) -> None:
        """Open another session after a pause, unless this has been going on for too long."""
        now = self.clock.now
        if self._patience.is_over(now):
            self.driver.failed("the master cannot be reached")
            return
        self.clock.after(self._backoff.pause_s(), self._register)

    def received(self, message: Any) -> None:
        now = self.clock.now
        match message:
            case c.ApplicationAdmitted():
                self._backoff.succeeded()
                self.driver.application_id = message.application_id
                opened = am.SessionOpened(
                    now=now,
                    epoch=message.epoch,
                    containers=tuple(map(seen, message.containers)),
                    last_executor_number=self._last_number,
                    executors_max=message.executors_max,
                )
                self.handle(opened)
            case c.ContainerChanged():
                self.handle(am.ContainerListed(now=now, container=seen(message.status)))
            case c.RequestRefused():
                refused = am.ExecutorsRefused(
                    now=now,
                    executor_ids=message.executor_ids,
                    profile=message.resource_profile_id,
                    message=message.message,
                )
                self.handle(refused)
            case c.ExecutorLimit():
                limit = am.ExecutorLimitSet(now=now, executors_max=message.executors_max)
                self.handle(limit)
            case c.EndApplication():
                self._ended_by_master = True
                self.handle(am.EndOrdered(now=now, message=message.message))
            case c.Refuse():
                if not retries.APP_MASTER.allows(message.error, known=True):
                    self._refused(message)

    def closed(self) -> None:
        self._stream = None
        if self.left:
            return
        if self.core.attached:
            self._patience.contact(self.clock.now)
            self.handle(am.SessionLost(now=self.clock.now))
        if self._ended_by_master:
            self.leave()
        else:
            self._again()


def _event_words(event: am.Event) -> str:
    match event:
        case am.ContainerListed():
            container = event.container
            return f"x{container.executor_id} is {container.phase.value} ({container.message})"
        case am.SessionOpened():
            listed = " ".join(f"x{x.executor_id}={x.phase.value}" for x in event.containers)
            return f"SessionOpened epoch {event.epoch} [{listed}]"
        case am.TargetsChanged():
            return "TargetsChanged " + ",".join(str(t.count) for t in event.targets)
    return event_format.of_event(event)
