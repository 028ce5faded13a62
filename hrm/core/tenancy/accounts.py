"""What each queue holds and wants, and its share of what there is.

An account follows one queue of the tree. What happens in a leaf is entered there and in all queues
above it. Shares are divided from ``root`` down (``division``), a family (a queue's children) at a
time, and only when they are asked for and something has changed.

Amounts are triples of cores, MiB of memory and MiB of GPUs' memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hrm.core.tenancy.division import divide
from hrm.core.tenancy.queue_spec import ROOT, QueueName, QueueSpec
from hrm.core.tenancy.queue_tree import Governed, QueueLimits, QueueTree
from hrm.core.vocabulary.columns import Floats

__all__ = [
    "NOTHING",
    "AccountTree",
    "QueueAccount",
    "common",
    "fits_into",
    "less",
    "more",
    "times_into",
]

NOTHING: Governed = (0.0, 0.0, 0.0)
_SLACK = 1e-6
_HANDICAP_MAX = 5.0
"""Past use divides a queue's weight by no more than 2 to the power of this."""
_HANDICAP_STEP = 0.01
"""Smaller changes of it are not followed."""


def more(a: Governed, b: Governed) -> Governed:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def less(a: Governed, b: Governed) -> Governed:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


def fits_into(amount: Governed, held: Governed, limit: Governed) -> bool:
    """Does ``held`` stay within ``limit`` with ``amount`` more, of all of which that has some?"""
    return all(not x or y + x <= z + _SLACK for x, y, z in zip(amount, held, limit, strict=True))


def times_into(amount: Governed, held: Governed, limit: Governed) -> float:
    """How many times ``fits_into``, one after the other; infinite where nothing is limited."""
    return min(
        (
            (z - y + _SLACK) // x
            for x, y, z in zip(amount, held, limit, strict=True)
            if x and z != math.inf
        ),
        default=math.inf,
    )


class _Family:
    """The children of one queue, in columns of shape (children, 3); ``weights`` (children,).

    ``is_stale``: what they want, or their limits, have changed since ``shares`` were divided from
    ``total``. ``handicaps``: by which part of its weight each counts, for its past use, shape
    (children,).
    """

    __slots__ = (
        "guaranteed", "handicaps", "is_stale", "maximum", "shares", "total", "wanted", "weights",
    )  # fmt: skip

    def __init__(self, weights: list[float], limits: list[QueueLimits]) -> None:
        many = len(weights)
        self.weights: Floats = np.asarray(weights, np.float64)
        self.handicaps: Floats = np.ones(many)
        self.guaranteed: Floats = np.zeros((many, 3))
        self.maximum: Floats = np.zeros((many, 3))
        self.wanted: Floats = np.zeros((many, 3))
        self.shares: Floats = np.zeros((many, 3))
        self.total: Floats = np.zeros(3)
        self.limit(limits)

    def limit(self, limits: list[QueueLimits]) -> None:
        self.guaranteed[:] = [x.guaranteed for x in limits]
        self.maximum[:] = [x.maximum for x in limits]
        self.is_stale = True

    def divide(self, total: Floats) -> None:
        """Divide ``total``, if that may have another result than the last time."""
        if self.is_stale or (total != self.total).any():
            wanted = np.minimum(self.wanted, self.maximum)
            weights = self.weights * self.handicaps
            self.shares = divide(total, self.guaranteed, wanted, weights)
            self.total, self.is_stale = total, False


class QueueAccount:
    """One queue.

    ``held``: by containers that it lets have a place, whether they have one or not; ``placed``: by
    those of them that run, or are about to; ``wanted``: by all that it would let have one now if
    there was capacity for all. ``drivers``: by drivers, of what is held. ``slots``: applications
    that may hold containers, by what counts as one, in the whole subtree. ``stuck``: of
    a leaf, by what is held and finds no place; ``waits_last``: of a leaf, by what yields and waits
    with its scheduler or at a unit, which takes nothing of its share. ``promised``: below its
    maximum, see ``QueueUsage``. ``divided_s``: when its share was last divided for its own sake.
    ``past_use``: see ``AccountTree.age``.
    """

    __slots__ = (
        "children", "divided_s", "drivers", "family", "held", "limits", "name", "parent",
        "past_use", "path", "placed", "position", "promised", "slots", "spec", "stuck",
        "waits_last", "wanted",
    )  # fmt: skip

    def __init__(self, spec: QueueSpec, parent: QueueAccount | None, limits: QueueLimits) -> None:
        self.name = spec.name
        self.spec = spec
        self.parent = parent
        self.limits = limits
        self.held = self.placed = self.wanted = self.drivers = self.promised = self.stuck = NOTHING
        self.waits_last = NOTHING
        self.slots: dict[str, int] = {}
        self.divided_s = -math.inf
        self.past_use = 0.0
        self.family: _Family | None = None
        self.children: list[QueueAccount] = []
        self.position = 0
        self.path: tuple[QueueAccount, ...] = (self, *(() if parent is None else parent.path))
        """It and those above it, ``root`` last."""

    @property
    def is_leaf(self) -> bool:
        return not self.children

    def wants(self, amount: Governed) -> None:
        """It wants so much more, which may be negative."""
        for account in self.path:
            account.wanted = more(account.wanted, amount)
            if account.parent is not None and account.parent.family is not None:
                family = account.parent.family
                family.wanted[account.position] = account.wanted
                family.is_stale = True

    def holds(self, amount: Governed) -> None:
        for account in self.path:
            account.held = more(account.held, amount)

    def places(self, amount: Governed) -> None:
        for account in self.path:
            account.placed = more(account.placed, amount)

    def promises(self, amount: Governed) -> None:
        for account in self.path:
            account.promised = more(account.promised, amount)

    def has_drivers(self, amount: Governed) -> None:
        for account in self.path:
            account.drivers = more(account.drivers, amount)

    def above_maximum(self, amount: Governed, *, is_promised: bool = False) -> QueueAccount | None:
        """The first queue, of it and those above, of whose maximum this would be too much, with
        what is promised to others."""
        for account in self.path:
            held = account.held if is_promised else more(account.held, account.promised)
            if account.parent is not None and not fits_into(amount, held, account.limits.maximum):
                return account
        return None

    def full(self) -> QueueAccount | None:
        """The first queue, of it and those above, that may have no further application."""
        for account in self.path:
            limit = account.spec.max_running
            if limit is not None and len(account.slots) >= limit:
                return account
        return None

    def fits_share(self, amount: Governed, share: Governed) -> bool:
        """Does a leaf hold no more than its share, with so much more? What finds no place at all
        does not count, within its guarantee and up to as much again."""
        held = less(self.held, self.waits_last)
        if fits_into(amount, held, share):
            return True
        if self.stuck == NOTHING:
            return False
        limit = tuple(min(x, y) for x, y in zip(share, self.limits.guaranteed, strict=True))
        twice = (2 * share[0], 2 * share[1], 2 * share[2])
        counted = less(held, self.stuck)
        return fits_into(amount, counted, (limit[0], limit[1], limit[2])) and fits_into(
            amount, self.held, twice
        )

    def within_guarantee(self, amount: Governed, top: QueueAccount) -> bool:
        """Would it, and all above it below ``top``, hold at nodes no more than their guarantees,
        with so much more?"""
        for account in self.path:
            if account is top:
                return True
            if not fits_into(amount, account.placed, account.limits.guaranteed):
                return False
        return True


