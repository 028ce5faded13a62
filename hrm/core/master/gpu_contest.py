"""What each of several applications may have of the GPUs that they compete for.

A unit serves containers with as many GPUs as it has, and no others. So GPUs are of several *kinds*,
by how many a unit has, and one application's gain of a kind is no other's loss of another: each
kind is shared out by itself, among those that want some of it.

An application may request executors of several sizes at once. Like ones are a *lot*. Whether one of
a lot could start is counted for it alone, since cores, memory or one size of device memory may be
what it lacks; what all lots of an application hold of a kind counts together, in device memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hrm.core.master.entities import Container
from hrm.core.master.gpu_holds import HeldCapacity
from hrm.core.master.max_min import Lot, fair_lots
from hrm.core.messages.claims import GpuPart
from hrm.core.scheduling.jobs import Job
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import ApplicationId

__all__ = ["Contest", "GpuLot", "GpuUser"]


class GpuLot(NamedTuple):
    """Containers of one demand: how many are ``placed``, for how many its job wants a place, and
    those that wait at units, in order of request; ``returned``: how many more are expected to be
    requested again."""

    demand: Vector
    placed: int
    pending: int
    queued: list[Container]
    returned: int = 0

    @property
    def size_mib(self) -> int:
        return self.demand[Column.GPU_MEMORY_MIB]

    @property
    def waiting(self) -> int:
        """How many have no place, or one in a queue, those to be requested again among them."""
        return len(self.queued) + self.pending + self.returned


class GpuUser(NamedTuple):
    """One application's use of one kind of GPUs. ``job``: what waits for a place; None: nothing
    does."""

    application_id: ApplicationId
    job: Job | None
    lots: list[GpuLot]

    @property
    def slots(self) -> int:
        """How many GPUs each of its executors uses."""
        return self.lots[0].demand[Column.SLOTS]

    @property
    def declines(self) -> bool:
        """Does its policy leave what it could have? Once may be for an older state."""
        return self.job is not None and self.job.gpus_declined > 1

    @property
    def waits(self) -> bool:
        return any(lot.waiting for lot in self.lots)

    @property
    def placed_mib(self) -> int:
        return sum(lot.placed * lot.size_mib for lot in self.lots)

    @property
    def queued_mib(self) -> int:
        return sum(len(lot.queued) * lot.size_mib for lot in self.lots)


class Contest:
    """One kind of GPUs. ``startable``: of each user's lots, how many of those that wait could start
    now if nothing else did. ``may_queue``: may any wait at a unit?"""

    def __init__(
        self,
        users: Sequence[GpuUser],
        startable: Sequence[Sequence[int]],
        *,
        may_queue: bool = True,
    ) -> None:
        self.users = users
        self.may_queue = may_queue
        self.startable = startable
        self._placed_mib = [user.placed_mib for user in users]
        self.free_mib = max(
            (
                count * lot.size_mib
                for user, counts in zip(users, startable, strict=True)
                for lot, count in zip(user.lots, counts, strict=True)
            ),
            default=0,
        )
        self._held_back: set[ApplicationId] = set()

    def keep(self, holds: Iterable[HeldCapacity], ending_mib: Callable[[GpuUser], int]) -> None:
        """For some users capacity is held: none that has more than one of these starts any.
        ``ending_mib``: what of a user's GPUs is about to be free."""
        placed_mib = {user.application_id: user.placed_mib for user in self.users}
        least_mib = min(placed_mib.get(hold.application_id, 0) for hold in holds)
        self._held_back = {
            user.application_id
            for user in self.users
            if user.placed_mib - ending_mib(user) > least_mib
        }

    def starts(self, *, willing: bool = False) -> list[list[int]]:
        """How many of each user's lots are to start now. ``willing``: none of those that decline
        what they could have."""
        lots = [
            [
                Lot(lot.size_mib, 0 if willing and user.declines else count)
                for lot, count in self._allowed(user, counts)
            ]
            for user, counts in zip(self.users, self.startable, strict=True)
        ]
        return fair_lots(self.free_mib, self._placed_mib, lots)

    def _allowed(self, user: GpuUser, counts: Sequence[int]) -> Iterator[tuple[GpuLot, int]]:
        """How many of each lot may start: none of one that is held back."""
        held_back = user.application_id in self._held_back
        yield from zip(user.lots, [0] * len(counts) if held_back else counts, strict=True)

    def shares_mib(self) -> list[int]:
        """What each would hold if all GPUs were shared out from the start, the containers that are
        placed before those that wait."""
        lots = [
            [
                *(Lot(lot.size_mib, lot.placed) for lot in user.lots),
                *(Lot(lot.size_mib, lot.waiting) for lot in user.lots),
            ]
            for user in self.users
        ]
        counts = fair_lots(self.free_mib + sum(self._placed_mib), [0] * len(lots), lots)
        return [
            sum(count * lot.size_mib for count, lot in zip(some, own, strict=True))
            for some, own in zip(counts, lots, strict=True)
        ]

    def parts(self) -> Iterator[tuple[ApplicationId, dict[Vector, GpuPart]]]:
        """Of each user with a job, what it may have in a round for each demand that waits."""
        starts = self.starts(willing=True)
        left_mib = self.free_mib - sum(map(_mib, self.users, starts))
        columns = zip(self.users, self.startable, starts, self.shares_mib(), strict=True)
        for user, startable, many, share_mib in columns:
            if user.job is None:
                continue
            if user.declines:
                many = [
                    min(count, left_mib // lot.size_mib)
                    for lot, count in self._allowed(user, startable)
                ]
            lacks_mib = share_mib - user.placed_mib - user.queued_mib - _mib(user, many)
            if not self.may_queue:
                lacks_mib = 0
            parts = {}
            for lot, could, count in zip(user.lots, startable, many, strict=True):
                queues = 0 if could else min(lot.pending, max(0, lacks_mib // lot.size_mib))
                lacks_mib -= queues * lot.size_mib
                if lot.pending:
                    parts[lot.demand] = GpuPart(min(count, lot.pending), queues)
            yield user.application_id, parts

    def misplaced(self) -> Iterator[Container]:
        """What is queued beyond a fair share, and what could start elsewhere now and is due to."""
        columns = zip(self.users, self.shares_mib(), self.starts(), strict=True)
        for user, share_mib, starts in columns:
            kept = _within(user, max(0, share_mib - user.placed_mib))
            for lot, allowed, many in zip(user.lots, kept, starts, strict=True):
                due = max(0, many - lot.pending - lot.returned)
                yield from lot.queued[max(0, min(allowed, len(lot.queued) - due)) :]


def _mib(user: GpuUser, counts: Sequence[int]) -> int:
    return sum(count * lot.size_mib for lot, count in zip(user.lots, counts, strict=True))


def _within(user: GpuUser, limit_mib: int) -> list[int]:
    """Of each lot, how many of those that are queued take no more than ``limit_mib`` with those
    requested before them."""
    kept = [0] * len(user.lots)
    queued = [(x.number, index) for index, lot in enumerate(user.lots) for x in lot.queued]
    for _, index in sorted(queued):
        size_mib = user.lots[index].size_mib
        if size_mib <= limit_mib:
            limit_mib -= size_mib
            kept[index] += 1
    return kept
