"""Do priorities change as requested and no otherwise, do queues follow them, who is interrupted?

Each application's priority is computed again from the requests that the master has confirmed. At
each event, of queues whose order is ``classes``:

- a request that is confirmed changes the priority as the requests of its period together do, and
  there are no more of them than bounds allow; one that is refused for these is beyond them;
- once that has left the master, it is durable;
- nothing else changes it, but waiting: by one step at a time, within its class, and not before its
  time;
- nothing passes a queue before what goes first there, is as large, and is under the same limits;
- what is interrupted is so for one of the highest class of its own queue, where that interrupts: it
  is batch, of a lower class, and no driver, and no application is interrupted more than twice.

What is interrupted is checked as other preemptions for queues are, too (``hrm.sim.oracle.queues``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_reclaim import RECLAIM_REASONS
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ApplicationId, ContainerId, WorkloadClass
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.errors import LimitReached

__all__ = ["PriorityChecks"]

INTERRUPTED = RECLAIM_REASONS[2]
_TWICE = 2
_HIGHEST = 50
_DECLARED = {1: 10, 2: 20, 3: 30, 4: 40, 5: _HIGHEST}
_TOPS = {"normal": 30, "urgent": 49}
_SLACK_S = 1e-6


@dataclass(slots=True)
class _Model:
    """What one application's priority must be. ``rose_s``: when it last rose by waiting, or was
    first seen."""

    tenths: int
    base: int
    rose_s: float
    net: int = 0
    steps: int = 0
    began_s: float = 0.0

    @staticmethod
    def of(app: Application, now: float) -> _Model:
        """Of one that is new, or that an earlier master has known."""
        standing, tenths = app.record.standing, _tenths(app)
        if standing is None:
            return _Model(tenths, tenths, now)
        began_s = standing.period_began_s
        return _Model(tenths, standing.base, now, standing.net, standing.steps, began_s)

    def begin(self, now: float, period_s: float) -> None:
        if not self.steps or not 0 <= now - self.began_s < period_s:
            self.base, self.net, self.steps, self.began_s = self.tenths, 0, 0, now

    def request(self, steps: int) -> None:
        self.net += steps
        self.steps += abs(steps)
        self.tenths = _moved(self.base, self.net)

    def age(self, now: float) -> None:
        self.tenths += 1
        self.base, self.net, self.rose_s = self.tenths, 0, now


@dataclass(slots=True)
class _Interrupted:
    """``started``: of its containers that had started when it was last interrupted; ``is_open``:
    since then none has."""

    times: int = 0
    is_open: bool = False
    started: set[ContainerId] = field(default_factory=set)


_Waiting = dict[ApplicationId, tuple[tuple[object, ...], tuple[ContainerId, ...]]]


class PriorityChecks:
    """``interrupted``: how many containers were. ``_users``: steps of each user, and since when
    they count. ``_kept``: of each application that queues kept something of at the latest event,
    where it stood and what that was; ``_waited``: all
    applications that queues kept something of. ``_confirmed``: of each application, the steps by
    all requests so far as each call was confirmed, in order."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._models: dict[ApplicationId, _Model] = {}
        self._users: dict[str, tuple[float, int]] = {}
        self._interrupted: dict[ApplicationId, _Interrupted] = {}
        self._ordered: set[ContainerId] = set()
        self._kept: _Waiting = {}
        self._confirmed: dict[ApplicationId, list[tuple[int, int]]] = {}
        self._waited: set[ApplicationId] = set()
        self.interrupted = 0

    def master_began(self) -> None:
        self._models.clear()
        self._users.clear()
        self._interrupted.clear()
        self._ordered.clear()
        self._kept.clear()
        self._waited.clear()
        self._confirmed.clear()

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Sequence[c.MasterCommand]
    ) -> None:
        specs = core.queues.tree.specs
        if not any(spec.order == "classes" for spec in specs.values()):
            self._models.clear()
            self._kept.clear()
            return
        if isinstance(event, e.PriorityRequested):
            self._requested(core, event, commands)
        self._priorities(core, event)
        self._waited = {x for x, app in core.master_state.live.items() if _waits(app)}
        self._interruptions(core, commands)
        kept, self._kept = self._kept, _kept(core, specs)
        if not isinstance(event, e.QueuesChanged):
            self._passed(core, kept)

    def left(self, command: c.MasterCommand, durable: Mapping[ApplicationId, object]) -> None:
        """What has been confirmed to a caller is on the disk, or what has followed since is."""
        if not isinstance(command, c.Reply) or not self._confirmed:
            return
        for name, calls in self._confirmed.items():
            numbers = [number for number, _ in calls]
            record = durable.get(name)
            if command.call_id not in numbers or not isinstance(record, ApplicationRecord):
                continue
            since = {steps for _, steps in calls[numbers.index(command.call_id) :]}
            if record.standing is None or record.standing.requested not in since:
                self._violated(f"the priority of {name} was confirmed before it was durable")

    def _requested(
        self, core: MasterCore, event: e.PriorityRequested, commands: Iterable[c.MasterCommand]
    ) -> None:
        app = core.master_state.applications.get(event.application_id)
        answer = next((x for x in commands if isinstance(x, c.Reply | c.Refuse)), None)
        model = self._models.get(event.application_id)
        if app is None or answer is None or model is None:
            return
        bounds, user = core.master_state.bounds, app.record.user
        model.begin(event.now, bounds.priority_period_s)
        since_s, taken = self._users.get(user, (event.now, 0))
        if not 0 <= event.now - since_s < bounds.priority_period_s:
            since_s, taken = event.now, 0
        many = abs(event.steps)
        is_beyond = (
            model.steps + many > bounds.priority_steps
            or taken + many > bounds.priority_steps_per_user
        )
        if isinstance(answer, c.Refuse):
            if isinstance(answer.error, LimitReached) and not is_beyond:
                self._violated(f"{many} steps of {app.application_id} are refused as too many")
            return
        why = _why_not(core, app, model)
        if why or is_beyond:
            self._violated(f"{app.application_id} is raised, and {why or 'too often'}")
        self._users[user] = since_s, taken + many
        model.request(event.steps)
        so_far = app.record.standing.requested if app.record.standing is not None else 0
        calls = self._confirmed.setdefault(app.application_id, [])
        calls.append((event.call_id, so_far))

    def _priorities(self, core: MasterCore, event: e.MasterEvent) -> None:
        """Each has the priority that follows from what was confirmed, and from waiting."""
        models, self._models = self._models, {}
        bounds = core.master_state.bounds
        for name, app in core.master_state.live.items():
            tenths = _tenths(app)
            model = models.get(name) or _Model.of(app, event.now)
            self._models[name] = model
            if tenths == model.tenths:
                continue
            why = _may_not_rise(model, tenths, event, bounds)
            if not why and name not in self._waited:
                why = "nothing of it waits in its queue"
            if why:
                self._violated(f"{name} has the priority {tenths}, not {model.tenths}: {why}")
            model.age(event.now)
            model.tenths = model.base = tenths

    def _interruptions(self, core: MasterCore, commands: Iterable[c.MasterCommand]) -> None:
        state = core.master_state
        for name, found in self._interrupted.items():
            app = state.applications.get(name)
            if app is not None and found.is_open and _started(app) - found.started:
                found.is_open = False
        for command in commands:
            match command:
                case c.SendToNode(message=c.StopContainer(reason=reason) as stop) if (
                    reason.startswith(INTERRUPTED) and stop.container_id not in self._ordered
                ):
                    self._ordered.add(stop.container_id)
                    app = _owner(core, stop.container_id)
                    if app is not None:
                        self._interrupt(core, app, ApplicationId(reason.rpartition(" ")[2]))

    def _interrupt(self, core: MasterCore, app: Application, by: ApplicationId) -> None:
        self.interrupted += 1
        other = core.master_state.applications.get(by)
        spec = core.queues.tree.specs[QueueName(app.record.queue)]
        if other is None or _tenths(other) != _HIGHEST or other.record.queue != app.record.queue:
            self._violated(f"{app.application_id} is interrupted for {by}, which may not do that")
        if not spec.interrupts or spec.order != "classes":
            self._violated(f"{app.application_id} is interrupted in {spec.name}, which forbids it")
        what = {
            "is a driver": app.is_driver,
            "is a stream": app.record.workload_class is WorkloadClass.STREAM,
            "is of the highest class": _tenths(app) == _HIGHEST,
        }
        for why in [x for x, it_is in what.items() if it_is]:
            self._violated(f"{app.application_id} is interrupted, and {why}")
        found = self._interrupted.setdefault(app.application_id, _Interrupted())
        if not found.is_open:
            found.times += 1
            if found.times > _TWICE:
                self._violated(f"{app.application_id} is interrupted for the {found.times}rd time")
        found.is_open, found.started = True, _started(app)

    def _passed(self, core: MasterCore, before: _Waiting) -> None:
        """Does all that has passed since go after what waits there still, and is like it?"""
        state = core.master_state
        for name, (place, containers) in before.items():
            app = state.live.get(name)
            passed = [] if app is None else [x for x in containers if _has_passed(app, x)]
            if app is None or not passed:
                continue
            size = app.containers[passed[0]].request.resources
            for other_name, (other_place, same) in before.items():
                now = self._kept.get(other_name)
                other = state.live.get(other_name)
                if now is None or other is None or other.record.queue != app.record.queue:
                    continue
                if now != (other_place, same) or not other_place < place:
                    continue
                first = other.containers[same[0]].request
                if first.resources == size and other_name in state.queues.active:
                    self._violated(
                        f"{passed[0]} passes {app.record.queue}, where {other_name} goes first"
                    )


