"""Which class of priority who may have in a queue: what ``maximum_class`` refuses.

An urgent application goes before all normal ones of its queue, and one of the highest class may
interrupt them, for as long as such ones come. Where anybody may declare them, nothing is urgent. So
a queue, or one above it, states up to which class its users go; who administers the one that states
it goes further. What was admitted before stays as it is.
"""

from __future__ import annotations

from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_tree import QueueTree
from hrm.core.vocabulary.priority_class import (
    DECLARED_MAX,
    NORMAL_MAX,
    PriorityClass,
    Standing,
    class_of,
    declared,
)

__all__ = ["class_refusal", "step_refusal"]

_DECLARES = {
    PriorityClass.NORMAL: NORMAL_MAX,
    PriorityClass.URGENT: DECLARED_MAX - 1,
    PriorityClass.HIGHEST: DECLARED_MAX,
}
"""The greatest number that declares each."""


def class_refusal(tree: QueueTree, queue: QueueName, user: str, priority: int) -> str:
    """Why ``user`` may not submit an application with this number; empty: it may."""
    if not tree.specs[queue].has_classes:
        return ""
    wanted, bound = class_of(declared(priority)), tree.class_bound(queue, user)
    if bound is None or wanted.rank >= (most := bound.maximum_class).rank:
        return ""
    return (
        f"priority {priority} declares an application of the class {wanted.value}, and in {queue} "
        f"{user} may have {_up_to(most)} (maximum_class of {bound.name}); set spark.hrm.priority "
        f"to at most {_DECLARES[most]}, or ask an administrator of {bound.name} to submit it, or "
        f"an operator to allow it: hrm queue set {bound.name} --maximum-class {wanted.value}"
    )


def step_refusal(
    tree: QueueTree, queue: QueueName, user: str, before: Standing, after: Standing
) -> str:
    """Why ``user`` may not move an application from one to the other; empty: it may. Within its
    class, whatever that is, anybody may."""
    bound, wanted = tree.class_bound(queue, user), after.priority_class
    if bound is None or wanted.rank >= before.priority_class.rank:
        return ""
    if wanted.rank >= (most := bound.maximum_class).rank:
        return ""
    return (
        f"these steps would make it {wanted.value}, and applications of {queue} may be "
        f"{_up_to(most)} (maximum_class of {bound.name}); request fewer, or ask an administrator "
        f"of {bound.name} or an operator to request them"
    )


def _up_to(most: PriorityClass) -> str:
    return most.value if most is PriorityClass.NORMAL else f"at most {most.value}"
