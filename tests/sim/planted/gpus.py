"""Bugs of shares of GPUs where executors differ in what they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from hrm.core.master import gpu_contest, gpu_shares
from hrm.core.master.gpu_contest import GpuLot, GpuUser
from hrm.core.master.gpu_holds import GpuHolds
from hrm.core.master.gpu_index import GpuIndex
from hrm.core.master.gpu_preemption import lacking
from hrm.core.master.gpu_shares import FairGpuParts
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import ApplicationId

__all__ = ["BUGS"]


def gpus_of_all_kinds_as_one(patch: pytest.MonkeyPatch) -> None:
    """What an application holds of pairs of GPUs counts in its share of single ones."""
    kinds = FairGpuParts._kinds

    def as_one(self: FairGpuParts, now: float) -> list[list[GpuUser]]:
        users: dict[ApplicationId, GpuUser] = {}
        for each in kinds(self, now):
            for user in each:
                name, others = user.application_id, users.get(user.application_id)
                lots = user.lots if others is None else others.lots + user.lots
                users[name] = GpuUser(name, user.job, lots)
        return [list(users.values())]

    patch.setattr(FairGpuParts, "_kinds", as_one)


def gpu_sizes_counted_alike(patch: pytest.MonkeyPatch) -> None:
    """An application holds as much device memory as if all of its containers, also those that
    wait, were of one size."""

    def mean_mib(lots: Sequence[GpuLot]) -> int:
        many = sum(lot.placed + lot.waiting for lot in lots)
        all_mib = sum((lot.placed + lot.waiting) * lot.size_mib for lot in lots)
        return sum(lot.placed for lot in lots) * all_mib // max(1, many)

    patch.setattr(gpu_contest, "placed_mib", mean_mib)


def freed_gpus_taken_back(patch: pytest.MonkeyPatch) -> None:
    """What one victim frees is anyone's, before the others have ended."""
    patch.setattr(GpuHolds, "of_kind", lambda *_: [])


def returned_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a node returns from its queue counts for nothing until it is requested again."""
    patch.setattr(GpuIndex, "expect_again", lambda *_: None)


def preempted_for_parts_of_gangs(patch: pytest.MonkeyPatch) -> None:
    """For a gang as much is preempted as its share holds, though it starts whole or not at all."""

    def some(
        user: GpuUser, lacks_mib: int, startable: Sequence[int], members: Counter[Vector]
    ) -> list[tuple[GpuLot, int]]:
        return lacking(user, lacks_mib, [0] * len(startable))

    patch.setattr(gpu_shares, "lacking_together", some)
    patch.setattr(FairGpuParts, "_gang_could_start_after", lambda *_: True)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    gpus_of_all_kinds_as_one,
    gpu_sizes_counted_alike,
    freed_gpus_taken_back,
    returned_and_forgotten,
    preempted_for_parts_of_gangs,
]