def _why_not(core: MasterCore, app: Application, model: _Model) -> str:
    spec = core.queues.tree.specs.get(QueueName(app.record.queue))
    if spec is None or spec.order != "classes":
        return f"{app.record.queue} is in another order"
    if app.life.state.ended:
        return "has ended"
    return "is of the highest class" if model.tenths == _HIGHEST else ""


def _may_not_rise(model: _Model, tenths: int, event: e.MasterEvent, bounds: Bounds) -> str:
    """Why waiting has not brought it there; empty if it may have."""
    if not isinstance(event, e.Ticked) or tenths != model.tenths + 1:
        return "nobody asked for that"
    top = _TOPS["normal" if model.tenths <= _TOPS["normal"] else "urgent"]
    if tenths > top:
        return "waiting does not change a class"
    if (
        not bounds.priority_ageing_s
        or event.now - model.rose_s < bounds.priority_ageing_s - _SLACK_S
    ):
        return "it has not waited for so long"
    return ""


def _kept(core: MasterCore, specs: Mapping[QueueName, QueueSpec]) -> _Waiting:
    """What is like others that wait in the same queue, but for where it stands: no gangs, nothing
    that must be on certain nodes, nothing under limits of users."""
    found: _Waiting = {}
    for name, app in core.master_state.live.items():
        spec = specs.get(QueueName(app.record.queue))
        if spec is None or spec.order != "classes" or app.is_driver or app.requires is not None:
            continue
        if spec.user_limit_factor is not None or spec.minimum_user_limit < 1 or app.record.gang_min:
            continue
        if app.record.workload_class is WorkloadClass.STREAM:
            continue
        kept = [x for x in app.containers.values() if x.withheld]
        if kept and all(map(_is_plain, app.containers.values())):
            found[name] = _place(app), tuple(x.container_id for x in kept)
    return found


