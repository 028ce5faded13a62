"""Queues of applications and rules of placement, as ``hrm.toml`` states them.

They are no settings of one daemon, and have tables of their own: ``[queues."root.team"]`` for each
queue, and one ``[[queue_rules]]`` a rule, of which the first that fits counts. What a table may
have is checked where queues are defined (``hrm.core.tenancy``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hrm.config import problems
from hrm.config.sources import config_file, toml_document
from hrm.core.tenancy.queue_rules import RULES_MAX, QueueRule, rule_from
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec, spec_from
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.errors import InvalidConfig

__all__ = ["QueueConfig", "load_queues"]


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """``specs`` and ``rules`` of the file at ``path``; None: there is no file."""

    specs: tuple[QueueSpec, ...] = ()
    rules: tuple[QueueRule, ...] = ()
    path: Path | None = None

    @property
    def names(self) -> frozenset[QueueName]:
        return frozenset(spec.name for spec in self.specs)

    @property
    def asks_groups(self) -> bool:
        """Is a rule about the groups of users?"""
        return any(rule.kind == "group" for rule in self.rules)

    def replaced(self, stored: Iterable[QueueSpec]) -> list[tuple[QueueSpec, QueueSpec]]:
        """The queues of the store of which the file states something else, with what it states."""
        by_name = {spec.name: spec for spec in self.specs}
        pairs = ((spec, by_name.get(spec.name, spec)) for spec in stored)
        return [(was, now) for was, now in pairs if was != now]

    def tree(self, stored: Iterable[QueueSpec]) -> QueueTree:
        """The queues that a master begins with: those of its store, and in place of them those of
        the file.

        Raises:
            InvalidConfig: together they are no tree that can be served.
        """
        kept = [spec for spec in stored if spec.name not in self.names]
        try:
            return QueueTree.of([*kept, *self.specs])
        except ValueError as error:
            others = ", ".join(f'[queues."{spec.name}"]' for spec in kept[:5])
            more = (
                f"; of these queues {others} stand in the master's store alone, as hrm queue has "
                f"made them: what {self.path or 'hrm.toml'} states of them would count instead"
            )
            raise InvalidConfig(f"{error}{more if kept else ''}") from None


def load_queues() -> QueueConfig:
    """Of the configuration file in force.

    Raises:
        InvalidConfig: each problem, with where it stands.
    """
    path = config_file()
    if path is None:
        return QueueConfig()
    document = toml_document(path)
    found: list[str] = []
    specs = _specs(path, document.get("queues", {}), found)
    rules = _rules(path, document.get("queue_rules", []), found)
    stated = QueueConfig(specs, rules, path)
    if not found:
        try:
            QueueTree.of(specs)
        except ValueError as error:
            found.append(f"{path}, tables [queues]: {error}")
    if found:
        raise InvalidConfig("; ".join(found))
    return stated


def _specs(path: Path, tables: Any, found: list[str]) -> tuple[QueueSpec, ...]:
    """Those that can be read; what is wrong with the others goes into ``found``."""
    if not isinstance(tables, dict):
        found.append(f'{path}: queues has a table for each queue, as [queues."root.team"]')
        return ()
    specs = []
    for name, table in tables.items():
        place = f"{path}, table {problems.table_name(name)}"
        if not isinstance(table, dict) or any(
            isinstance(value, dict) and key not in ("guaranteed", "maximum")
            for key, value in table.items()
        ):
            found.append(
                f"{place}: the name of a queue stands in quotes, since it has dots: "
                f'[queues."root.team"]'
            )
            continue
        try:
            specs.append(spec_from(name, table))
        except ValueError as error:
            found.append(f"{place}: {error}")
    return tuple(specs)


def _rules(path: Path, tables: Any, found: list[str]) -> tuple[QueueRule, ...]:
    if not isinstance(tables, list):
        found.append(f"{path}: a rule is a table of its own: [[queue_rules]], in double brackets")
        return ()
    if len(tables) > RULES_MAX:
        found.append(f"{path}: {len(tables)} queue_rules are more than {RULES_MAX}")
        return ()
    rules = []
    for number, table in enumerate(tables, 1):
        place = f"{path}, rule {number} of [[queue_rules]]"
        try:
            rules.append(rule_from(table if isinstance(table, dict) else {}))
        except ValueError as error:
            found.append(f"{place}: {error}")
    return tuple(rules)
