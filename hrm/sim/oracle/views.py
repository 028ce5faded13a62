"""A scheduler's view is renewed, not copied; what is renewed must be what a copy would be.

The oracle keeps a view of its own over each life of the master. Whenever a scheduler has chosen, it
is renewed, compared with a fresh one, and then gets tentative reservations, as in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.vocabulary.model import ContainerId, WorkloadClass

__all__ = ["Views"]

_COLUMNS = (
    "free",
    "total",
    "stream_headroom",
    "waiting_stream",
    "waiting_batch",
    "version",
    "waiting_limit",
    "open",
    "gpu_only",
)
_SPENT = Entry(ContainerId("nobody"), WorkloadClass.BATCH, (1, 256, 0, 1), 1.0)


class Views:
    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._view: ClusterView | None = None

    def master_began(self) -> None:
        self._view = None

    def after(self, core: MasterCore, commands: Iterable[c.MasterCommand], now: float) -> None:
        if not any(isinstance(command, c.ProposeClaims) for command in commands):
            return
        state = core.master_state.state
        if self._view is None:
            self._view = state.view()
        view, fresh = self._view, state.view()
        view.renew()
        for name in _COLUMNS:
            renewed, copied = getattr(view, name), getattr(fresh, name)
            if not np.array_equal(renewed, copied):
                self._violated(f"a renewed view has {name} as {renewed}, a fresh one as {copied}")
        for unit_id, row in state.rows.items():
            if view.image(row) != fresh.image(row):
                self._violated(f"a renewed view shows {unit_id} as {view.image(row)}")
        for row in state.rows.values():
            if view.open[row]:
                view.apply(row, _SPENT, now)
