"""What a host does with the master's core in which it runs.

The master itself is the AppMaster of drivers (``hrm.core.submission.hosting``) and of workloads of
pipelines (``hrm.pipelines.core.pipelines_core``). Their cores return these steps; the live master
and the simulator carry them out, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.vocabulary.model import ApplicationId

__all__ = ["CallMaster", "Listen", "StopListening", "SubmitToMaster"]


@dataclass(frozen=True, slots=True)
class SubmitToMaster:
    """An event for the master's core. ``because``: the decision of the
    submissions' core that it carries out, if it is one."""

    event: e.MasterEvent
    because: m.Command | None = None


@dataclass(frozen=True, slots=True)
class CallMaster:
    """The same, with a reply, for the host's ``reply_received``. The interpreter that makes the
    call sets its call id, and what processes need to start in ``launch`` of a registration.
    ``number``: of the call, where a host has several for one application."""

    application_id: ApplicationId
    event: e.ApplicationRegistered | e.ApplicationAttached
    number: int = 0


@dataclass(frozen=True, slots=True)
class Listen:
    """From now on notices of this application go to the host's ``notice_received``."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class StopListening:
    application_id: ApplicationId
