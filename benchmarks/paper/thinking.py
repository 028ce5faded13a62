"""A placement policy that takes long to choose: min-wait, after a pause.

It stands for one whose computation does not use this machine's cores, such as a model on an
accelerator or across the network. Its caller waits for it, as for any policy.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.common import REPOSITORY
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.policies import GROUP
from hrm.policies.min_wait import MinWait

__all__ = ["THINK_S", "Thinking", "settings"]

THINK_S = 0.020
"""Four times what a job of 40 costs the master otherwise: choice is four fifths, as in the
``choice-bound`` experiments of virtual time."""


class Thinking(MinWait):
    """See ``MinWait``."""

    name = "thinking"

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        time.sleep(THINK_S)
        return super().place(view, placement, now)


def settings(directory: Path) -> dict[str, str]:
    """Variables with which masters and schedulers use it, as one of an installed package."""
    package = directory / "hrm_benchmark_thinking-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: hrm-benchmark-thinking\n")
    point = f"{Thinking.name} = {__name__}:{Thinking.__name__}"
    (package / "entry_points.txt").write_text(f"[{GROUP}]\n{point}\n")
    return {
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(directory))),
        "HRM_MASTER_PLACEMENT_POLICY": Thinking.name,
        "HRM_SCHEDULER_PLACEMENT_POLICY": Thinking.name,
    }
