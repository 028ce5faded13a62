"""Ids of applications: ``app-SECOND-EPOCH-NUMBER``, by the time, the master's epoch and a count."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hrm.core.vocabulary.model import ApplicationId

__all__ = ["application_id_of", "epoch_of"]

_FORM = re.compile(r"app-[0-9]{14}-([1-9][0-9]{0,17})-(?:[0-9]{4}|[1-9][0-9]{4,17})")


def application_id_of(now: float, epoch: int, number: int) -> ApplicationId:
    """The id of the application that is the ``number``-th of a master."""
    # To the second: clusters that share a directory of event logs do not share names.
    second = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d%H%M%S")
    return ApplicationId(f"app-{second}-{epoch}-{number:04d}")


def epoch_of(application_id: ApplicationId) -> int | None:
    """The epoch of the master that made this id; None: no master makes such an id."""
    found = _FORM.fullmatch(application_id)
    return int(found[1]) if found else None
