"""The master's state: applications, containers and nodes, and the outbox of commands.

Everything that the parts of the master's core share is kept here, with the few operations that
touch several tables at once, so that no part can change one without the other.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace

from hrm.core.master.entities import Application, Container, Node, Waits
from hrm.core.master.exclusion import ExclusionTracker
from hrm.core.master.gpu_index import GpuIndex
from hrm.core.master.holdings import Holdings
from hrm.core.master.places import KeptPlaces
from hrm.core.master.queue_fairness import QueueFairness
from hrm.core.master.queue_usage import QueueUsage
from hrm.core.messages import commands as c
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.tenancy.affinities import Affinities
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.ends import end_rule
from hrm.core.vocabulary.estimate_errors import EstimateErrors
from hrm.core.vocabulary.event_table import Lifecycle, Watch
from hrm.core.vocabulary.learned_classes import LearnedClassTable
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EndCause,
    NodeName,
    NodeState,
    ResourceUnitId,
    WorkloadClass,
    container_id_of,
)
from hrm.core.vocabulary.node_requirement import (
    NodeRequirement,
    among,
    unmet,
)
from hrm.core.vocabulary.records import ApplicationRecord, reserved_number
from hrm.core.vocabulary.run_times import (
    FinishTimes,
    RunTimeKey,
    RunTimeTable,
    length_bound,
    lower_bounds,
)
from hrm.core.vocabulary.transitions import (
    APPLICATION,
    CONTAINER,
    NODE,
    ApplicationHappening,
    ContainerHappening,
    NodeHappening,
)
from hrm.errors import HrmError, NotFound

__all__ = ["MasterState", "node_not_found"]


class MasterState:
    """The whole state of one master.

    Invariants:
        ``live`` has all and only those of ``applications`` that have not ended.
        A container is in its application's ``containers`` iff it has not ended.
        It is in its node's ``containers`` iff it has a node and has not ended.
        A node that is not LOST has all and only its units in ``state``.
        PENDING containers are with a scheduler iff they are not ``held``, which none is unless
        ``recovering``: a node that has not come back yet may be running those; and iff they wait
        for no other driver (``waits_for``); and iff their queue does not keep them (``withheld``).
        ``drivers`` has all and only the live containers of submitted drivers, in order of request;
        ``unqueued_drivers`` those of them without a ``waits_for``, in any order;
        ``driven`` the live applications that such drivers have registered, by submission.
        ``restricted`` has all and only the live applications that require something of nodes.
        ``starting`` has all live applications whose gang has been granted by this master and has
        not started whole, and until the next tick some of which that is no longer so.

    ``forgot_until_s``: until then the store may lack applications that run; what is unknown is left
    alone. ``has_forgotten``: it does; then it may lack nodes, too. ``ahead``: nodes and
    applications that do not follow this master, and why (``hrm.core.master.epochs``).

    ``gpus`` counts the live containers that use GPUs; only those are reported to it. ``queues``
    counts all live containers, where queues of applications govern anything; ``queue_fairness``
    observes how they are served.

    ``watch`` is called for every transition of an application, container or node, for new ones,
    and for nodes that are excluded.
    """

    def __init__(
        self,
        epoch: int,
        bounds: Bounds,
        watch: Watch | None = None,
        queues: QueueTree | None = None,
    ) -> None:
        self.epoch = epoch
        self.bounds = bounds
        self.watch = watch
        self.state = SharedState()
        self.applications: dict[ApplicationId, Application] = {}
        self.live: dict[ApplicationId, Application] = {}
        self._by_key: dict[tuple[str, str], ApplicationId] = {}
        self.ended: deque[ApplicationId] = deque()
        self.nodes: dict[NodeName, Node] = {}
        self.out: list[c.MasterCommand] = []
        self.recovering = False
        self.epoch_id = ""
        self.has_forgotten = False
        self.forgot_until_s = float("-inf")
        self.ahead: dict[str, str] = {}
        self.run_times = RunTimeTable(bounds.run_times_kept)
        self.learned_classes = LearnedClassTable(bounds.learned_classes_kept)
        self.finish_times = FinishTimes(bounds.default_duration_s)
        self.estimate_errors = EstimateErrors()
        self.affinities = Affinities()
        self.exclusions = ExclusionTracker(bounds, watch)
        self.holdings = Holdings(bounds)
        self.places = KeptPlaces(bounds.application_grace_s)
        self.gpus = GpuIndex(bounds.application_grace_s)
        self.queues = QueueUsage(self.state, queues or QueueTree.of())
        self.queue_fairness = QueueFairness(
            self.queues, self.affinities, bounds.queue_fairness_half_life_s
        )
        self._numbers = itertools.count(1)
        self.drivers: dict[ContainerId, Container] = {}
        self.unqueued_drivers: dict[ContainerId, Container] = {}
        self.driven: dict[str, Application] = {}
        self.restricted: dict[ApplicationId, Application] = {}
        self.starting: dict[ApplicationId, Application] = {}

    def sees_all(self, now: float) -> bool:
        """Is all that runs counted? Not while nodes come back, nor while some of it belongs to
        applications that the store has lost: what seems free to start is not."""
        lost = self.has_forgotten and now < self.forgot_until_s
        return not self.recovering and not lost

    def live_applications(self) -> list[Application]:
        return list(self.live.values())

    def holding_applications(self) -> list[Application]:
        """Those that are live, and those that have ended while their containers still do."""
        return [x for x in self.applications.values() if x.containers or not x.life.state.ended]

    def submitted_as(self, owner: str, submission_key: str) -> Application | None:
        """The live application of this try of this driver: another owner's has another key."""
        return self.live.get(self._by_key.get((owner, submission_key), ApplicationId("")))

    def require(self, app: Application, requires: NodeRequirement | None) -> None:
        """Enter what a node must meet to get this application's containers."""
        app.requires = requires
        if requires is None or app.life.state.ended:
            self.restricted.pop(app.application_id, None)
        else:
            self.restricted[app.application_id] = app

    def required(self, app: Application) -> NodeRequirement | None:
        """What its nodes must meet, without excluded hosts that no node is on: many applications
        require the same then. A job has it as it was before its latest round, so a host whose node
        came later may cost a round; a commit has it as it is."""
        requires = app.requires
        if requires is None or not requires.excluded_hosts:
            return requires
        return among(requires, self.state.hosts)

    def unsuited(self, container: Container) -> str:
        """Why its node is none for this container, as words after the node's name; empty if it is,
        or if the container has none."""
        app = self.applications[container.application_id]
        node = None if container.node is None else self.nodes.get(container.node)
        return "" if node is None else unmet(app.requires, node.properties)

    def claim(self, app: Application, owner: str) -> None:
        """Enter the owner of an application that has none yet."""
        self._by_key.pop(_key(app.record), None)
        self.update_record(app, owner=owner)
        self._by_key[_key(app.record)] = app.application_id

    def new_container(self, app: Application, request: ContainerRequest, now: float) -> Container:
        application_id, executor_id = app.record.application_id, request.executor_id
        container_id = container_id_of(application_id, executor_id)
        pending, watch = ContainerState.PENDING, self.watch
        life = Lifecycle("container", container_id, CONTAINER, pending, watch)
        container = Container(container_id, application_id, request, life, now)
        app.containers[container_id] = container
        if app.is_driver:
            container.number = next(self._numbers)
            self.drivers[container_id] = self.unqueued_drivers[container_id] = container
        if request.resources.gpu_memory_mib or request.gpus:
            container.number = next(self._numbers)
            self.gpus.changed(container)
        if watch is not None:
            life.owner = container
            watch(("container", container_id, container, None, pending, now, "requested"))
        if executor_id.isdecimal() and (number := int(executor_id)) > app.last_executor_number:
            app.last_executor_number = number
        return container

    def driver_waits(self, container: Container, waits: Waits | None) -> None:
        """It waits for its turn from now on; None: it does no longer."""
        container.waits_for = waits
        if waits is not None:
            self.unqueued_drivers.pop(container.container_id, None)
        elif container.container_id in self.drivers:
            self.unqueued_drivers[container.container_id] = container
        if self.queues.accounts is not None:
            self.queues.note(container, self.applications[container.application_id])

    def change_request(self, container: Container, request: ContainerRequest) -> None:
        """What it requests is known better."""
        container.request = request
        self.gpus.changed(container)
        self.queues.note(container, self.applications[container.application_id])

    def new_application(self, record: ApplicationRecord, scheduler: str) -> Application:
        name = record.application_id
        life = Lifecycle("application", name, APPLICATION, record.state, self.watch)
        app = Application(
            record,
            life,
            scheduler,
            last_executor_number=record.last_executor_number,
            gang_min=0 if record.first_running_at_s else record.gang_min,
        )
        self.applications[name] = app
        if not record.state.ended:
            self.live[name] = app
            self._by_key[_key(record)] = name
            if record.submission_id:
                self.driven[record.submission_id] = app
        return app

    def new_node_life(self, name: NodeName) -> Lifecycle[NodeState, NodeHappening]:
        return Lifecycle("node", name, NODE, NodeState.ALIVE, self.watch)

    def move_application(
        self,
        app: Application,
        by: ApplicationHappening,
        to: ApplicationState,
        now: float,
        why: str,
    ) -> None:
        """Change an application's state and write it down."""
        if not app.life.follow(by, to, now, why):
            return
        changes: dict[str, object] = {"state": to}
        if to is ApplicationState.RUNNING and not app.record.first_running_at_s:
            changes["first_running_at_s"] = now
        if to.ended:
            del self.live[app.application_id]
            self.restricted.pop(app.application_id, None)
            self.starting.pop(app.application_id, None)
            self.places.forget(app.application_id)
            self.gpus.forget(app.application_id)
            self.queues.ended(app)
            self._by_key.pop(_key(app.record), None)
            if self.driven.get(app.record.submission_id) is app:
                del self.driven[app.record.submission_id]
            changes["ended_at_s"] = now
            changes["message"] = why
            if app.progress is not None:
                for name in ("tasks_total", "tasks_completed", "tasks_failed"):
                    changes[name] = getattr(app.progress, name)
        self.update_record(app, **changes)

    def update_record(self, app: Application, **changes: object) -> None:
        reserved = max(app.record.last_executor_number, reserved_number(app.last_executor_number))
        record = replace(app.record, last_executor_number=reserved)
        app.record = replace(record, **changes)  # type: ignore[arg-type]
        self.out.append(c.PersistApplication(record=app.record))

    def end_container(
        self, container: Container, by: ContainerHappening, end: ContainerEnd, now: float
    ) -> None:
        """Remove a container from every table and notify its application."""
        container.life.follow(by, ContainerState.ENDED, now, end.message or end.cause.value)
        container.life.owner = None
        container.end = end
        container.ended_at_s = now
        container.usage = None
        self._leave_unit(container)
        app = self.applications[container.application_id]
        if app.gang_min and container.node is not None:
            app.gang_lost_at_s = now
        if container.started_at_s and end_rule(end).complete:
            ran_s = now - container.started_at_s
            if app.record.workload_class is WorkloadClass.BATCH:
                self.estimate_errors.ended(container.request.expected_duration_s, ran_s)
            self.finish_times.finished(container.unit_id, ran_s)
            self.bound_waiting(container.unit_id)
        if container.node is not None:
            node = self.nodes.get(container.node)
            if node is not None:
                node.containers.pop(container.container_id, None)
        if container.request.place and not container.started_at_s and not app.life.state.ended:
            self.places.waiter_ended(app.application_id, container.request, end, now)
        del app.containers[container.container_id]
        self.drivers.pop(container.container_id, None)
        self.unqueued_drivers.pop(container.container_id, None)
        if self.queues.accounts is not None:
            self.queues.note(container, app)
        if container.request.resources.gpu_memory_mib:
            was_returned = end.cause is EndCause.PREEMPTED and container.node is not None
            if was_returned and not container.started_at_s and not app.life.state.ended:
                self.gpus.expect_again(container, now + self.bounds.resend_delay_s)
            self.gpus.changed(container)
        app.ended.append(container)
        app.ended_ids.add(container.container_id)
        self.holdings.container_ended(app, container)
        while len(app.ended) > self.bounds.ended_containers_kept:
            oldest = app.ended.popleft()
            app.ended_ids.remove(oldest.container_id)
            self.holdings.container_forgotten(app, oldest)
        self.notify_application(container)

    def bound_waiting(self, unit_id: ResourceUnitId) -> None:
        """Limit the waiters at a unit to ``waiting_bound``."""
        queue = self.state.find(unit_id)
        if queue is not None and self.bounds.waiting_bound == "feedback":
            rate_per_s = self.finish_times.rate_per_s(unit_id)
            tau_s = self.bounds.heartbeat_interval_s
            limit = length_bound(queue.unit.run_limit, rate_per_s, tau_s)
            self.state.limit_waiting(unit_id, limit)

    def expected(self, app: Application, request: ContainerRequest) -> ContainerRequest:
        """The request with a run time: its own, or that of earlier runs of the application."""
        if request.expected_duration_s or app.record.workload_class is WorkloadClass.STREAM:
            return request
        if not self.run_times.rows:
            return request
        known = self.run_times.find((app.record.name, app.record.user, request.resource_profile_id))
        if known is None:
            return request
        return replace(request, expected_duration_s=known.expected_s(app.record.input_bytes))

    def learn_run_times(self, app: Application, now: float, *, succeeded: bool) -> None:
        """A batch application has ended: remember how long its containers ran, or at least how
        long they would have."""
        if app.record.workload_class is not WorkloadClass.BATCH or not self.run_times.limit:
            return
        durations_s: dict[int, list[float]] = {}
        for container in (*app.ended, *app.containers.values()):
            whole = not container.end or end_rule(container.end).complete
            if container.started_at_s and (whole or not succeeded):
                duration_s = max(0.0, (container.ended_at_s or now) - container.started_at_s)
                profile = container.request.resource_profile_id
                durations_s.setdefault(profile, []).append(duration_s)
        for profile, times_s in durations_s.items():
            run_of: RunTimeKey = (app.record.name, app.record.user, profile)
            if not succeeded:
                known, expected_s = self.run_times.rows.get(run_of), self.bounds.default_duration_s
                if known is not None:
                    expected_s = known.expected_s(app.record.input_bytes)
                times_s = lower_bounds(expected_s, times_s)
            if not times_s:
                continue
            row = self.run_times.learned(run_of, times_s, app.record.input_bytes)
            self.out.append(c.PersistRunTime(row=row))
            for key in self.run_times.put(row):
                self.out.append(c.ForgetRunTime(key=key))

    def notify_application(self, container: Container) -> None:
        """Notify the container's application of its status."""
        self.notify(container.application_id, c.ContainerChanged(status=self.status(container)))

    def limit_executors(self, app: Application, executors_max: int | None) -> None:
        """How many executors of its default profile it may have from now on; None: all that it
        requests. Its AppMaster requests no more, and lets Spark end those beyond it, which no
        master orders to stop. It is of this master alone: the next one says it again, or not."""
        assert executors_max is None or executors_max >= 1
        if app.executors_max != executors_max:
            app.executors_max = executors_max
            self.notify(app.application_id, c.ExecutorLimit(executors_max=executors_max))

    def notify(self, application_id: ApplicationId, notice: c.Notice) -> None:
        self.out.append(c.NotifyApplication(application_id=application_id, notice=notice))

    def reply(self, call_id: int, result: c.CallResult) -> None:
        self.out.append(c.Reply(call_id=call_id, result=result))

    def refuse(self, call_id: int, error: HrmError) -> None:
        self.out.append(c.Refuse(call_id=call_id, error=error))

    def send(self, node: Node, message: c.NodeMessage) -> None:
        self.out.append(c.SendToNode(node=node.name, incarnation=node.incarnation, message=message))

    def send_stop(
        self,
        node: Node,
        container: Container,
        cause: EndCause,
        reason: str,
        now: float,
        *,
        grace_s: float | None = None,
        decommission: bool = False,
        only_if_waiting: bool = False,
    ) -> None:
        """Order a node to stop a container. ``grace_s``: None for ``stop_grace_s``;
        ``decommission``: it is to hand over its data in that time; ``only_if_waiting``: unless it
        has started."""
        container.sent_at_s = now
        if not only_if_waiting:
            container.stop_cause = cause
        message = c.StopContainer(
            container_id=container.container_id,
            cause=cause,
            reason=reason,
            grace_s=self.bounds.stop_grace_s if grace_s is None else grace_s,
            only_if_waiting=only_if_waiting,
            decommission=decommission,
        )
        self.send(node, message)

    def status(self, container: Container) -> ContainerStatus:
        app, request = self.applications[container.application_id], container.request
        return ContainerStatus(
            container_id=container.container_id,
            application_id=container.application_id,
            executor_id=request.executor_id,
            resource_profile_id=request.resource_profile_id,
            workload_class=app.record.workload_class,
            resources=request.resources,
            state=container.state,
            node=container.node or NodeName(""),
            unit_id=container.unit_id,
            requested_at_s=container.requested_at_s,
            assigned_at_s=container.assigned_at_s,
            started_at_s=container.started_at_s,
            ended_at_s=container.ended_at_s,
            end=container.end,
            stdout_url=container.stdout_url,
            stderr_url=container.stderr_url,
            usage=container.usage,
            expected_duration_s=request.expected_duration_s,
            yields=request.yields,
        )

    def spec(self, container: Container, app: Application | None = None) -> ContainerSpec:
        """What a node gets to start it, with the run time that its queue is to assume. ``app``: the
        container's, if it is at hand."""
        app = app or self.applications[container.application_id]
        request = container.request
        return ContainerSpec(
            container_id=container.container_id,
            application_id=container.application_id,
            executor_id=request.executor_id,
            resource_profile_id=request.resource_profile_id,
            workload_class=app.record.workload_class,
            resources=request.resources,
            unit_id=container.unit_id,
            heap_mib=request.heap_mib,
            expected_duration_s=request.expected_duration_s or self.bounds.default_duration_s,
            launch=app.launch,
            user=app.record.user,
            stands_first=request.place == container.unit_id != NO_UNIT,
            yields=request.yields,
            application_name=app.record.name,
        )

    def refresh(self, unit_id: ResourceUnitId) -> None:
        row = self.state.rows.get(unit_id)
        if row is not None:
            self.state.refresh(row)

    def _leave_unit(self, container: Container) -> None:
        queue = self.state.find(container.unit_id)
        if queue is not None and queue.remove(container.container_id) is not None:
            self.refresh(container.unit_id)


def node_not_found(name: NodeName, node: Node | None) -> NotFound:
    """The refusal of a request about a node that is unknown, or LOST."""
    what = "no such node" if node is None else "that node is lost"
    return NotFound(f"{what}: {name}; hrm nodes lists them")


def _key(record: ApplicationRecord) -> tuple[str, str]:
    return record.owner, record.submission_key
