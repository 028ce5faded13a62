"""Which policy orders what waits for a shared GPU, by what settings say.

``queue``: none, containers start as they came. ``dqngpu``: what looks ahead. ``dqngpu:NAME``:
another one of ``HEURISTICS``. ``dqngpu:learned``: a trained model, behind its guard, which what
looks ahead replaces wherever the guard has a doubt, and everywhere in its shadow mode. A file that
is missing or holds no such model is a doubt, too: containers start as they would without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hrm.errors import HrmError, InvalidConfig
from hrm.policies import model_files
from hrm.policies.guard import GuardMode
from hrm.policies.shared_gpu.features import SHARING_SCHEMA
from hrm.policies.shared_gpu.guarded import MODEL_KIND, GuardedGpuSharing
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy
from hrm.policies.shared_gpu.learned import LearnedGpuSharing
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.policies.shared_gpu.registry import HEURISTICS

__all__ = ["QUEUE", "sharing_policy"]

QUEUE = "queue"


def sharing_policy(
    spec: str,
    *,
    model: Path | None,
    mode: str,
    node: str,
    clock_s: Callable[[], float] = time.thread_time,
) -> GpuSharingPolicy | None:
    """The policy of a node's setting ``gpu_waiters``; None: its queues' own order.

    Args:
        model, mode: of a learned one, its file and a ``GuardMode``.
        clock_s: measures what a learned one takes.

    Raises:
        InvalidConfig: there is no such policy, or no model is named for it.
    """
    name, _, which = spec.partition(":")
    if spec == QUEUE or spec == "dqngpu" or (name == "dqngpu" and which in HEURISTICS):
        if model is not None:
            raise InvalidConfig(
                f"gpu_waiters_model names {model}, which gpu_waiters = {spec!r} does not use; set "
                f"gpu_waiters = 'dqngpu:learned', or leave the model out"
            )
        if spec == QUEUE:
            return None
        return HEURISTICS[which]() if which else LookAhead()
    if spec != "dqngpu:learned":
        raise InvalidConfig(
            f"gpu_waiters is {spec!r}; write queue, dqngpu, dqngpu:learned, or dqngpu:NAME with "
            f"one of {', '.join(sorted(HEURISTICS))}"
        )
    if model is None:
        raise InvalidConfig(
            "gpu_waiters = 'dqngpu:learned' needs a model, and none ships: train one with "
            "python -m hrm.learn.dqngpu --out FILE, and name it in gpu_waiters_model"
        )
    made, learned, missing = None, None, ""
    try:
        found = model_files.read(model, kind=MODEL_KIND)
        # One of other features is never asked; its guard says so.
        learned = LearnedGpuSharing(found) if found.schema == SHARING_SCHEMA else None
        made = found
    except HrmError as error:
        missing = f"gpu_waiters_model: {error.message}"
    return GuardedGpuSharing(
        made,
        learned,
        gpu=node,
        clock_s=clock_s,
        heuristic=LookAhead(),
        mode=GuardMode(mode),
        missing=missing,
    )
