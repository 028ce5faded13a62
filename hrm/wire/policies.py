"""The report of a learned policy's guard: ``GuardStatus`` to ``LearnedPolicy``.

The master sends its own to users; agents send theirs to the master, which only passes them on,
bounded (``to_report``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from hrm.errors import InvalidRequest
from hrm.policies.guard import GuardMode, GuardStatus, Reason, mode_of
from hrm.policies.model_files import ModelFile
from hrm.v1 import policy_pb2 as pb
from hrm.wire import codec

__all__ = ["from_file", "from_status", "order", "report_of", "to_report"]

_TEXT_MAX = 500
"""Of a reason's text; longer ones are truncated, or a long error would end a node's stream."""
_REASONS = frozenset(reason.value for reason in Reason)
_COUNTERS = ("asked", "learned", "shadowed", "proposed", "agreed")
_NAME = re.compile(r"[\w .:+,=/()-]{0,200}", re.ASCII)
"""Of a model or a heuristic: ``guarded cosine over gaussian``."""
_NUMBERS = (
    "seconds_p50", "seconds_p99", "ratio_p95", "reference_p95", "ratio_mean", "reference_mean",
)  # fmt: skip


def learned_policy(**fields: Any) -> pb.LearnedPolicy:
    """What is known of a policy: of a guard, or of several that are gone."""
    return pb.LearnedPolicy(**fields)


def _sees_all(user: str) -> bool:
    return True


def from_status(
    status: GuardStatus,
    now: float,
    *,
    records: bool = False,
    sees: Callable[[str], bool] = _sees_all,
) -> pb.LearnedPolicy:
    """``records``: include what it would have done in shadow mode; ``sees``: may the reader know of
    questions of this user?"""
    held = learned_policy(
        policy=status.policy,
        kind=status.kind,
        heuristic=status.heuristic,
        model=status.model,
        schema=status.schema,
        mode=status.mode.value,
        asked=status.asked,
        learned=status.learned,
        shadowed=status.shadowed,
        proposed=status.proposed,
        agreed=status.agreed,
        fallbacks=status.fallbacks,
        last=status.last[:_TEXT_MAX] if sees(status.last_user) else "",
        compared=status.compared,
        reference_compared=status.reference_compared,
    )
    for name in _NUMBERS:
        value = getattr(status, name)
        if not math.isnan(value):
            setattr(held, name, value)
    if status.breaker_until is not None:
        held.breaker_s = max(0.0, status.breaker_until - now)
    if status.rolled_back_at is not None:
        held.rolled_back_at_s = status.rolled_back_at
        held.rolled_back_why = status.rolled_back_why[:_TEXT_MAX]
    shown = status.records if records else ()
    for record in (one for one in shown if sees(one.user)):
        held.records.add(
            at_s=record.now,
            key=record.key,
            heuristic=record.heuristic,
            learned=record.learned,
            same=record.same,
            reason=record.reason,
            seconds=record.seconds,
        )
    return held


def from_file(file: ModelFile) -> pb.ModelFile:
    return pb.ModelFile(kind=file.kind, version=file.version, path=str(file.path))


def order(policy: str, mode: GuardMode, number: int) -> pb.PolicyOrder:
    """To all nodes that use the policy; ``number``: greater than that of any earlier order."""
    return pb.PolicyOrder(policy=policy, mode=mode.value, order=number)


def report_of(report: pb.LearnedPolicy, mode: GuardMode, nodes: Iterable[str]) -> pb.LearnedPolicy:
    """A policy of several nodes, from one's ``report``, in the mode that was ordered."""
    kept = pb.LearnedPolicy()
    for field in ("policy", "kind", "heuristic", "model", "schema"):
        setattr(kept, field, getattr(report, field))
    kept.mode = mode.value
    kept.nodes.extend(nodes)
    return kept


def to_report(
    message: pb.LearnedPolicy, node: str, asked_max: int, kind: str = "node"
) -> pb.LearnedPolicy:
    """The report of ``node`` on a policy of its own, checked for storage and display. ``kind``:
    what policies there decide.

    Users' code runs beside a worker, and may report what it wants, but the sums are everybody's. So
    no counter exceeds what it is a part of, nor ``asked`` the ``asked_max`` that the worker can
    have been asked; reasons that are no ``Reason`` are left out.

    Raises:
        InvalidRequest: a field is malformed.
    """
    codec.to_name(message.policy, "policies.policy")
    mode_of(codec.to_text(message.mode, "policies.mode"))
    for field in ("schema", "last", "rolled_back_why"):
        codec.to_text(getattr(message, field), f"policies.{field}")
    for field in ("heuristic", "model", "schema"):
        if not _NAME.fullmatch(getattr(message, field)):
            raise InvalidRequest(
                f"policies.{field} is {getattr(message, field)[:80]!r}; letters, digits, spaces "
                f"and . : + , = / ( ) - _, at most 200, may name it"
            )
    kept = pb.LearnedPolicy()
    kept.CopyFrom(message)
    kept.ClearField("records")
    kept.ClearField("nodes")
    kept.kind, kept.node = kind, node
    asked = min(message.asked, asked_max)
    for counter in _COUNTERS:
        setattr(kept, counter, max(0, min(getattr(message, counter), asked)))
    kept.proposed = min(kept.proposed, kept.shadowed)
    kept.agreed = min(kept.agreed, kept.proposed)
    kept.ClearField("fallbacks")
    for reason, many in message.fallbacks.items():
        if reason in _REASONS and many > 0:
            kept.fallbacks[reason] = max(0, min(many, asked))
    return kept
