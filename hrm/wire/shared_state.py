"""Messages between a master and its remote schedulers: protobuf to core types and back.

As in ``hrm.wire.codec``, ``to_*`` checks and may raise ``InvalidRequest``, ``from_*`` never fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hrm.core.messages import events as e
from hrm.core.messages.claims import Claim, Decision, Entry, GpuPart, Outcome, Proposal
from hrm.core.messages.commands import ClaimsSettled, LeaseGranted
from hrm.core.messages.state_changes import (
    SCHEDULER_BOUNDS,
    JobImage,
    StateChanged,
    Subscribed,
    UnitState,
)
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import DIMENSIONS, Vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    Followed,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.errors import InvalidRequest
from hrm.text import shortened
from hrm.v1 import scheduler_pb2 as pb
from hrm.wire import codec, node_stream, requirements

__all__ = [
    "ChangeEncoder",
    "from_lease",
    "from_lease_request",
    "from_lease_return",
    "from_outcomes",
    "from_proposal",
    "subscribed",
    "subscription",
    "to_change",
    "to_claims",
    "to_lease",
    "to_lease_request",
    "to_lease_return",
    "to_proposal",
    "to_settled",
    "to_subscribed",
]

_DECISION = {
    Decision.RUN: pb.CLAIM_DECISION_RUN,
    Decision.QUEUE: pb.CLAIM_DECISION_QUEUE,
    Decision.ABORT: pb.CLAIM_DECISION_ABORT,
}
_TO_DECISION = {number: decision for decision, number in _DECISION.items()}
_NOTHING: Vector = (0, 0, 0, 0)


class ChangeEncoder:
    """Changes of the state as bytes of a ``SchedulerMessage``. The state of a unit is encoded once,
    to however many schedulers it goes.

    The bytes of protobuf messages, joined, are those of the messages merged: repeated fields follow
    one another. So a change is a message without units, followed by a message for each unit.

    Invariant: ``_units`` has each unit's state that was encoded last, with its bytes, until a
    change with the end of the unit is encoded, or ``forget``. ``encoded``: how many states were.
    """

    def __init__(self) -> None:
        self.encoded = 0
        self._units: dict[ResourceUnitId, tuple[UnitState, bytes]] = {}

    def encode(self, value: StateChanged) -> bytes:
        self.prepare(value.units)
        rest = pb.StateChange(
            sequence=value.sequence,
            now_s=value.now,
            gone=value.gone,
            jobs=[_from_job(job) for job in value.jobs],
            room=value.has_freed,
            properties=[
                pb.UnitProperties(
                    resource_unit_id=unit_id, properties=requirements.from_properties(properties)
                )
                for unit_id, properties in value.properties
            ],
        )
        units = [self._units[state.unit.unit_id][1] for state in value.units]
        for unit_id in value.gone:
            self._units.pop(unit_id, None)
        return b"".join((pb.SchedulerMessage(change=rest).SerializeToString(), *units))

    def prepare(self, states: Iterable[UnitState]) -> None:
        """Encode those that are not as they were encoded last."""
        for state in states:
            known = self._units.get(state.unit.unit_id)
            if known is None or known[0] is not state:
                message = pb.SchedulerMessage()
                message.change.units.append(_from_unit(state))
                self._units[state.unit.unit_id] = (state, message.SerializeToString())
                self.encoded += 1

    def kept(self) -> frozenset[ResourceUnitId]:
        """The units whose bytes are kept."""
        return frozenset(self._units)

    def forget(self) -> None:
        """Release what is kept: a stream has ended, which may have encoded a unit that is gone
        after the others had sent its end."""
        self._units.clear()


def subscription(scheduler: str, followed: Followed) -> pb.SubscribeRequest:
    return pb.SubscribeRequest(
        name=scheduler, followed_epoch=followed.epoch, followed_epoch_id=followed.epoch_id
    )


def subscribed(value: Subscribed) -> pb.SchedulerMessage:
    """The first message of a master."""
    hello = pb.Subscribed(
        session=value.session,
        epoch=value.followed.epoch,
        epoch_id=value.followed.epoch_id,
        **{name: getattr(value.bounds, name) for name in SCHEDULER_BOUNDS},
    )
    return pb.SchedulerMessage(subscribed=hello)


def to_lease_request(message: pb.AcquireLeaseRequest, call_id: int, now: float) -> e.LeaseRequested:
    return e.LeaseRequested(
        now=now,
        call_id=call_id,
        scheduler=codec.to_name(message.scheduler, "scheduler"),
        session=message.session,
        application_id=ApplicationId(codec.to_name(message.application_id, "application_id")),
    )


def to_lease_return(message: pb.ReleaseLeaseRequest, call_id: int, now: float) -> e.LeaseReturned:
    return e.LeaseReturned(
        now=now,
        call_id=call_id,
        scheduler=message.scheduler,
        session=message.session,
        token=message.token,
    )


def to_claims(message: pb.ProposeRequest, call_id: int, now: float) -> e.ClaimsProposed:
    return e.ClaimsProposed(
        now=now,
        proposal=to_proposal(message),
        call_id=call_id,
        session=message.session,
        problem=codec.to_text(message.problem, "problem"),
        sequence=message.sequence,
    )


def to_subscribed(message: pb.Subscribed) -> Subscribed:
    return Subscribed(
        session=message.session,
        followed=Followed(message.epoch, message.epoch_id),
        bounds=Bounds(**{name: getattr(message, name) for name in SCHEDULER_BOUNDS}),
    )


def to_change(message: pb.StateChange) -> StateChanged:
    return StateChanged(
        sequence=message.sequence,
        now=message.now_s,
        units=tuple(_to_unit(unit) for unit in message.units),
        gone=tuple(ResourceUnitId(unit_id) for unit_id in message.gone),
        jobs=tuple(_to_job(job) for job in message.jobs),
        has_freed=message.room,
        properties=tuple(
            (ResourceUnitId(x.resource_unit_id), requirements.to_properties(x.properties))
            for x in message.properties
        ),
    )


def from_proposal(value: e.ClaimsProposed) -> pb.ProposeRequest:
    proposal = value.proposal
    return pb.ProposeRequest(
        scheduler=proposal.scheduler,
        session=value.session,
        application_id=proposal.application_id,
        claims=[
            pb.UnitClaim(container_id=x.entry.container_id, resource_unit_id=x.unit_id)
            for x in proposal.claims
        ],
        lease_token=proposal.lease_token,
        problem=shortened(value.problem, codec.TEXT_LENGTH_MAX),
        sequence=value.sequence,
    )


def to_proposal(message: pb.ProposeRequest) -> Proposal:
    """The claim and its application; the master fills in class and demands."""
    claims = tuple(
        Claim(
            Entry(
                ContainerId(codec.to_name(x.container_id, "container_id")),
                WorkloadClass.BATCH,
                _NOTHING,
                0.0,
            ),
            ResourceUnitId(codec.to_text(x.resource_unit_id, "resource_unit_id")),
            0,
        )
        for x in message.claims
    )
    return Proposal(
        codec.to_name(message.scheduler, "scheduler"),
        ApplicationId(codec.to_name(message.application_id, "application_id")),
        WorkloadClass.BATCH,
        claims,
        message.lease_token,
    )


def from_outcomes(value: ClaimsSettled) -> pb.ProposeResponse:
    return pb.ProposeResponse(
        outcomes=[
            pb.ClaimOutcome(
                container_id=x.claim.entry.container_id,
                resource_unit_id=x.claim.unit_id,
                decision=_DECISION[x.decision],
                reason=x.reason,
            )
            for x in value.outcomes
        ],
        sequence=value.sequence,
    )


def to_settled(message: pb.ProposeResponse, claims: Iterable[Claim]) -> ClaimsSettled:
    """The outcomes of ``claims``; those that the master no longer had are missing."""
    claimed = {claim.entry.container_id: claim for claim in claims}
    outcomes = tuple(
        Outcome(claimed[ContainerId(x.container_id)], _TO_DECISION[x.decision], x.reason)
        for x in message.outcomes
        if x.container_id in claimed and x.decision in _TO_DECISION
    )
    return ClaimsSettled(outcomes=outcomes, sequence=message.sequence)


def from_lease_request(value: e.LeaseRequested) -> pb.AcquireLeaseRequest:
    return pb.AcquireLeaseRequest(
        scheduler=value.scheduler, session=value.session, application_id=value.application_id
    )


def from_lease_return(value: e.LeaseReturned) -> pb.ReleaseLeaseRequest:
    return pb.ReleaseLeaseRequest(
        scheduler=value.scheduler, session=value.session, token=value.token
    )


def from_lease(value: LeaseGranted) -> pb.AcquireLeaseResponse:
    return pb.AcquireLeaseResponse(
        token=value.token,
        expires_in_s=value.expires_in_s,
        sequence=value.sequence,
        some_units=value.units is not None,
        resource_unit_ids=sorted(value.units or ()),
    )


def to_lease(message: pb.AcquireLeaseResponse) -> LeaseGranted:
    units = frozenset(ResourceUnitId(unit_id) for unit_id in message.resource_unit_ids)
    return LeaseGranted(
        token=message.token,
        expires_in_s=message.expires_in_s,
        sequence=message.sequence,
        units=units if message.some_units else None,
    )


def _from_unit(value: UnitState) -> pb.UnitImage:
    return pb.UnitImage(
        unit=node_stream.from_unit(value.unit),
        node=value.node,
        open=value.is_open,
        waiting_limit=value.waiting_limit,
        running=[_from_entry(x) for x in value.running],
        stream_waiting=[_from_entry(x) for x in value.stream_waiting],
        batch_waiting=[_from_entry(x) for x in value.batch_waiting],
        yielding_waiting=[_from_entry(x) for x in value.yielding_waiting],
    )


def _to_unit(message: pb.UnitImage) -> UnitState:
    return UnitState(
        unit=node_stream.to_unit(message.unit),
        node=NodeName(message.node),
        is_open=message.open,
        waiting_limit=message.waiting_limit,
        running=tuple(_to_entry(x) for x in message.running),
        stream_waiting=tuple(_to_entry(x) for x in message.stream_waiting),
        batch_waiting=tuple(_to_entry(x) for x in message.batch_waiting),
        yielding_waiting=tuple(_to_entry(x) for x in message.yielding_waiting),
    )


def _from_entry(value: Entry) -> pb.QueueEntry:
    return pb.QueueEntry(
        container_id=value.container_id,
        workload_class=codec.WORKLOAD_CLASS[value.workload_class],
        demand=value.demand,
        duration_s=value.duration_s,
        started_at_s=value.started_at_s,
        passed=value.passed,
        yields=value.yields,
    )


def _to_entry(message: pb.QueueEntry) -> Entry:
    return Entry(
        ContainerId(message.container_id),
        codec.to_class(message.workload_class, "workload_class") or WorkloadClass.BATCH,
        _to_demand(message.demand),
        message.duration_s,
        message.started_at_s,
        message.passed,
        yields=message.yields,
    )


def _to_demand(numbers: Sequence[int]) -> Vector:
    if len(numbers) != len(DIMENSIONS):
        raise InvalidRequest(f"a demand has {len(numbers)} dimensions; this HRM has {DIMENSIONS}")
    return (numbers[0], numbers[1], numbers[2], numbers[3])


def _from_job(value: JobImage) -> pb.JobImage:
    return pb.JobImage(
        application_id=value.application_id,
        workload_class=codec.WORKLOAD_CLASS[value.workload_class],
        gang=value.gang,
        pending=[
            pb.PendingContainer(
                container_id=container_id,
                executor_id=request.executor_id,
                resource_profile_id=request.resource_profile_id,
                resources=codec.from_resources(request.resources),
                expected_duration_s=request.expected_duration_s,
                requested_at_s=at_s,
                near=request.near,
                locality_wait_s=request.locality_wait_s,
                platform=request.platform,
                platform_until_s=request.platform_until_s,
                yields=request.yields,
            )
            for container_id, request, at_s in value.pending
        ],
        avoid=value.avoid,
        gpu_parts=[
            pb.GpuPart(starts=part.starts, queues=part.queues, demand=demand)
            for demand, part in value.gpu_parts.items()
        ],
        requires=requirements.from_requirement(value.requires),
    )


def _to_job(message: pb.JobImage) -> JobImage:
    return JobImage(
        application_id=ApplicationId(message.application_id),
        workload_class=codec.to_class(message.workload_class, "workload_class")
        or WorkloadClass.BATCH,
        gang=message.gang,
        pending=tuple(
            (
                ContainerId(x.container_id),
                ContainerRequest(
                    executor_id=x.executor_id,
                    resource_profile_id=x.resource_profile_id,
                    resources=codec.to_resources(x.resources, "resources"),
                    expected_duration_s=x.expected_duration_s,
                    near=tuple(NodeName(node) for node in x.near),
                    locality_wait_s=x.locality_wait_s,
                    platform=x.platform,
                    platform_until_s=x.platform_until_s,
                    yields=x.yields,
                ),
                x.requested_at_s,
            )
            for x in message.pending
        ),
        avoid=tuple(NodeName(x) for x in message.avoid),
        gpu_parts={_to_demand(x.demand): GpuPart(x.starts, x.queues) for x in message.gpu_parts},
        requires=requirements.to_requirement(message.requires),
    )
