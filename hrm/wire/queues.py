"""Calls about queues of applications as events, and what is shown of queues.

What may be stated of a queue is checked by ``hrm.core.tenancy.queue_spec``, from the same fields as
those of a table of ``hrm.toml``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.observed_fairness import FairnessSummary, LeafObservation
from hrm.core.tenancy.queue_spec import (
    GOVERNED,
    ROOT,
    QueueName,
    QueueSpec,
    Quota,
    quota_text,
    spec_fields,
    spec_from,
)
from hrm.core.tenancy.queue_status import QueueStatus, QueueWait, Supposed, Supposition
from hrm.core.tenancy.queue_tree import Governed, QueueTree
from hrm.core.vocabulary.priority_class import PriorityClass, class_of
from hrm.errors import InvalidRequest, NotFound
from hrm.text import shown
from hrm.v1 import queues_pb2 as pb
from hrm.wire import codec

__all__ = [
    "from_change",
    "from_fairness",
    "from_spec",
    "from_status",
    "from_supposed",
    "is_below",
    "queue_named",
    "to_change",
    "to_supposition",
]

_NUMBERS = ("weight", "driver_share", "minimum_user_limit", "user_limit_factor")
_PLAIN = (*_NUMBERS, "max_running", "order", "preemptible", "interrupts", "maximum_class")
_NAMES = ("submitters", "administrators")
_QUOTAS = ("guaranteed", "maximum")
_SHOWN_MAX = 80
_WAIT_USER_MAX = 256
_EXECUTORS_MAX = 10_000


def queue_named(tree: QueueTree, name: str) -> QueueName:
    """The queue of that name, a leaf or not, which may be given without ``root``, or as the last
    part alone where one queue has that.

    Raises:
        NotFound: there is none; with those of a similar name.
    """
    for whole in (name, f"{ROOT}.{name}"):
        if whole in tree.specs:
            return QueueName(whole)
    ends = [x for x in tree.specs if x.endswith(f".{name}")] if "." not in name else []
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise NotFound(f"several queues are called {name}; write one whole: {', '.join(ends[:5])}")
    near = tree.near(name, tree.specs)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise NotFound(
        f"there is no queue {shown(name, _SHOWN_MAX)}; {meant}hrm queues lists those that there are"
    )


def is_below(name: str, above: QueueName) -> bool:
    """Is it that queue, or one below it?"""
    return name == above or name.startswith(f"{above}.")


def to_change(
    request: pb.ChangeQueuesRequest, tree: QueueTree, call_id: int, now: float
) -> e.QueuesChanged:
    """A call of ``ChangeQueues``, for the queues that there are.

    Raises:
        InvalidRequest: a field is malformed, or nothing is asked for.
        NotFound: what is to be changed or removed is not there.
    """
    if not request.queues and not request.removed:
        raise InvalidRequest("name a queue to create, to change or to remove")
    if request.unset and (request.create or len(request.queues) != 1):
        raise InvalidRequest("unset is for the change of one queue")
    make = _created if request.create else _changed
    return e.QueuesChanged(
        now=now,
        call_id=call_id,
        stated=tuple(make(each, tree, request.unset) for each in request.queues),
        removed=tuple(queue_named(tree, name) for name in request.removed),
        create=request.create,
        dry_run=request.dry_run,
    )


def _created(message: pb.QueueStated, tree: QueueTree, _unset: Iterable[str]) -> QueueSpec:
    return _spec(message.name, _fields(message))


def _changed(message: pb.QueueStated, tree: QueueTree, unset: Iterable[str]) -> QueueSpec:
    """What is stated of the queue, where the message does not state another value. An amount is one
    value, of whatever resources it is."""
    try:
        name = queue_named(tree, message.name)
    except NotFound as error:
        raise NotFound(f"{error.message}; hrm queue create makes one") from None
    fields = spec_fields(tree.specs[name])
    for key in unset:
        if key not in pb.QueueStated.DESCRIPTOR.fields_by_name or key == "name":
            raise InvalidRequest(
                f"{shown(key, _SHOWN_MAX)} is nothing that is stated of a queue; there are "
                f"{', '.join((*_QUOTAS, *_PLAIN, *_NAMES))}"
            )
        fields.pop(key, None)
    return _spec(name, {**fields, **_fields(message)})


def _spec(name: str, fields: dict[str, object]) -> QueueSpec:
    try:
        return spec_from(name, fields)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _fields(message: pb.QueueStated) -> dict[str, object]:
    """What the message states, as ``spec_from`` reads it."""
    found: dict[str, object] = {}
    for key in (*_QUOTAS, *_PLAIN, *_NAMES):
        if not message.HasField(key):
            continue
        value = getattr(message, key)
        if key in _QUOTAS:
            value = {name: amount for name in GOVERNED if (amount := getattr(value, name))}
        elif key in _NAMES:
            value = list(value.names)
        found[key] = value
    return found


def from_spec(spec: QueueSpec) -> pb.QueueStated:
    """What is stated of a queue, and not as it is by default."""
    message = pb.QueueStated(name=spec.name)
    plain = QueueSpec(name=spec.name)
    for key in (*_QUOTAS, *_PLAIN, *_NAMES):
        value = getattr(spec, key)
        if value == getattr(plain, key):
            continue
        if key in _QUOTAS:
            getattr(message, key).CopyFrom(_from_quota(value))
        elif key in _NAMES:
            getattr(message, key).SetInParent()
            getattr(message, key).names.extend(value)
        elif value is not None:
            setattr(message, key, value.value if isinstance(value, PriorityClass) else value)
    return message


def _from_quota(quota: Quota) -> pb.QueueQuota:
    text = quota_text(quota)
    each = dict.fromkeys(GOVERNED, text) if isinstance(text, str) else text
    return pb.QueueQuota(**{name: str(amount) for name, amount in each.items()})


def from_status(status: QueueStatus, *, in_file: bool) -> pb.Queue:
    return pb.Queue(
        name=status.spec.name,
        stated=from_spec(status.spec),
        in_file=in_file,
        is_leaf=status.is_leaf,
        guaranteed=_from_amounts(status.guaranteed),
        maximum=_from_amounts(status.maximum),
        share=_from_amounts(status.share),
        used=_from_amounts(status.used),
        borrowed=_from_amounts(status.borrowed),
        pending=_from_amounts(status.pending),
        running=status.running,
        applications=status.applications,
        past_use=status.past_use,
        waiting=[_from_wait(wait) for wait in status.waiting],
        waiting_total=status.waiting_total,
        observed=None if status.observed is None else _from_observed(status.observed),
        longest_wait_s=status.longest_wait_s,
        platforms=[
            pb.QueuePlatform(
                platform=part.platform,
                cores=part.cores,
                held_cores=part.held,
                affinity=part.affinity,
            )
            for part in status.platforms
        ],
        classes=[
            pb.QueueClass(
                priority_class=codec.PRIORITY_CLASS[count.priority_class],
                applications=count.applications,
                waiting=count.waiting,
            )
            for count in status.classes
        ],
    )


def _from_observed(observed: LeafObservation) -> pb.QueueObserved:
    waits = observed.waits
    return pb.QueueObserved(
        takes_part=observed.takes_part,
        throughput=observed.throughput,
        entitled_cores=observed.entitled,
        held_cores=observed.held,
        speed=observed.speed,
        busy=observed.busy,
        wait_p50_s=None if waits is None else waits.p50_s,
        wait_p90_s=None if waits is None else waits.p90_s,
        wait_p99_s=None if waits is None else waits.p99_s,
        starts=0.0 if waits is None else waits.starts,
    )


def from_fairness(summary: FairnessSummary) -> pb.QueueFairness:
    return pb.QueueFairness(
        queues=summary.queues,
        with_speeds=summary.with_speeds,
        fairness=summary.fairness,
        jain=summary.jain,
        spread=summary.spread,
        half_life_s=summary.half_life_s,
    )


def _from_amounts(amounts: Governed) -> pb.QueueAmounts:
    cores, memory_mib, gpu_memory_mib = amounts
    return pb.QueueAmounts(cores=cores, memory_mib=memory_mib, gpu_memory_mib=gpu_memory_mib)


def _from_wait(wait: QueueWait) -> pb.QueueWait:
    message = pb.QueueWait(
        application_id=wait.application_id,
        user=wait.user[:_WAIT_USER_MAX],
        position=wait.position,
        containers=wait.containers,
        reason=wait.reason.value,
        why=wait.why,
    )
    if wait.tenths is not None:
        message.priority_class = codec.PRIORITY_CLASS[class_of(wait.tenths)]
        message.priority_tenths = wait.tenths
    return message


def from_change(
    change: e.QueuesChanged, cost: c.QueueChangeCost, in_file: Collection[QueueName]
) -> pb.ChangeQueuesResponse:
    """``in_file``: the queues that the master's ``hrm.toml`` states."""
    named = (*(spec.name for spec in change.stated), *change.removed)
    return pb.ChangeQueuesResponse(
        preempted_containers=cost.preempted,
        held_back_applications=cost.held_back,
        in_file=[name for name in named if name in in_file],
        queues=[from_spec(spec) for spec in change.stated],
    )


def to_supposition(request: pb.WhatIfRequest) -> Supposition:
    """A call of ``WhatIf``.

    Raises:
        InvalidRequest: a field is malformed or out of range.
    """
    return Supposition(
        queue=request.queue,
        executors=codec.to_whole(request.executors, "executors", 1, _EXECUTORS_MAX),
        resources=codec.to_resources(request.resources, "resources"),
        user=request.user,
    )


def from_supposed(found: Supposed) -> pb.WhatIfResponse:
    return pb.WhatIfResponse(
        at_once=found.at_once,
        by_preemption=found.by_preemption,
        later=found.later,
        why=found.why,
        preempted=[
            pb.PreemptedContainer(container_id=container, application_id=application)
            for container, application in found.preempted
        ],
        grace_s=found.grace_s,
        later_s=found.later_s,
    )
