"""The master's side of the protocol with AppMasters.

Registering and requesting are idempotent: a submission key names one attempt of one driver, and
the application names its containers. An application whose AppMaster is away keeps its containers
until its grace period ends.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hrm.core.master import gangs, run_time_corrections
from hrm.core.master.class_guesses import ClassGuesses
from hrm.core.master.elastic_applications import ElasticApplications
from hrm.core.master.entities import Application, Container
from hrm.core.master.node_registry import NodeRegistry
from hrm.core.master.observed_tasks import observed
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.priorities import inherited
from hrm.core.master.queue_admin import QueueAdministration
from hrm.core.master.request_checks import RequestChecks
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.vocabulary import ownership
from hrm.core.vocabulary.application_ids import application_id_of, epoch_of
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerState,
    EndCause,
    NodeState,
    WorkloadClass,
    container_id_of,
    is_driver,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement, excluding
from hrm.core.vocabulary.records import ApplicationRecord, number_at, reserved_number
from hrm.core.vocabulary.transitions import ApplicationHappening, ContainerHappening
from hrm.core.vocabulary.wakefulness import excused
from hrm.errors import HrmError, LimitReached, NotFound, NotOwner, StaleEpoch

__all__ = ["ApplicationRegistry"]


class ApplicationRegistry:
    """``count``: applications registered with this master, for their ids. ``_forgotten``: ended
    ones that it has dropped, the latest, as many as may be live; they do not come back."""

    def __init__(
        self,
        master_state: MasterState,
        placement: PlacementCoordinator,
        nodes: NodeRegistry,
        queues: QueueAdministration,
        elastic: ElasticApplications,
    ) -> None:
        self.master_state = master_state
        self.placement = placement
        self.nodes = nodes
        self.queues = queues
        self.elastic = elastic
        self.guesses = ClassGuesses(master_state)
        self.count = 0
        self._forgotten: dict[ApplicationId, None] = {}

    def recover(self, record: ApplicationRecord, now: float) -> None:
        """Take over an application from the store; its AppMaster has the grace period to return."""
        if is_driver(record.application_id) and not record.owner:  # written by an older HRM
            record = replace(record, owner=ownership.MASTER)
        scheduler = self.placement.pool.choose_scheduler(record.application_id)
        app = self.master_state.new_application(record, scheduler)
        app.recovered = True
        app.doubtful_until_s = None
        if not app.life.takes(ApplicationHappening.RECOVERED):
            self.master_state.ended.append(record.application_id)
            self.master_state.holdings.ended(app)
            return
        app.detached_at_s = now
        app.life.take(ApplicationHappening.RECOVERED, now, "the master restarted")
        self.guesses.began(app, now)

    def registered(self, event: e.ApplicationRegistered) -> None:
        if event.application_id:
            self._register_again(event)
            return
        app = self.master_state.submitted_as(event.owner, event.submission_key)
        if app is not None and not _is_same(app, event):
            instead = "register with a key of your own"
            self.master_state.refuse(event.call_id, ownership.taken(event.submission_key, instead))
            return
        why = self._full(event.user) if app is None else ""
        why = why or self.master_state.holdings.refusal(app, event.launch)
        if why:
            self.master_state.refuse(event.call_id, LimitReached(why))
            return
        if app is None:
            queue = self.queues.place(event)
            if isinstance(queue, HrmError):
                self.master_state.refuse(event.call_id, queue)
                return
            app = self._new(event, queue)
        self.master_state.holdings.took(app, event.launch)
        app.first_executors = event.first_executors
        self.placement.drivers.changed(app)
        self._require(app, event.requires, event.now)
        self._admit(event.call_id, app)

    def _full(self, user: str) -> str:
        """Why no further application of ``user`` is admitted; empty if one is."""
        bounds, live = self.master_state.bounds, self.master_state.live
        each = bounds.applications_per_user
        if len(live) >= bounds.applications_limit:
            what = f"{bounds.applications_limit} applications are live already (applications_limit)"
        elif len(live) >= each and sum(x.record.user == user for x in live.values()) >= each:
            of_user = f"{each} applications of {user[:80]!r}"
            what = f"{of_user} are live already (applications_per_user)"
        else:
            return ""
        return f"{what}; wait for one to end, or raise it in hrm.toml [master]"

    def attach_refusal(self, event: e.ApplicationAttached) -> HrmError | None:
        """Why this session may not be opened. To be checked before the session that it would
        replace is touched: a refused one must leave no trace."""
        app = self.master_state.applications.get(event.application_id)
        unknown = app is None and event.now < self.master_state.forgot_until_s
        if app is not None and not ownership.is_owner(app.record.owner, event.owner):
            return _denied(event.application_id)
        if unknown or event.epoch != self.master_state.epoch:
            message = "the master has restarted since this AppMaster registered; register again"
            return StaleEpoch(message)
        if app is None or not app.life.takes(ApplicationHappening.ATTACHED):
            return _gone(event.application_id, app)
        return None

    def attached(self, event: e.ApplicationAttached) -> None:
        error = self.attach_refusal(event)
        if error is not None:
            self.master_state.refuse(event.call_id, error)
            return
        app = self.master_state.applications[event.application_id]
        app.session = event.session
        app.detached_at_s = None
        if app.doubtful_until_s is None:
            # It repeats at once what it still needs; what it requests later is new.
            app.doubtful_until_s = event.now + self.master_state.bounds.recovery_window_s
        if app.life.state is ApplicationState.DETACHED:
            was = ApplicationState.SUBMITTED
            if app.record.first_running_at_s or app.in_state(ContainerState.RUNNING):
                was = ApplicationState.RUNNING
            self.master_state.move_application(
                app, ApplicationHappening.ATTACHED, was, event.now, "its AppMaster is back"
            )
        self._admit(event.call_id, app)

    def detached(self, event: e.ApplicationDetached) -> None:
        app = self.master_state.applications.get(event.application_id)
        by, to = ApplicationHappening.DETACHED, ApplicationState.DETACHED
        if app is None or app.session != event.session or not app.life.takes(by):
            return
        app.session = None
        app.detached_at_s = event.now
        if app.doubtful_until_s:
            app.doubtful_until_s = None  # it has not repeated its requests yet
        why = "its AppMaster's session broke"
        self.master_state.move_application(app, by, to, event.now, why)

    def requested(self, event: e.ContainersRequested) -> None:
        app = self._taking(ApplicationHappening.REPORTED, event.application_id)
        if app is None:
            return
        doubtful = app.is_doubtful(event.now) if event.again is None else event.again
        app.doubtful_until_s = 0.0
        if self.nodes.absent and doubtful:
            self._give_up(app, event)
            return
        if self.guesses.unsettled:
            self.guesses.requested(app, event.now)
        gangs.begin_stream(self.master_state, app, event.requests)
        refused: dict[tuple[int, str], list[str]] = defaultdict(list)
        checks = RequestChecks(self.master_state, app, event.requests, event.now)
        for request in event.requests:
            container_id = container_id_of(app.application_id, request.executor_id)
            known = app.find(container_id)
            if known is not None:
                self.master_state.notify_application(known)
                continue
            request, why = checks.of(request)
            if why:
                refused[request.resource_profile_id, why].append(request.executor_id)
            else:
                self.placement.request(app, request, event.now, is_new=event.again is False)
        if app.last_executor_number > app.record.last_executor_number:
            self.master_state.update_record(app)
        for (profile_id, why), executor_ids in refused.items():
            app.gang_refused_at_s = event.now
            notice = c.RequestRefused(
                executor_ids=tuple(executor_ids), resource_profile_id=profile_id, message=why
            )
            self.master_state.notify(app.application_id, notice)

    def _give_up(self, app: Application, event: e.ContainersRequested) -> None:
        """Perhaps requested from an earlier master: may run on a node that has not come back. Its
        AppMaster requests others, under new ids."""
        end = ContainerEnd(cause=EndCause.LOST, message="it may run on a node that is away")
        for request in event.requests:
            known = app.find(container_id_of(app.application_id, request.executor_id))
            if known is None:
                container = self.master_state.new_container(app, request, event.now)
                self.master_state.end_container(
                    container, ContainerHappening.GIVEN_UP, end, event.now
                )
            else:
                self.master_state.notify_application(known)

    def released(self, event: e.ContainersReleased) -> None:
        app = self._taking(ApplicationHappening.REPORTED, event.application_id)
        if app is None:
            return
        for executor_id in event.executor_ids:
            container = app.containers.get(container_id_of(app.application_id, executor_id))
            if container is not None:
                self._stop(container, EndCause.RELEASED, event.reason or "released", event.now)
        gangs.shrink(app)

    def progressed(self, event: e.ProgressReported) -> None:
        app = self._taking(ApplicationHappening.REPORTED, event.application_id)
        if app is not None:
            self.master_state.queue_fairness.progressed(app, event.progress, event.now)
            app.progress = event.progress
            self.elastic.reported(app, event.training, event.now)
            run_time_corrections.progressed(self.master_state, app, event.now)
            observed(self.master_state, app, event.tasks, event.now)

    def hosts_excluded(self, event: e.HostsExcluded) -> None:
        app = self._taking(ApplicationHappening.REPORTED, event.application_id)
        if app is not None:
            self._require(app, excluding(app.requires, event.hosts), event.now)

    def _require(self, app: Application, requires: NodeRequirement | None, now: float) -> None:
        """From now on only nodes that meet this get its containers; what waits elsewhere returns
        to its scheduler."""
        if requires == app.requires:
            return
        self.master_state.require(app, requires)
        self.placement.requirement_changed(app, now)
        waiting = app.in_state(ContainerState.ASSIGNED, ContainerState.WAITING)
        for name in dict.fromkeys(x.node for x in waiting if self.master_state.unsuited(x)):
            if name is not None:
                self.nodes.drains.return_unsuited(self.master_state.nodes[name], now)

    def class_observed(self, event: e.WorkloadClassObserved) -> None:
        app = self._taking(ApplicationHappening.REPORTED, event.application_id)
        if app is None or app.record.declared_class is not None:
            return
        self._set_class(app, event.workload_class, event.evidence, event.now)
        self.guesses.observed(app, event.workload_class)

    def _set_class(
        self, app: Application, workload_class: WorkloadClass, evidence: str, now: float
    ) -> None:
        """The class is known, for this reason; what waits and what runs is of it from now on."""
        record = app.record
        changed = record.workload_class is not workload_class
        if changed or record.class_guessed or record.class_evidence != evidence:
            self.master_state.update_record(
                app, workload_class=workload_class, class_evidence=evidence, class_guessed=False
            )
        if not changed:
            return
        if workload_class is WorkloadClass.BATCH:
            gangs.no_stream(app)
        # Order of starts: a waiting stream must not take them for batch.
        waiting = (ContainerState.ASSIGNED, ContainerState.WAITING)
        for container in sorted(app.containers.values(), key=lambda x: x.state in waiting):
            queue = self.master_state.state.find(container.unit_id)
            if queue is not None and queue.reclassify(container.container_id, workload_class):
                self.master_state.refresh(container.unit_id)
            if container.node is not None:
                message = c.SetContainerClass(
                    container_id=container.container_id, workload_class=workload_class
                )
                self.master_state.send(self.master_state.nodes[container.node], message)
        self.placement.reclassify(app, now)

    def finished(self, event: e.ApplicationFinished) -> None:
        by = ApplicationHappening.FINISHED
        app = self._taking(by, event.application_id)
        if app is not None:
            self.end(app, by, event.state, event.message, event.now)

    def driver_failed(self, event: e.DriverFailed) -> None:
        by, to = ApplicationHappening.DRIVER_FAILED, ApplicationState.FAILED
        app = self._taking(by, event.application_id)
        if app is None:
            return
        if not app.record.state.ended:
            self.end(app, by, to, event.message, event.now)
        elif app.record.submission_attempt == event.attempt:
            app.life.follow(by, to, event.now, event.message)
            self.master_state.update_record(app, state=to, message=event.message)
            self.master_state.holdings.changed(app)

    def kill(self, event: e.KillRequested) -> None:
        by = ApplicationHappening.KILLED
        app = self._taking(by, event.application_id)
        if app is None:
            known = self.master_state.applications.get(event.application_id)
            self.master_state.refuse(event.call_id, _gone(event.application_id, known))
            return
        message = event.reason or "killed by an administrator"
        self.end(app, by, ApplicationState.KILLED, message, event.now)
        self.master_state.reply(event.call_id, c.Done())

    def woke(self, now: float, slept_s: float) -> None:
        """This master slept: each AppMaster that is away gets its full grace period again."""
        self.guesses.woke(now)
        for app in self.master_state.live_applications():
            if app.detached_at_s is not None:
                app.excused_s = excused(app.detached_at_s, app.excused_s, now, slept_s)
            if app.doubtful_until_s and app.doubtful_until_s + slept_s > now:
                app.doubtful_until_s += slept_s

    def tick(self, now: float) -> None:
        grace_s = self.master_state.bounds.application_grace_s
        for app in self.master_state.live_applications():
            away_since_s = app.away_since_s
            if away_since_s is not None and now - away_since_s > grace_s:
                message = f"its AppMaster did not come back within {grace_s:.0f} s"
                by = ApplicationHappening.GIVEN_UP
                self.end(app, by, ApplicationState.FAILED, message, now)
        for app, why in self.guesses.due(now):
            self._set_class(app, WorkloadClass.BATCH, why, now)
            self.guesses.settled(app)
        self.master_state.places.tick(now)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """The oldest ended ones, while they are too many or hold too much."""
        ended, holdings = self.master_state.ended, self.master_state.holdings
        kept = self.master_state.bounds.ended_applications_kept
        while ended and (len(ended) > kept or holdings.too_many_ended):
            app = self.master_state.applications[ended[0]]
            if app.containers:
                break
            del self.master_state.applications[ended.popleft()]
            self._forgotten[app.application_id] = None
            if len(self._forgotten) > self.master_state.bounds.applications_limit:
                del self._forgotten[next(iter(self._forgotten))]
            holdings.forgotten(app)
            self.master_state.out.append(c.ForgetApplication(application_id=app.application_id))

    def end(
        self,
        app: Application,
        by: ApplicationHappening,
        state: ApplicationState,
        message: str,
        now: float,
    ) -> None:
        """End an application and stop all its containers."""
        self.master_state.move_application(app, by, state, now, message)
        self.master_state.ended.append(app.application_id)
        natural = state is ApplicationState.SUCCEEDED
        self.guesses.ended(app, succeeded=natural)
        self.elastic.forget(app, now)
        self.master_state.learn_run_times(app, now, succeeded=natural)
        cause = EndCause.RELEASED if natural else EndCause.KILLED
        for container in list(app.containers.values()):
            self._stop(container, cause, f"application {state.value}", now)
        if app.launch.shuffle_service:
            for node in self.master_state.nodes.values():
                if node.state is not NodeState.LOST:
                    drop = c.DropShuffleFiles(application_id=app.application_id)
                    self.master_state.send(node, drop)
        self.master_state.holdings.ended(app)
        app.session = None
        app.detached_at_s = None
        notice = c.EndApplication(state=state, message=message)
        self.master_state.notify(app.application_id, notice)

    def _new(self, event: e.ApplicationRegistered, queue: QueueName) -> Application:
        application_id = event.new_id
        if application_id is None:
            self.count += 1
            application_id = application_id_of(event.now, self.master_state.epoch, self.count)
        driver = self.master_state.applications.get(ApplicationId(event.submission_id))
        workload_class, evidence, guessed = self.guesses.first_class(event)
        record = ApplicationRecord(
            application_id=application_id,
            submission_key=event.submission_key,
            name=event.name,
            user=event.user,
            queue=queue,
            priority=event.priority,
            workload_class=workload_class,
            declared_class=event.declared_class,
            class_evidence=evidence,
            class_guessed=guessed,
            spark_version=event.spark_version,
            driver_host=event.driver_host,
            web_url=event.web_url,
            driver_start=event.driver_start,
            submitted_at_s=event.now,
            gang_min=event.gang_min,
            stream_min=event.stream_min,
            input_bytes=event.input_bytes,
            submission_id=event.submission_id,
            submission_attempt=event.submission_attempt,
            owner=event.owner,
            last_executor_number=reserved_number(0),
            standing=inherited(driver, event.priority),
        )
        scheduler = self.placement.pool.choose_scheduler(record.application_id)
        app = self.master_state.new_application(record, scheduler)
        app.last_executor_number = 0  # of those that are reserved, none has been used
        app.detached_at_s = event.now
        app.life.begin(event.now, f"submitted by {event.user} as {event.name}")
        self.master_state.out.append(c.PersistApplication(record=record))
        self.guesses.began(app, event.now)
        return app

    def _register_again(self, event: e.ApplicationRegistered) -> None:
        app = self.master_state.applications.get(event.application_id)
        if app is None and self._may_be_forgotten(event):
            taken = self._take_back(event)
            if isinstance(taken, HrmError):
                self.master_state.refuse(event.call_id, taken)
                return
            app = taken
        if app is None or not app.life.takes(ApplicationHappening.REGISTERED_AGAIN):
            self.master_state.refuse(event.call_id, _gone(event.application_id, app))
            return
        if not ownership.is_owner(app.record.owner, event.owner):
            self.master_state.refuse(event.call_id, _denied(event.application_id))
            return
        if why := self.master_state.holdings.refusal(app, event.launch):
            self.master_state.refuse(event.call_id, LimitReached(why))
            return
        if event.owner and not app.record.owner:
            self.master_state.claim(app, event.owner)
        self.master_state.holdings.took(app, event.launch)
        app.first_executors = event.first_executors
        self.placement.drivers.changed(app)
        self._require(app, event.requires, event.now)
        if app.session is None:
            app.detached_at_s = event.now
        self._admit(event.call_id, app)

    def _may_be_forgotten(self, event: e.ApplicationRegistered) -> bool:
        """Was it admitted by an earlier master, and may the store have lost it? Not so the driver
        of a submission: without its submission it has no lease. An id of this epoch is, or will be,
        one of this master's own making."""
        if event.now >= self.master_state.forgot_until_s or event.submission_id:
            return False
        epoch = epoch_of(event.application_id)
        is_earlier = epoch is not None and epoch < self.master_state.epoch
        return event.proven and is_earlier and event.application_id not in self._forgotten

    def _take_back(self, event: e.ApplicationRegistered) -> Application | HrmError:
        """Under its former id: what runs for it on nodes is adopted as they report it. It is held
        to limits and queues like a new one."""
        if why := self._full(event.user) or self.master_state.holdings.refusal(None, event.launch):
            return LimitReached(why)
        queue = self.queues.place(event)
        if isinstance(queue, NotFound):
            queue = self.queues.recovered(event.now)
        elif isinstance(queue, HrmError):
            return queue
        app = self._new(replace(event, new_id=event.application_id), queue)
        app.recovered = True
        app.doubtful_until_s = None
        app.last_executor_number = number_at(event.now)
        self.master_state.update_record(app)
        self.nodes.forgot()
        self.nodes.reconciler.claim(app, event.now)
        return app

    def _admit(self, call_id: int, app: Application) -> None:
        # Also what has ended: its AppMaster may have been away when that was reported, and would
        # wait for the node of an executor that is long gone.
        known = (*app.ended, *app.containers.values())
        statuses = tuple(self.master_state.status(x) for x in known)
        result = c.ApplicationAdmitted(
            application_id=app.application_id,
            epoch=self.master_state.epoch,
            epoch_id=self.master_state.epoch_id,
            user=app.record.user,
            containers=statuses,
            last_executor_number=app.last_executor_number,
            executors_max=app.executors_max,
        )
        self.master_state.reply(call_id, result)

    def _stop(self, container: Container, cause: EndCause, reason: str, now: float) -> None:
        by = ContainerHappening.RELEASED
        if container.state is ContainerState.PENDING:
            self.placement.withdraw(container)
            end = ContainerEnd(cause=cause, message=reason)
            self.master_state.end_container(container, by, end, now)
        else:
            # A stopping one may be preempted by a stream, with a grace period it no longer needs.
            container.life.take(by, now, reason)
            if container.request.resources.gpu_memory_mib:
                self.master_state.gpus.changed(container)
            assert container.node is not None
            node = self.master_state.nodes[container.node]
            self.master_state.send_stop(node, container, cause, reason, now)

    def _taking(
        self, happening: ApplicationHappening, application_id: ApplicationId
    ) -> Application | None:
        """The application, if there is one and this has an effect on it."""
        app = self.master_state.applications.get(application_id)
        return app if app is not None and app.life.takes(happening) else None


def _gone(application_id: ApplicationId, app: Application | None) -> NotFound:
    if app is None:
        return NotFound(
            f"no such application: {application_id}; hrm apps --all lists them, and one that this "
            f"master has lost comes back soon after its start, with its own token or the cluster's"
        )
    return NotFound(
        f"{application_id} has ended: {app.life.state.value}"
        + (f" ({app.record.message})" if app.record.message else "")
    )


def _is_same(app: Application, event: e.ApplicationRegistered) -> bool:
    """Does the same driver of the same user register it once more?"""
    record = app.record
    return (record.user, record.submission_id) == (event.user, event.submission_id)


def _denied(application_id: ApplicationId) -> NotOwner:
    instead = "register without the id, for an application of your own"
    return ownership.denied(application_id, instead)
