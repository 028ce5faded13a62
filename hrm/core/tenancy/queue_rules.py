"""Which queue an application goes to: the one that it names, else that of the first rule that fits.

A rule fits where its pattern does, the queue that it names is there, and the user may submit there.
``{user}`` in a queue's name stands for the user, ``{group}`` for the group that has matched. What
no rule places goes to ``root.default``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from hrm.core.tenancy.queue_spec import DEFAULT_QUEUE, ROOT, QueueName, name_problem
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.core.vocabulary.advice import EXECUTOR

__all__ = ["RULES_MAX", "QueueRefusal", "QueueRule", "place", "rule_from"]

RuleKind: TypeAlias = Literal["user", "group", "tag", "name"]
_KINDS = get_args(RuleKind)
RULES_MAX = 1_000
_ODD = re.compile(r"[^a-z0-9_-]+")


class QueueRefusal(ValueError):
    """An application may not go where it wants to; with the reason, and what to do.

    ``denied``: it is a matter of who asks.
    """

    def __init__(self, message: str, *, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


@dataclass(frozen=True, slots=True)
class QueueRule:
    """Applications of this user, of a user of this group, with this tag or of this name, ``*`` for
    any of them, go to ``queue``."""

    kind: RuleKind
    pattern: str
    queue: str


def rule_from(stated: Mapping[str, object]) -> QueueRule:
    """A rule as a table of ``hrm.toml`` has it: ``{ user = "ana", queue = "root.ana" }``.

    Raises:
        ValueError: with what may be written instead.
    """
    kinds = [x for x in _KINDS if x in stated]
    unknown = sorted(set(stated) - {*_KINDS, "queue"})
    how = f'as {{ user = "ana", queue = "root.ana" }}, with one of {", ".join(_KINDS)}'
    if unknown or len(kinds) != 1 or "queue" not in stated:
        raise ValueError(f"a rule is a table {how}")
    pattern, queue = stated[kinds[0]], stated["queue"]
    texts = isinstance(pattern, str) and isinstance(queue, str)
    if not texts or not pattern or not queue or max(len(pattern), len(queue)) > 256:  # type: ignore[arg-type]
        raise ValueError(f"a rule is of two names {how}")
    filled = _filled(queue, user="user", group="group")  # type: ignore[arg-type]
    problem = name_problem(filled if filled.startswith(f"{ROOT}.") else f"{ROOT}.{filled}")
    if problem:
        raise ValueError(
            f"its queue {str(queue)[:80]!r} {problem}; {{user}} and {{group}} alone may stand in it"
        )
    return QueueRule(kinds[0], pattern, queue)  # type: ignore[arg-type]


def place(
    tree: QueueTree,
    rules: Iterable[QueueRule],
    *,
    asked: str,
    user: str,
    groups: Sequence[str] = (),
    tags: Sequence[str] = (),
    name: str = "",
    setting: str = EXECUTOR.queue,
) -> QueueName:
    """The leaf that an application goes to. ``setting``: how it names one.

    Raises:
        QueueRefusal: it names a queue that is none for it, or there is none for it at all.
    """
    if asked:
        found = tree.find(asked)
        if found is None:
            raise QueueRefusal(tree.unknown(asked))
        if not tree.may_submit(found, user):
            raise QueueRefusal(
                f"{user} may not submit to {found}; name another queue ({setting}), or ask "
                f"an administrator of it to add {user} to its submitters",
                denied=True,
            )
        return found
    of: dict[str, Sequence[str]] = {
        "user": (user,), "group": groups, "tag": tags, "name": (name,)
    }  # fmt: skip
    for rule in rules:
        for value in of[rule.kind]:
            if rule.pattern not in ("*", value):
                continue
            group = value if rule.kind == "group" else ""
            wanted = _filled(rule.queue, user=_plain(user), group=_plain(group))
            found = tree.find(wanted)
            if found is not None and tree.may_submit(found, user):
                return found
    if not tree.is_leaf(DEFAULT_QUEUE):
        raise QueueRefusal(tree.unknown(DEFAULT_QUEUE))
    if not tree.may_submit(DEFAULT_QUEUE, user):
        raise QueueRefusal(
            f"no queue is for {user} by itself, and {DEFAULT_QUEUE} is not open to {user}; name "
            f"one ({setting})",
            denied=True,
        )
    return DEFAULT_QUEUE


def _filled(queue: str, *, user: str, group: str) -> str:
    return queue.replace("{user}", user).replace("{group}", group)


def _plain(name: str) -> str:
    """As a part of a queue's name."""
    return _ODD.sub("-", name.lower()).strip("-_")
