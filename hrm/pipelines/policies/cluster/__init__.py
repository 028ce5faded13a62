"""Stage 1 of placing pipeline tasks: policies that choose the node of a whole task, by name.

``random``, ``least-loaded``, ``min-wait``, ``demand``, ``ect`` and ``min-min`` are heuristics
(``heuristics``); ``ldwp`` and ``ldwp-set`` are learned (``ldwp``), and run under a guard that falls
back to ``HEURISTIC`` (``guarded``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hrm.errors import InvalidConfig
from hrm.pipelines.core.model import ClusterPolicy
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy
from hrm.pipelines.policies.cluster.heuristics import (
    ClusterMinMin,
    ClusterMinWait,
    ClusterRandom,
    Demand,
    Ect,
    LeastLoaded,
)
from hrm.pipelines.policies.cluster.ldwp import Ldwp, LdwpSet, schema_wanted
from hrm.policies import model_files
from hrm.policies.guard import GuardBounds, GuardMode
from hrm.policies.model_files import Model

__all__ = ["HEURISTIC", "HEURISTICS", "LEARNED", "load"]

HEURISTICS = ("random", "least-loaded", "min-wait", "demand", "ect", "min-min")
LEARNED = ("ldwp", "ldwp-set")
HEURISTIC = "min-wait"
"""The fallback of each learned policy; with ``corun.HEURISTIC`` the best pair on validation seeds
(benchmarks/results/paper-ldwp-figures.md)."""


def load(
    name: str,
    *,
    rng: np.random.Generator,
    model: Model | Path | None = None,
    state_dir: Path | None = None,
    guarded: bool = True,
    mode: GuardMode = GuardMode.SHADOW,
    heartbeat_s: float = 1.0,
    clock_s: Callable[[], float] = time.thread_time,
    bounds: GuardBounds | None = None,
) -> ClusterPolicy:
    """The cluster policy ``name``.

    Args:
        rng: of ``random``; the others do not use it.
        model: of a learned policy; None: the newest of ``state_dir`` and of HRM's own.
        guarded: False gives the learned policy itself, without fallback, for experiments.
        mode, heartbeat_s, clock_s, bounds: of the guard (``hrm.policies.guard``).

    Raises:
        InvalidConfig: no such policy; or its model is damaged or of another shape.
        NotFound: it is a learned one, and there is no model.
    """
    if name in LEARNED:
        held = _model(name, model, state_dir)
        if not guarded:
            return _learned(held)
        # Weights of an older HRM must not keep a master from starting: they are not used.
        policy = _learned(held) if held.schema == schema_wanted(held) else None
        return GuardedClusterPolicy(
            held,
            policy,
            ClusterMinWait(),
            clock_s=clock_s,
            heartbeat_s=heartbeat_s,
            mode=mode,
            bounds=bounds,
        )
    if name == "random":
        return ClusterRandom(rng)
    for kind in (LeastLoaded, ClusterMinWait, Demand, Ect, ClusterMinMin):
        if kind.name == name:
            return kind()
    raise InvalidConfig(
        f"no cluster policy is called {name!r}; name one of {', '.join((*HEURISTICS, *LEARNED))}"
    )


def _model(name: str, model: Model | Path | None, state_dir: Path | None) -> Model:
    if isinstance(model, Path):
        return model_files.read(model, kind=name)
    if model is None:
        return model_files.find(name, state_dir=state_dir)
    if model.kind != name:
        raise InvalidConfig(f"model {model} is of kind {model.kind!r}, not {name!r}")
    return model


def _learned(model: Model) -> Ldwp | LdwpSet:
    return LdwpSet(model) if model.kind == LdwpSet.name else Ldwp(model)
