"""Stage 2 of pipeline scheduling: which device of a node, shared with which other subtasks.

``load`` makes a ``NodePolicy`` by its name, ``load_guarded`` the same for an agent: a learned one
with its heuristic, trusted as far as its mode allows (``guarded``). All of them use the estimates
of ``Stdm`` (``estimates``); ``predictors`` fill in what was not measured.

Source: LDWP + IAWP, sections 2.4, 3.3, 3.4 and 4.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from hrm.errors import InvalidConfig
from hrm.pipelines.core.model import NodePolicy
from hrm.pipelines.policies.corun.baselines import CorunMinMin, CorunRandom, Mct, Pats
from hrm.pipelines.policies.corun.dqngpu import DqnGpu
from hrm.pipelines.policies.corun.guarded import FiniteScore, GuardedNodePolicy
from hrm.pipelines.policies.corun.iawp import Iawp
from hrm.pipelines.policies.corun.scores import (
    CoRunScore,
    Cosine,
    LearnedLoss,
    Overload,
    Sensitivity,
)
from hrm.pipelines.policies.corun.store import load_estimates
from hrm.pipelines.policies.corun.subtask_estimates import Stdm
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy
from hrm.policies.shared_gpu.registry import HEURISTICS

__all__ = [
    "DEFAULT_SCORE",
    "DEFAULT_SHARING",
    "HEURISTIC",
    "LEARNED",
    "SCORES",
    "GuardedNodePolicy",
    "Stdm",
    "known",
    "load",
    "load_estimates",
    "load_guarded",
    "parse",
]

DEFAULT_SCORE = "sensitivity"
"""The score that ranked measured pairs best under MPS and under time slicing alike, where pairs of
their kinds had run (benchmarks/results/pipelines-corun-scores.md). What it goes by before any
co-run is that of the node's way of sharing (``pair_prior``)."""
SCORES: dict[str, Callable[[], CoRunScore]] = {
    "cosine": Cosine,
    "overload": Overload,
    "learned": LearnedLoss,
    "sensitivity": Sensitivity,
}
_POLICIES: dict[str, Callable[..., NodePolicy]] = {
    "random": CorunRandom,
    "mct": Mct,
    "min-min": CorunMinMin,
    "pats": Pats,
    "iawp": Iawp,
    "dqngpu": DqnGpu,
}
DEFAULT_SHARING = "look-ahead"
"""Of ``dqngpu``: the policy with the shortest makespans where slow-downs of pairs are known
(benchmarks/results/paper-dqngpu.md)."""
LEARNED = frozenset({"iawp", "dqngpu"})
"""Policies that decide by predictions, with ``HEURISTIC`` as their fallback."""
HEURISTIC = "mct"
"""With ``cluster.HEURISTIC`` the best pair on validation seeds
(benchmarks/results/paper-ldwp-figures.md)."""


def known() -> list[str]:
    """The names of all node policies, sorted."""
    return sorted(_POLICIES)


def load(name: str, *, rng: np.random.Generator, **options: Any) -> NodePolicy:
    """The node policy ``name``, for one node.

    Options of all: ``caps`` (``Caps``). Of ``iawp``: ``score``
    (one of ``SCORES`` or a ``CoRunScore``), ``queue_length``, ``patience``, ``tail_guard``,
    ``steal``, ``gain_min``. Of ``dqngpu``: ``sharing`` (one of
    ``shared_gpu.registry.HEURISTICS``, or a ``GpuSharingPolicy``).

    Raises:
        InvalidConfig: no policy, score or option of that name.
    """
    make = _make(name)
    if name == "iawp":
        options["score"] = _score(options.get("score", DEFAULT_SCORE))
    elif name == "dqngpu":
        options["sharing"] = _sharing(options.get("sharing", DEFAULT_SHARING))
    try:
        return make(rng=rng, **options)
    except TypeError as error:
        raise InvalidConfig(f"node policy {name!r} cannot be made: {error}") from error


def _make(name: str) -> Callable[..., NodePolicy]:
    if name not in _POLICIES:
        raise InvalidConfig(
            f"no node policy is called {name!r}; choose one of {', '.join(known())}"
        )
    return _POLICIES[name]


