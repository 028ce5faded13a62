"""The tree of queues: checked as a whole, and its amounts for a cluster of a given size."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from hrm.core.tenancy.queue_spec import (
    DEFAULT_QUEUE,
    GOVERNED,
    QUEUES_MAX,
    RECOVERED_QUEUE,
    ROOT,
    Amount,
    QueueName,
    QueueSpec,
    Quota,
    ancestors,
    name_problem,
    parent_of,
)

__all__ = ["Governed", "QueueLimits", "QueueTree", "lineage"]

Governed: TypeAlias = tuple[float, float, float]
"""Cores, MiB of memory, MiB of GPUs' memory."""

_NOTHING: Quota = (Amount(0.0), Amount(0.0), Amount(0.0))
_WITHOUT_END: Governed = (math.inf, math.inf, math.inf)
_SLACK = 1e-9
_SOME = 5
_NAME_COMPARED = 256


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What one queue is guaranteed of a cluster, and its own maximum, infinite where none is
    stated."""

    guaranteed: Governed
    maximum: Governed


@dataclass(frozen=True, slots=True, eq=False)
class QueueTree:
    """All queues, parents before children.

    Invariants: ``specs`` has ``root``, and with every queue its parent; a queue is in ``children``
    iff it has some; guarantees that are stated for the children of a queue, in parts or as
    amounts, are no more than their parent's, as far as that is stated in the same way.
    ``root.default`` is there. ``implied`` are the queues of which nothing is stated,
    ``open_to_all`` those that everybody may submit to.
    """

    specs: Mapping[QueueName, QueueSpec]
    children: Mapping[QueueName, tuple[QueueName, ...]]
    implied: frozenset[QueueName]
    open_to_all: frozenset[QueueName]

    @staticmethod
    def of(stated: Iterable[QueueSpec] = ()) -> QueueTree:
        """The tree of these queues. Those on the way to one need not be stated. ``root.default``
        and ``root.recovered`` are guaranteed nothing unless they are stated, or alone.

        Raises:
            ValueError: they are not a tree that can be served; with the reason.
        """
        specs: dict[QueueName, QueueSpec] = {}
        for spec in stated:
            if spec.name in specs:
                raise ValueError(f"the queue {spec.name} is stated twice")
            specs[spec.name] = spec
        named = frozenset(specs)
        specs.setdefault(ROOT, QueueSpec(name=ROOT))
        for name in list(specs):
            for above in ancestors(name):
                if above == RECOVERED_QUEUE:
                    raise ValueError(
                        f"{name}: {RECOVERED_QUEUE} has no queues below it; applications go there "
                        f"whose queue is gone when the master starts"
                    )
                specs.setdefault(above, QueueSpec(name=above))
        is_alone = len(specs) == 1
        if DEFAULT_QUEUE not in specs:
            spec = QueueSpec(name=DEFAULT_QUEUE)
            specs[DEFAULT_QUEUE] = spec if is_alone else replace(spec, guaranteed=_NOTHING)
        if len(specs) > QUEUES_MAX:
            raise ValueError(f"{len(specs)} queues are more than {QUEUES_MAX}")
        ordered = dict(sorted(specs.items(), key=lambda item: (item[0].count("."), item[0])))
        children: dict[QueueName, list[QueueName]] = {}
        for name in ordered:
            parent = parent_of(name)
            if parent is not None:
                children.setdefault(parent, []).append(name)
        below = {name: tuple(each) for name, each in children.items()}
        is_open = {x for x in ordered if all("*" in ordered[y].submitters for y in lineage(x))}
        tree = QueueTree(ordered, below, frozenset(ordered.keys() - named), frozenset(is_open))
        tree._check()
        return tree

    def _check(self) -> None:
        for name, each in self.children.items():
            for which, resource in enumerate(GOVERNED):
                stated = [(x, self.specs[x].guaranteed[which]) for x in each]
                parts = [(x, amount) for x, amount in stated if amount and amount.is_part]
                total = sum(amount.number for _, amount in parts)
                if total > 1 + _SLACK:
                    raise ValueError(
                        f"the queues below {name} are guaranteed {100 * total:.6g}% of its "
                        f"{resource} together, more than all of it: {_listed(parts)}"
                    )
                own = self.specs[name].guaranteed[which]
                fixed = [(x, amount) for x, amount in stated if amount and not amount.is_part]
                total = sum(amount.number for _, amount in fixed)
                if own is not None and not own.is_part and total > own.number:
                    raise ValueError(
                        f"the queues below {name} are guaranteed {total:.0f} {resource} together, "
                        f"and {name} itself {own.number:.0f}: {_listed(fixed)}"
                    )

    @property
    def leaves(self) -> list[QueueName]:
        return [name for name in self.specs if name not in self.children]

    def is_leaf(self, name: QueueName) -> bool:
        return name in self.specs and name not in self.children

    @property
    def stated(self) -> list[QueueSpec]:
        """The queues that were stated, as ``of`` takes them."""
        return [spec for name, spec in self.specs.items() if name not in self.implied]

    @property
    def governs(self) -> bool:
        """Is anything to be enforced? Not while all applications are in one queue without
        limits."""
        leaves = self.leaves
        return len(leaves) > 1 or any(_limits(self.specs[x]) for x in (ROOT, *leaves))

    def with_queue(self, spec: QueueSpec) -> QueueTree:
        """The tree with one queue more, or another version of one.

        Raises:
            ValueError: as ``of``.
        """
        others = [x for x in self.stated if x.name != spec.name]
        return QueueTree.of([*others, spec])

    def changed(self, removed: Iterable[QueueName], stated: Iterable[QueueSpec]) -> QueueTree:
        """The tree without these queues, which may have none below them but such as are removed
        before, and with these, or other versions of them: made once, however many they are.

        Raises:
            ValueError: one is not there, or cannot be removed, or as ``of``.
        """
        left = {name: len(each) for name, each in self.children.items()}
        gone: set[QueueName] = set()
        kept = {spec.name: spec for spec in self.stated}
        for name in removed:
            if name not in self.specs or name in gone:
                raise ValueError(self.unknown(name))
            if name in (ROOT, DEFAULT_QUEUE):
                raise ValueError(f"{name} cannot be removed: applications without a queue go there")
            if left.get(name):
                below = ", ".join([x for x in self.children[name] if x not in gone][:5])
                raise ValueError(f"{name} has queues below it; remove these first: {below}")
            gone.add(name)
            kept.pop(name, None)
            parent = parent_of(name)
            assert parent is not None, "only root has none"
            left[parent] -= 1
        kept.update((spec.name, spec) for spec in stated)
        return QueueTree.of(kept.values())

    def with_recovered(self) -> QueueTree:
        """The tree with ``root.recovered``."""
        if RECOVERED_QUEUE in self.specs:
            return self
        return self.with_queue(QueueSpec(name=RECOVERED_QUEUE, guaranteed=_NOTHING))

    def unknown(self, name: str) -> str:
        """That there is no such queue, or none for applications, and what there is."""
        ends = self._ending(name, self.leaves)
        if len(ends) > 1:
            return f"several queues are called {name}; write one whole: {_some(ends)}"
        whole = [QueueName(x) for x in (name, f"{ROOT}.{name}") if x in self.children]
        inner = whole[:1] or self._ending(name, self.children)
        if inner:
            have = "has queues below it" if len(inner) == 1 else "have queues below them"
            take = "takes" if len(inner) == 1 else "take"
            below = [x for x in self.leaves if any(x.startswith(f"{y}.") for y in inner)]
            return f"{_some(inner)} {have}, and {take} no applications; choose one: {_some(below)}"
        if name.startswith(f"{ROOT}.") and (problem := name_problem(name)):
            return f"the queue {name[:80]!r} {problem}"
        near = self.near(name, self.leaves)
        there = f"there are {_some(self.leaves)}"
        if near:
            there = f"did you mean {' or '.join(near)}?"
        return f"there is no queue {name[:80]!r}; {there} (hrm queues lists all)"

    @staticmethod
    def near(name: str, known: Iterable[QueueName]) -> list[QueueName]:
        """Up to two of these queues that are named alike, as a whole or in their last parts."""
        short = {x.removeprefix(f"{ROOT}."): x for x in known if x != ROOT}
        lasts = {x.rpartition(".")[2]: x for x in short.values()}
        asked = name[:_NAME_COMPARED].removeprefix(f"{ROOT}.")
        return [short[x] for x in difflib.get_close_matches(asked, short, 2)] or [
            lasts[x] for x in difflib.get_close_matches(asked.rpartition(".")[2], lasts, 2)
        ]

    @staticmethod
    def _ending(name: str, known: Iterable[QueueName]) -> list[QueueName]:
        """Those of which this is the last part."""
        return [] if "." in name else [x for x in known if x.endswith(f".{name}")]

    def find(self, name: str) -> QueueName | None:
        """The leaf of that name, which may be given without ``root``, or as the last part alone
        where one leaf has that; None: there is none."""
        for whole in (name, f"{ROOT}.{name}"):
            if self.is_leaf(QueueName(whole)):
                return QueueName(whole)
        ends = self._ending(name, self.leaves)
        return ends[0] if len(ends) == 1 else None

    def may_submit(self, name: QueueName, user: str) -> bool:
        """May this user submit to the queue? Who may to a queue above it may to it, too, and so may
        its administrators. A queue that states nothing is open to all, if those above it are."""
        return (
            (name in self.open_to_all)
            or self.may_administer(name, user)
            or all(_named(self.specs[x].submitters, user) for x in lineage(name))
        )

    def may_administer(self, name: QueueName, user: str) -> bool:
        return any(_named(self.specs[x].administrators, user) for x in lineage(name))

    def class_bound(self, name: QueueName, user: str) -> QueueSpec | None:
        """Of the queue and those above it, as far as the user does not administer them, the one
        that states the lowest ``maximum_class``; None: there is none."""
        others = (self.specs[x] for x in lineage(name) if not self.may_administer(x, user))
        return max(others, key=lambda x: x.maximum_class.rank, default=None)

    def limits(self, cluster: Governed) -> dict[QueueName, QueueLimits]:
        """What each queue is guaranteed and may have, where ``cluster`` is all there is. Where
        amounts are stated of which there is less, all of a parent's are reduced by one factor."""
        found = {ROOT: QueueLimits(cluster, _WITHOUT_END)}
        for name in self.specs:
            each = self.children.get(name, ())
            if not each:
                continue
            above = found[name]
            columns = [
                self._column(each, which, above.guaranteed[which]) for which in range(len(GOVERNED))
            ]
            for position, child in enumerate(each):
                spec = self.specs[child]
                most = [
                    math.inf if amount is None else amount.of(whole)
                    for amount, whole in zip(spec.maximum, cluster, strict=True)
                ]
                maximum = (most[0], most[1], most[2])
                least = [min(column[position], x) for column, x in zip(columns, most, strict=True)]
                found[child] = QueueLimits((least[0], least[1], least[2]), maximum)
        return found

    def guarantees(self, parent: QueueName, which: int, whole: float) -> list[float]:
        """What of one resource (of ``GOVERNED``) the children of a queue that is guaranteed
        ``whole`` are guaranteed, in order, where no maximum is less."""
        return self._column(self.children[parent], which, whole)

    def _column(self, children: tuple[QueueName, ...], which: int, whole: float) -> list[float]:
        """What of one resource each of the children of a queue that is guaranteed ``whole`` is
        guaranteed."""
        specs = [self.specs[child] for child in children]
        stated = [
            None if (amount := spec.guaranteed[which]) is None else amount.of(whole)
            for spec in specs
        ]
        total = sum(x for x in stated if x is not None)
        factor = 1.0 if total <= whole or not total else whole / total
        left = max(0.0, whole - total)
        weights = sum(spec.weight for spec, x in zip(specs, stated, strict=True) if x is None)
        return [
            left * spec.weight / weights if x is None else x * factor
            for spec, x in zip(specs, stated, strict=True)
        ]


def lineage(name: QueueName) -> list[QueueName]:
    """A queue and those above it, ``root`` first."""
    return [*ancestors(name), name]


def _named(names: tuple[str, ...], user: str) -> bool:
    return "*" in names or user in names


def _limits(spec: QueueSpec) -> bool:
    plain = QueueSpec(name=spec.name, guaranteed=spec.guaranteed, weight=spec.weight)
    return replace(spec, preemptible=True) != plain


def _some(names: Collection[QueueName]) -> str:
    shown = ", ".join(list(names)[:_SOME])
    return f"{shown}, …" if len(names) > _SOME else shown


def _listed(stated: list[tuple[QueueName, Amount]]) -> str:
    each = [
        f"{name} {100 * amount.number:.6g}%" if amount.is_part else f"{name} {amount.number:.0f}"
        for name, amount in stated[:5]
    ]
    return ", ".join(each) + (", …" if len(stated) > 5 else "")
