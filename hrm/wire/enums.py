"""The enums of common messages: each member with its number, in both directions."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from hrm.core.vocabulary.model import (
    ApplicationState,
    ContainerState,
    EndCause,
    NodeState,
    WorkloadClass,
)
from hrm.core.vocabulary.priority_class import PriorityClass
from hrm.v1 import common_pb2 as common

__all__ = [
    "APPLICATION_STATE",
    "CONTAINER_STATE",
    "END_CAUSE",
    "NODE_STATE",
    "PRIORITY_CLASS",
    "TO_APPLICATION_STATE",
    "TO_CONTAINER_STATE",
    "TO_END_CAUSE",
    "TO_WORKLOAD_CLASS",
    "WORKLOAD_CLASS",
    "numbers_of",
]

E = TypeVar("E", bound=Enum)


def numbers_of(prefix: str, enum: type[E], message_enum: Any) -> dict[E, Any]:
    """The number of each member, by its name."""
    numbers = dict(message_enum.items())
    return {member: numbers[f"{prefix}_{member.name}"] for member in enum}


WORKLOAD_CLASS = numbers_of("WORKLOAD_CLASS", WorkloadClass, common.WorkloadClass)
APPLICATION_STATE = numbers_of("APPLICATION_STATE", ApplicationState, common.ApplicationState)
CONTAINER_STATE = numbers_of("CONTAINER_STATE", ContainerState, common.ContainerState)
END_CAUSE = numbers_of("END_CAUSE", EndCause, common.EndCause)
PRIORITY_CLASS = numbers_of("PRIORITY_CLASS", PriorityClass, common.PriorityClass)
NODE_STATE = numbers_of("NODE_STATE", NodeState, common.NodeState)

TO_WORKLOAD_CLASS = {number: member for member, number in WORKLOAD_CLASS.items()}
TO_APPLICATION_STATE = {number: member for member, number in APPLICATION_STATE.items()}
TO_CONTAINER_STATE = {number: member for member, number in CONTAINER_STATE.items()}
TO_END_CAUSE = {number: member for member, number in END_CAUSE.items()}