def parse(spec: str, scores: Collection[str] = SCORES) -> tuple[str, dict[str, Any]]:
    """``spec`` in a setting, as a name and options of ``load``. ``scores``: those there are.

    A co-run score may follow the name (``iawp:overload``), ``guarded``, which turns on
    ``tail_guard`` and ``steal`` and sets ``gain_min`` to 0 (``iawp:guarded``,
    ``iawp:learned:guarded``), and ``gain=G`` for a ``gain_min`` of G (``iawp:guarded:gain=0.1``).
    After ``dqngpu`` there may be the policy that chooses what shares a GPU (``dqngpu:tetris``).

    Raises:
        InvalidConfig: no policy of that name, or it has no such word, or one of its kind already; G
            is no number from -1 to 1.
    """
    name, *words = spec.split(":")
    _make(name)
    options: dict[str, Any] = {}
    given: set[str] = set()
    kind: str
    more: dict[str, Any]
    for word in sorted(words, key=lambda word: word != "guarded"):
        if name == "dqngpu" and word in HEURISTICS:
            kind, more = "sharing", {"sharing": word}
        elif name == "iawp" and word == "guarded":
            kind, more = word, {"tail_guard": True, "steal": True, "gain_min": 0.0}
        elif name == "iawp" and word.startswith("gain="):
            kind, more = "gain", {"gain_min": _gain(spec, word)}
        elif name == "iawp" and word in scores:
            kind, more = "score", {"score": word}
        else:
            raise InvalidConfig(
                f"node policy {spec!r}: {name} has no {word!r}; {_choices(name, scores)}"
            )
        if kind in given:
            raise InvalidConfig(f"node policy {spec!r}: {word!r} is one {kind} too many; keep one")
        given.add(kind)
        options |= more
    return name, options


def _choices(name: str, scores: Collection[str]) -> str:
    if name == "dqngpu":
        return f"write dqngpu, or dqngpu:NAME with one of {', '.join(sorted(HEURISTICS))}"
    if name == "iawp":
        return f"after iawp: may stand guarded, gain=G, and one of {', '.join(sorted(scores))}"
    return f"write {name} alone"


def _gain(spec: str, word: str) -> float:
    try:
        gain = float(word.removeprefix("gain="))
    except ValueError:
        gain = math.nan
    if not -1.0 <= gain <= 1.0:
        raise InvalidConfig(
            f"node policy {spec!r}: {word} is no number from -1 to 1; write gain=0.1 to let a "
            f"subtask join others on a GPU where a tenth more work is done together"
        )
    return gain


def load_guarded(
    spec: str,
    *,
    rng: np.random.Generator,
    node: str,
    estimates: Stdm,
    sampled_at_s: Callable[[], float | None],
    clock_s: Callable[[], float] = time.thread_time,
) -> NodePolicy:
    """The node policy ``spec`` (``parse``) for an agent; a learned one is guarded and begins in
    shadow mode.

    ``sampled_at_s``, ``clock_s``: as for ``GuardedNodePolicy`` and ``PolicyGuard``.

    Raises:
        InvalidConfig: no policy or score of that name.
    """
    name, options = parse(spec)
    if name not in LEARNED:
        return load(name, rng=rng, **options)
    if name == "dqngpu":
        model = f"{options.get('sharing', DEFAULT_SHARING)} over recorded profiles"
    else:
        score = options.pop("score", DEFAULT_SCORE)
        options["score"] = FiniteScore(_score(score))
        guarded = "guarded " if "tail_guard" in options else ""
        model = f"{guarded}{score} over {estimates.predictor.name}"
    return GuardedNodePolicy(
        load(name, rng=rng, **options),
        load(HEURISTIC, rng=rng),
        node=node,
        model=model,
        clock_s=clock_s,
        outside=estimates.outside,
        sampled_at_s=sampled_at_s,
    )


def _sharing(wanted: str | GpuSharingPolicy) -> GpuSharingPolicy:
    if not isinstance(wanted, str):
        return wanted
    if wanted not in HEURISTICS:
        raise InvalidConfig(
            f"no policy for a shared GPU is called {wanted!r}; choose one of "
            f"{', '.join(sorted(HEURISTICS))}"
        )
    return HEURISTICS[wanted]()


def _score(wanted: str | CoRunScore) -> CoRunScore:
    if not isinstance(wanted, str):
        return wanted
    if wanted not in SCORES:
        raise InvalidConfig(
            f"no co-run score is called {wanted!r}; choose one of {', '.join(sorted(SCORES))}"
        )
    return SCORES[wanted]()
