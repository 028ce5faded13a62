"""Which demands no unit can take now, known without examining all units again.

After a container's end the jobs that wait are tried again. Most of them want what is still not
there, and each round that finds nothing examines every unit. But where one has found that no
unit has capacity for a demand, nor a place in its queue, only units that have changed since can
have any: a few rows of the state's log. So a round for such a demand is spared.

A demand with a requirement, or with nodes to avoid, is one of its own: that no node which is left
has capacity says nothing of the others. The other way round it does.

Limits: batch that may go anywhere. Where places in queues are refused for the wait there, which
shrinks with time, or where the table itself has changed, nothing is known.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.columns import FREE, WAITERS_MAX, WAITING_BATCH, WAITING_STREAM, Bools
from hrm.core.vocabulary.feasibility import Vector, fits, fitting_rows, leaves
from hrm.core.vocabulary.model import NodeName
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["Exhaustion"]

_CHANGED_MAX = 64
_DEMANDS_KEPT = 256
_NO_NODES: frozenset[NodeName] = frozenset()

_Known: TypeAlias = tuple[Vector, NodeRequirement | None, frozenset[NodeName]]


class Exhaustion:
    """What is known of one state.

    Invariant: for each demand of ``known``, no row had a chance when the log had the position that
    is kept with it.

    Args:
        waiting_limit: how many may wait at a unit.
    """

    def __init__(self, state: SharedState, waiting_limit: int) -> None:
        self._state = state
        self._waiting_limit = waiting_limit
        self.known: dict[_Known, tuple[int, int]] = {}
        self._rows: dict[tuple[Vector, frozenset[NodeName]], Bools] = {}
        self._rows_at = -1

    def note(
        self,
        demand: Vector,
        requires: NodeRequirement | None = None,
        avoid: frozenset[NodeName] = _NO_NODES,
    ) -> None:
        """A round has found no place for ``demand`` on nodes that meet ``requires`` and are not to
        be avoided: remember it if all their rows show why."""
        if self.holds(demand, requires, avoid):
            return
        if len(self.known) >= _DEMANDS_KEPT:
            self.known.clear()
        key = (demand, requires, avoid)
        self.known.pop(key, None)
        if not self._chances(key).any():
            self.known[key] = (self._state.shape, self._state.position)

    def holds(
        self,
        demand: Vector,
        requires: NodeRequirement | None = None,
        avoid: frozenset[NodeName] = _NO_NODES,
    ) -> bool:
        """Is it known that no row of a node that meets ``requires``, and is not to be avoided, can
        take one more of ``demand``, now or in its queue?"""
        if (avoid or requires is not None) and self.holds(demand):
            return True
        key = (demand, requires, avoid)
        known = self.known.get(key)
        if known is None:
            return False
        state = self._state
        now = state.position
        shape, position = known
        if shape != state.shape or position < state.log_start:
            del self.known[key]
            return False
        if position == now:
            return True
        changed = set(state.log[position - state.log_start :])
        if avoid:
            allowed = self._allowed(key)
            changed = {row for row in changed if allowed[row]}
        elif requires is not None:
            suited = state.suited(requires)
            changed = {row for row in changed if suited[row]}
        if len(changed) > _CHANGED_MAX or any(self._has_chance(demand, row) for row in changed):
            return False
        self.known[key] = (shape, now)
        return True

    def violations(self) -> list[str]:
        """What is taken for known and is not so; for tests and simulators."""
        return [
            f"a unit could take {key[0]}, which counts as exhausted"
            for key in list(self.known)
            if self.holds(*key) and self._chances(key).any()
        ]

    def _allowed(self, key: _Known) -> Bools:
        """The rows to which a view would open the demand; see ``ClusterView.avoid``. Those of a
        demand without a requirement are kept until rows come, go, open or close."""
        demand, requires, avoid = key
        if requires is not None:
            return self._opened(key)
        if self._rows_at != self._state.shape or len(self._rows) >= _DEMANDS_KEPT:
            self._rows.clear()
            self._rows_at = self._state.shape
        rows = self._rows.get((demand, avoid))
        if rows is None:
            rows = self._rows[demand, avoid] = self._opened(key)
        return rows

    def _opened(self, key: _Known) -> Bools:
        demand, requires, avoid = key
        state = self._state
        rows = state.open & ~state.gpu_only
        if requires is not None:
            rows = rows & state.suited(requires)
        if avoid:
            rest = rows & ~state.rows_of(avoid)
            if (rest & fitting_rows(demand, state.total)).any():
                return rest
        return rows

    def _chances(self, key: _Known) -> Bools:
        """At which rows one more batch container could start or wait."""
        demand, _, _ = key
        state, table = self._state, self._state.table
        waiting = table[:, WAITING_STREAM] + table[:, WAITING_BATCH]
        starts = (waiting == 0) & fitting_rows(demand, table[:, FREE])
        if state.yielding_rows:
            starts |= state.yields & fitting_rows(demand, state.available())
        limit = np.minimum(self._waiting_limit, table[:, WAITERS_MAX])
        waits = (waiting < limit) & fitting_rows(demand, state.total)
        chances: Bools = self._allowed(key) & (starts | waits)
        return chances

    def _has_chance(self, demand: Vector, row: int) -> bool:
        """``_chances`` of one row."""
        state = self._state
        if not state.open[row] or state.gpu_only[row]:
            return False
        numbers = state.table[row].tolist()
        waiting = numbers[WAITING_STREAM] + numbers[WAITING_BATCH]
        if not waiting and fits(demand, tuple(numbers[FREE])):
            return True
        if state.yields[row] and leaves((state.free[row] + state.coming[row]).tolist(), demand):
            return True
        limit = min(self._waiting_limit, numbers[WAITERS_MAX])
        return waiting < limit and fits(demand, tuple(state.total[row].tolist()))
