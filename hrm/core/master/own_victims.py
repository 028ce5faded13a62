"""Which containers of its own queue may end for one that goes before them.

Streams go before batch, so one of a stream takes the place of any batch of its leaf. One of the
highest class, where the leaf ``interrupts``, takes that of an application of a lower class: of the
one that started last, which loses least. Neither takes more, with all that goes before others as it
does, than the share or the guarantee of their queue.

Source: RLPTO (Lu et al., TPDS 2023), section 3.1, where a whole application is interrupted; here it
loses as many containers as are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from hrm.core.master.entities import Application, Container
from hrm.core.master.priorities import is_highest
from hrm.core.master.queue_usage import QueueUsage
from hrm.core.master.state import MasterState
from hrm.core.tenancy.accounts import NOTHING, QueueAccount, fits_into, more
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.model import ApplicationId, ContainerId, WorkloadClass

__all__ = ["IsVictim", "OwnVictims", "interrupts"]

IsVictim: TypeAlias = Callable[[Container, QueueAccount], bool]
"""May this container, of this leaf, end or be returned for the one in question?"""
_TRIED_MAX = 8
"""Applications of a leaf, the latest to start first, of which it is tried to interrupt one."""


def interrupts(account: QueueAccount, app: Application) -> bool:
    """May it have containers of others of its leaf preempted, for it is of the highest class? A
    stream may whatever its class is, and interrupts none."""
    spec = account.spec
    return spec.interrupts and spec.has_classes and is_highest(app) and not _is_stream(app)


class OwnVictims:
    """Looks them up, in the accounts of this usage; changes nothing."""

    def __init__(self, master_state: MasterState, usage: QueueUsage) -> None:
        assert usage.accounts is not None, "something is governed"
        self._master_state = master_state
        self._usage = usage
        self._accounts = usage.accounts

    def for_stream(self, account: QueueAccount, amount: Governed) -> IsVictim | None:
        """Of one container of a stream, of that size; None: nothing may end for it."""
        if not self._may_push_aside(account, amount, _is_stream):
            return None
        return self._is_batch_of(account)

    def interruptible(
        self,
        account: QueueAccount,
        amount: Governed,
        running: Sequence[tuple[Container, QueueAccount]],
        taken: Collection[ContainerId],
    ) -> Iterator[IsVictim]:
        """Of one of the highest class: what is of one application, then of the one that started
        before that, and so on. ``running``: what may end at all, without those ``taken``."""
        if not self._may_push_aside(account, amount, _goes_before_others):
            return
        ids = {
            container.application_id: None
            for container, of in running
            if of is account and container.container_id not in taken
        }
        apps = [self._master_state.applications[x] for x in ids]
        found = [x for x in apps if x.record.stands.may_be_interrupted]
        found.sort(key=_started, reverse=True)
        for app in found[:_TRIED_MAX]:
            yield self._is_batch_of(account, app)

    def _is_batch_of(self, account: QueueAccount, of: Application | None = None) -> IsVictim:
        """Batch of this leaf, of one application where that is given."""

        def is_victim(container: Container, leaf: QueueAccount) -> bool:
            if leaf is not account:
                return False
            app = self._master_state.applications[container.application_id]
            return not _is_stream(app) and (of is None or app is of)

        return is_victim

    def _may_push_aside(
        self, account: QueueAccount, amount: Governed, goes_first: Callable[[Application], bool]
    ) -> bool:
        """Is so much more within its queue's share, with all that goes first?"""
        before = NOTHING
        for application_id, of in self._usage.active.items():
            other = self._master_state.applications.get(application_id)
            if of.name != account.name or other is None:
                continue
            if other.is_driver or goes_first(other):
                before = more(before, self._usage.of_application[application_id])
        share = self._accounts.share(account)
        limit = [max(x, y) for x, y in zip(share, account.limits.guaranteed, strict=True)]
        return fits_into(amount, before, (limit[0], limit[1], limit[2]))


def _started(app: Application) -> tuple[float, float, ApplicationId]:
    record = app.record
    return record.first_running_at_s, record.submitted_at_s, record.application_id


def _is_stream(app: Application) -> bool:
    return app.record.workload_class is WorkloadClass.STREAM


def _goes_before_others(app: Application) -> bool:
    return _is_stream(app) or is_highest(app)
