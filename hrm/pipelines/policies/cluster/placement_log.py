"""What a guarded ``ldwp-set`` has seen of this cluster: decisions, whoever made them, and outcomes.

Kept in every mode, also in shadow, where the heuristic decides: what its choices led to is what the
network can learn from before it is trusted (``hrm policy train ldwp-set --from-shadow``). A record
is the state, the chosen candidate, the task's slow-down, its response over its ideal, and whose
task it was; the latest ``RECORDS_MAX`` are kept. In the file users are numbers. Features come from
what workers report, which is their users' word: a reader looks at ``is_sound``.
"""

from __future__ import annotations

import io
import math
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hrm.errors import InvalidConfig, NotFound
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.policies.cluster.scale_free import (
    MOST,
    NODE_INPUTS,
    SET_SCHEMA,
    TASK_INPUTS,
    SetState,
)

__all__ = ["RECORDS_MAX", "PlacementLog", "PlacementRecord", "read_records"]

RECORDS_MAX = 20_000
_PENDING_MAX = 100_000
_SLACK = 1e-5


class PlacementRecord(NamedTuple):
    """``action``: index of the chosen node in ``state.rows``; ``slowdown``: inf for a failure;
    ``user``: of the task, empty in a log of an older HRM."""

    state: SetState
    action: int
    slowdown: float
    user: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether a cluster can have been so: every feature is within ``MOST``, and a time
        positive."""
        features = np.concatenate((self.state.nodes.ravel(), self.state.task))
        return self.slowdown > 0.0 and bool((np.abs(features) <= MOST + _SLACK).all())


class PlacementLog:
    """``changes`` increases with each record."""

    def __init__(self) -> None:
        self.records: deque[PlacementRecord] = deque(maxlen=RECORDS_MAX)
        self.changes = 0
        self._pending: dict[TaskId, tuple[SetState, int, float, str]] = {}

    def placed(
        self, task_id: TaskId, state: SetState, row: int, ideal_s: float, user: str = ""
    ) -> None:
        """The task went to ``row`` of the view; one that is not a candidate is left out."""
        self._pending.pop(task_id, None)
        found = np.flatnonzero(state.rows == row)
        if len(found) and ideal_s > 0.0 and math.isfinite(ideal_s):
            self._pending[task_id] = state, int(found[0]), ideal_s, user
            if len(self._pending) > _PENDING_MAX:
                del self._pending[next(iter(self._pending))]

    def ended(self, task_id: TaskId, *, response_s: float, ok: bool) -> None:
        """The task is over, or has left its node."""
        known = self._pending.pop(task_id, None)
        if known is not None:
            state, action, ideal_s, user = known
            self.changes += 1
            slowdown = response_s / ideal_s if ok else math.inf
            self.records.append(PlacementRecord(state, action, slowdown, user))

    def dump(self) -> bytes:
        """The records as one file without pickles."""
        records = list(self.records)
        held = io.BytesIO()
        numbers = {
            user: number for number, user in enumerate(dict.fromkeys(r.user for r in records))
        }
        np.savez_compressed(
            held,
            schema=np.frombuffer(SET_SCHEMA.encode(), dtype=np.uint8),
            nodes=np.concatenate([r.state.nodes for r in records])
            if records
            else np.zeros((0, len(NODE_INPUTS)), np.float32),
            counts=np.array([len(r.state.rows) for r in records], dtype=np.int64),
            tasks=np.array([r.state.task for r in records], np.float32).reshape(
                -1, len(TASK_INPUTS)
            ),
            actions=np.array([r.action for r in records], dtype=np.int64),
            slowdowns=np.array([r.slowdown for r in records], dtype=np.float64),
            users=np.array([numbers[r.user] for r in records], dtype=np.int64),
        )
        return held.getvalue()


def read_records(path: Path) -> list[PlacementRecord]:
    """The records of a file of ``PlacementLog.dump``, oldest first, sound or not.

    Raises:
        NotFound: there is none.
        InvalidConfig: it is damaged, or of other features.
    """
    try:
        with np.load(path, allow_pickle=False) as held:
            schema = held["schema"].tobytes().decode()
            nodes, tasks, counts = held["nodes"], held["tasks"], held["counts"]
            actions, slowdowns = held["actions"], held["slowdowns"]
            users = held["users"].astype("U20") if "users" in held else np.full(len(counts), "")
    except FileNotFoundError:
        raise NotFound(
            f"there is no log of placements {path}; a master with pipeline_policy = 'ldwp-set' "
            f"writes policies/ldwp-set.placements.npz in its state directory"
        ) from None
    except Exception as error:
        raise InvalidConfig(
            f"{path} is no log of placements ({type(error).__name__}: {error})"
        ) from error
    if schema != SET_SCHEMA:
        raise InvalidConfig(
            f"{path} has the features {schema}, this HRM has {SET_SCHEMA}: collect it again"
        )
    sound = (
        counts.ndim == 1
        and nodes.shape == (int(counts.sum()), len(NODE_INPUTS))
        and tasks.shape == (len(counts), len(TASK_INPUTS))
        and actions.shape == slowdowns.shape == users.shape == counts.shape
        and bool(((actions >= 0) & (actions < counts)).all())
    )
    if not sound:
        raise InvalidConfig(f"{path} is a damaged log of placements; remove it")
    ends = np.cumsum(counts)
    return [
        PlacementRecord(
            SetState(nodes[end - count : end], task, np.arange(count)),
            int(action),
            float(slowdown),
            str(user),
        )
        for end, count, task, action, slowdown, user in zip(
            ends, counts, tasks, actions, slowdowns, users, strict=True
        )
    ]