def _is_plain(container: Container) -> bool:
    asked = container.request
    return not (asked.gpus or asked.hosts or asked.yields or asked.yields_on_loan or asked.place)


def _waits(app: Application) -> bool:
    return any(x.withheld for x in app.containers.values())


def _has_passed(app: Application, container_id: ContainerId) -> bool:
    container = app.containers.get(container_id)
    return container is not None and not container.withheld


def _place(app: Application) -> tuple[object, ...]:
    """Where it stands among batch: the least goes first."""
    record, tenths = app.record, _tenths(app)
    standing = record.standing
    if tenths == _HIGHEST:
        rank, since_s = 0, record.submitted_at_s
    elif standing is not None and standing.owed:
        rank, since_s = 1, standing.interrupted_at_s
    else:
        rank, since_s = (2 if tenths > _TOPS["normal"] else 3), record.submitted_at_s
    return rank, -tenths, since_s, app.application_id


def _started(app: Application) -> set[ContainerId]:
    return {x.container_id for x in (*app.containers.values(), *app.ended) if x.started_at_s}


def _owner(core: MasterCore, container_id: ContainerId) -> Application | None:
    apps = core.master_state.applications.values()
    return next((x for x in apps if container_id in x.containers), None)


def _tenths(app: Application) -> int:
    record = app.record
    if record.standing is None:
        return _DECLARED[min(5, max(1, record.priority))]
    return record.standing.tenths


def _moved(tenths: int, net: int) -> int:
    """Where so many steps lead, with one conversion at most."""
    after = tenths + net
    if tenths == _HIGHEST:
        return tenths
    if tenths <= _TOPS["normal"]:
        return 40 if after > _TOPS["normal"] else max(10, after)
    return 25 if after < 35 else min(_TOPS["urgent"], after)
