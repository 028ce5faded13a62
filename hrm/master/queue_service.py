"""QueueService: queues of applications, shown and changed. Only the core changes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import structlog

from hrm.core.master.core import MasterCore
from hrm.core.master.queue_report import WAITS_MAX, QueueReport, queue_statuses
from hrm.core.master.queue_whatif import what_if
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.affinities import ApplicationKind
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_status import QueueStatus
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.identity.caller import changed_nothing
from hrm.master.interpreter import Interpreter
from hrm.master.owners import Owners
from hrm.master.paging import page
from hrm.v1 import queues_pb2 as pb
from hrm.v1 import queues_pb2_grpc
from hrm.wire import codec
from hrm.wire import queues as queue_wire
from hrm.wire.affinities import LearnedKinds

__all__ = ["QueueService", "statuses"]

WAITING_MAX = 10_000
"""Applications that wait, of one queue, in one response."""

log = structlog.get_logger("master")


def statuses(core: MasterCore) -> list[QueueStatus]:
    """Of all queues, as they are now, parents before children."""
    return queue_statuses(core.master_state, core.placement.queues)


class QueueService(queues_pb2_grpc.QueueServiceServicer):
    """``in_file``: the queues that the master's ``hrm.toml`` states."""

    def __init__(self, master: Interpreter, owners: Owners, in_file: Collection[QueueName]) -> None:
        self._master = master
        self._owners = owners
        self._in_file = in_file

    @property
    def _tree(self) -> QueueTree:
        return self._master.core.queues.tree

    async def ListQueues(  # noqa: N802
        self, request: pb.ListQueuesRequest, context: Any
    ) -> pb.ListQueuesResponse:
        limit = codec.to_whole(request.waiting_limit, "waiting_limit", 0, WAITING_MAX)
        waits = min(limit, WAITS_MAX)
        names = list(self._tree.specs)
        if request.name:
            name = queue_wire.queue_named(self._tree, request.name)
            names = [x for x in names if queue_wire.is_below(x, name)]
        core = self._master.core
        report = QueueReport(core.master_state, core.placement.queues)
        queues, token = page(
            names,
            lambda name: tuple(name.split(".")),
            lambda name: self._message(report.status(name, waits)),
            request,
        )
        fairness = queue_wire.from_fairness(report.fairness())
        return pb.ListQueuesResponse(queues=queues, next_page_token=token, fairness=fairness)

    async def ChangeQueues(  # noqa: N802
        self, request: pb.ChangeQueuesRequest, context: Any
    ) -> pb.ChangeQueuesResponse:
        made: list[e.QueuesChanged] = []

        def change(call_id: int) -> e.QueuesChanged:
            made.append(queue_wire.to_change(request, self._tree, call_id, self._master.now()))
            for name in (*(x.name for x in made[0].stated), *made[0].removed):
                self._owners.check_queue(name)
            return made[0]

        cost = await self._master.call(change)
        assert isinstance(cost, c.QueueChangeCost)
        (changed,) = made
        if changed.dry_run:
            changed_nothing()
        else:
            log.info(
                "queues changed",
                stated=[spec.name for spec in changed.stated], removed=list(changed.removed),
                preempts=len(cost.preempted),
            )  # fmt: skip
        return queue_wire.from_change(changed, cost, self._in_file)

    async def WhatIf(self, request: pb.WhatIfRequest, context: Any) -> pb.WhatIfResponse:  # noqa: N802
        core, now = self._master.core, self._master.now()
        supposed = queue_wire.to_supposition(request)
        found = what_if(core.master_state, core.placement, supposed, now)
        return queue_wire.from_supposed(found)

    async def ListAffinities(  # noqa: N802
        self, request: pb.ListAffinitiesRequest, context: Any
    ) -> pb.ListAffinitiesResponse:
        limit = codec.to_whole(request.co_runners_limit, "co_runners_limit", 0, codec.COUNT_MAX)
        state = self._master.core.master_state
        kinds = state.affinities.kinds()
        if request.queue:
            name = queue_wire.queue_named(self._tree, request.queue)
            kinds = [kind for kind in kinds if queue_wire.is_below(kind.queue, name)]
        learned = LearnedKinds(state.affinities)

        def message(kind: ApplicationKind) -> pb.LearnedKind:
            hidden = not self._owners.sees_times(QueueName(kind.queue))
            return learned.message(kind, limit, hidden=hidden)

        found, token = page(kinds, tuple, message, request)
        platforms = sorted({node.platform for node in state.nodes.values()})
        return pb.ListAffinitiesResponse(kinds=found, next_page_token=token, platforms=platforms)

    def _message(self, status: QueueStatus) -> pb.Queue:
        return queue_wire.from_status(status, in_file=status.spec.name in self._in_file)
