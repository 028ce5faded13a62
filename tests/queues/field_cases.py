"""Situations from the public tests of other resource managers, as facts.

What Hadoop YARN, Apache YuniKorn and Kueue guarantee of queues is in their tests. Each case is
the situation of one such test, what that project does there, and what HRM does by its own rules,
worked out by hand. The files of ``tests/queues/cases`` are neutral: nothing in them is of HRM's
code, and nothing was copied.

A size is a number, so many cores and as many GiB of memory, or ``cores``, ``gib`` and ``gpu_gib``.
A queue is its path below ``root`` and its guarantee, or a table of what an administrator states of
it; ``{}`` is a queue of which nothing is stated. Applications are in the order in which their
containers started, so the last that runs is the newest. When all that ``runs`` does, what ``waits``
is requested, in the order of the applications.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["App", "Case", "Group", "Node", "Outcome", "Size", "cases"]

_FOLDER = Path(__file__).parent / "cases"
_SIZE = ("size", "cores", "gib", "gpu_gib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    cores: float
    gib: float
    gpu_gib: float = 0

    @staticmethod
    def of(stated: Any) -> Size:
        if isinstance(stated, int):
            return Size(cores=stated, gib=stated)
        if "size" in stated:
            return Size.of(stated["size"])
        return Size(cores=stated["cores"], gib=stated["gib"], gpu_gib=stated.get("gpu_gib", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    size: Size
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Containers of one size. ``node``: where they run, or must; empty: anywhere."""

    count: int = 1
    size: Size
    node: str = ""

    @staticmethod
    def of(stated: Any) -> tuple[Group, ...]:
        if isinstance(stated, int):
            return (Group(count=stated, size=Size.of(1)),) if stated else ()
        return tuple(
            Group(
                count=each.get("count", 1),
                size=Size.of(each if set(each) & set(_SIZE) else 1),
                node=each.get("node", ""),
            )
            for each in stated
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """One application. ``drivers``: containers that lead it, of one core and GiB each, which run
    before the others. ``gang``: so many run at once, or none. ``labels``: what its nodes have.
    """

    name: str
    queue: str
    runs: tuple[Group, ...] = ()
    waits: tuple[Group, ...] = ()
    drivers: int = 0
    gang: int = 0
    stream: bool = False
    priority: int = 0
    user: str = "somebody"
    labels: tuple[str, ...] = ()

    @staticmethod
    def of(stated: Mapping[str, Any]) -> App:
        values = {
            "name": stated["queue"],
            **stated,
            "runs": Group.of(stated.get("runs", 0)),
            "waits": Group.of(stated.get("waits", 0)),
            "labels": tuple(stated.get("labels", ())),
        }
        return App(**values)

    @property
    def running(self) -> int:
        return sum(group.count for group in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What follows. ``lost``: of each application, how many of what runs are preempted, or which,
    numbered from 1 in the order in which they started; ``started``: how many of what waits start.
    One that is not named loses or starts none. ``started`` is None where the test says nothing of
    it.
    """

    lost: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    started: Mapping[str, int] | None = None
    note: str = ""

    @staticmethod
    def of(stated: Mapping[str, Any]) -> Outcome:
        lost = {
            name: tuple(which) if isinstance(which, list) else which
            for name, which in stated.get("lost", {}).items()
        }
        return Outcome(lost=lost, started=stated.get("started"), note=stated.get("note", ""))

    def counts(self) -> dict[str, int]:
        """How many each application loses."""
        return {x: y if isinstance(y, int) else len(y) for x, y in self.lost.items()}

    def agrees(self, other: Outcome) -> bool:
        """Is it the same, as far as both say?"""
        both = [
            (which, other.lost[name])
            for name, which in self.lost.items()
            if isinstance(which, tuple) and isinstance(other.lost.get(name), tuple)
        ]
        starts = None in (self.started, other.started) or self.started == other.started
        return starts and self.counts() == other.counts() and all(x == y for x, y in both)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One situation.

    ``shows``: what of it is worth knowing; ``adapted``: how it departs from the test's figures;
    ``queues``: of each, by its path below ``root``, what is stated of it, as ``QueueSpec`` has it,
    with sizes for amounts. ``ends``: of how many containers of an application the processes end by
    themselves in the end, one after the other; ``finishes``: which applications do; ``later``: what
    is stated of queues in the end. ``why``: where HRM does otherwise, the reason.
    """

    name: str
    project: str
    suite: str
    test: str
    shows: str
    adapted: str = ""
    nodes: tuple[Node, ...]
    queues: Mapping[str, Mapping[str, Any]]
    apps: tuple[App, ...]
    grace_s: float | None = None
    drain_s: float | None = None
    ends: Mapping[str, int] = field(default_factory=dict)
    finishes: tuple[str, ...] = ()
    later: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    original: Outcome
    hrm: Outcome
    why: str = ""

    @staticmethod
    def of(project: str, stated: Mapping[str, Any]) -> Case:
        values = {
            **stated,
            "project": project,
            "nodes": tuple(_node(name, each) for name, each in stated["nodes"].items()),
            "queues": {name: _queue(each) for name, each in stated["queues"].items()},
            "later": {name: _queue(each) for name, each in stated.get("later", {}).items()},
            "apps": tuple(App.of(each) for each in stated["apps"]),
            "finishes": tuple(stated.get("finishes", ())),
            "original": Outcome.of(stated.get("original", {})),
            "hrm": Outcome.of({"started": {}, **stated.get("hrm", {})}),
        }
        return Case(**values)


def _node(name: str, stated: Any) -> Node:
    labels = () if isinstance(stated, int) else tuple(stated.get("labels", ()))
    return Node(name=name, size=Size.of(stated), labels=labels)


def _queue(stated: Any) -> dict[str, Any]:
    """What is stated of a queue, with each amount as a ``Size`` or a part such as ``"50%"``."""
    values = dict(stated) if isinstance(stated, Mapping) else {"guaranteed": stated}
    for amount in ("guaranteed", "maximum"):
        if amount in values and not isinstance(values[amount], str):
            values[amount] = Size.of(values[amount])
    return values


@cache
def cases() -> tuple[Case, ...]:
    """All of them, those of one project together."""
    found = []
    for path in sorted(_FOLDER.glob("*.toml")):
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
        found += [Case.of(stated["project"], each) for each in stated["case"]]
    return tuple(found)
