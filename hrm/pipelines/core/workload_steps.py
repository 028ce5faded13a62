"""What ``PipelinesCore`` returns, for its host to carry out in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.messages.hosted import CallMaster, Listen, StopListening, SubmitToMaster
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import HrmError
from hrm.pipelines.core import cluster_messages as m

__all__ = ["CompleteOpening", "FollowCommand", "WorkloadStep"]


@dataclass(frozen=True, slots=True)
class CompleteOpening:
    """The answer to ``PipelinesCore.open``."""

    call_id: int
    result: ApplicationId | HrmError


@dataclass(frozen=True, slots=True)
class FollowCommand:
    """A command of the workload's ``PipelineCluster``."""

    application_id: ApplicationId
    command: m.ClusterCommand


WorkloadStep: TypeAlias = (
    SubmitToMaster | CallMaster | Listen | StopListening | CompleteOpening | FollowCommand
)