class AccountTree:
    """The accounts of a tree, for a cluster of one size."""

    def __init__(self, tree: QueueTree, capacity: Governed) -> None:
        self.tree = tree
        self.capacity = capacity
        limits = tree.limits(capacity)
        self.of: dict[QueueName, QueueAccount] = {}
        for name, spec in tree.specs.items():
            parent = None if spec.parent is None else self.of[spec.parent]
            account = self.of[name] = QueueAccount(spec, parent, limits[name])
            if parent is not None:
                account.position = len(parent.children)
                parent.children.append(account)
        for account in self.of.values():
            if account.children:
                weights = [x.spec.weight for x in account.children]
                account.family = _Family(weights, [x.limits for x in account.children])

    @property
    def root(self) -> QueueAccount:
        return self.of[ROOT]

    def resize(self, capacity: Governed) -> None:
        """The cluster has another size."""
        self.capacity = capacity
        limits = self.tree.limits(capacity)
        for name, account in self.of.items():
            account.limits = limits[name]
        for account in self.of.values():
            if account.family is not None:
                account.family.limit([x.limits for x in account.children])

    def leaves(self) -> Iterator[QueueAccount]:
        return (x for x in self.of.values() if x.is_leaf)

    def last_share(self, account: QueueAccount) -> Governed:
        """``share`` as it was when it was last divided, which costs nothing. What has changed since
        may make it larger or smaller; where a queue began to want something since, it is 0."""
        family = account.parent.family if account.parent is not None else None
        if family is None:
            return self.capacity
        cores, memory, gpu_memory = family.shares[account.position].tolist()
        return (cores, memory, gpu_memory)

    def age(self, passed_s: float, half_life_s: float) -> None:
        """So much time has passed: past use fades, and what is borrowed now is added to it.

        A queue's past use is a mean of the part of the cluster that it held beyond its guarantee,
        in the resource of which that is most; half of it is of the last half-life. In the division
        of what guarantees leave, a queue that has used as much as its weight's part counts half,
        one that has used twice as much a quarter, and so on (as fair share in Slurm).
        """
        fades = 0.5 ** (passed_s / half_life_s)
        for parent in self.of.values():
            family = parent.family
            if family is None:
                continue
            for account in parent.children:
                borrowed = 0.0
                for held, least, whole in zip(
                    account.placed, account.limits.guaranteed, self.capacity, strict=True
                ):
                    if whole and held > least:
                        borrowed = max(borrowed, (held - least) / whole)
                account.past_use = fades * account.past_use + (1 - fades) * borrowed
            parts = family.weights / family.weights.sum()
            past = np.asarray([x.past_use for x in parent.children])
            handicaps: Floats = np.exp2(-np.minimum(past / parts, _HANDICAP_MAX))
            if np.abs(handicaps - family.handicaps).max() > _HANDICAP_STEP:
                family.handicaps, family.is_stale = handicaps, True

    def inherit(self, other: AccountTree) -> None:
        """Take over the past use of queues that an earlier tree had, too."""
        for name, account in other.of.items():
            if name in self.of:
                self.of[name].past_use = account.past_use

    def share(self, account: QueueAccount) -> Governed:
        """What a queue may hold now, by what all want."""
        total = np.asarray(self.capacity, np.float64)
        for each in reversed(account.path[:-1]):
            family = each.parent.family if each.parent is not None else None
            assert family is not None, f"{each.name} is a child"
            family.divide(total)
            total = family.shares[each.position]
        cores, memory, gpu_memory = total.tolist()
        return (cores, memory, gpu_memory)


def common(one: QueueAccount, other: QueueAccount) -> QueueAccount:
    """The lowest queue that has both below it, or is one of them."""
    above = set(map(id, one.path))
    return next(x for x in other.path if id(x) in above)
