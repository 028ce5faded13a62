"""Stage 2 of pipeline scheduling: which device of a node, and beside whom.

``load`` makes a ``NodePolicy`` by its name, ``load_hosted`` the same as an agent wants it: a
learned one beside its heuristic, as far as its mode trusts it (``hosted``). ``Stdm``
(``estimates``) is what all of them believe about subtasks; ``predictor`` makes the part of it that
fills in what nobody has measured.

Source: LDWP + IAWP, sections 2.4, 3.3, 3.4 and 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from hrm.core.pipeline.model import NodePolicy
from hrm.errors import InvalidConfig
from hrm.policies.corun.baselines import Mct, MinMin, Pats, Random
from hrm.policies.corun.estimates import Stdm
from hrm.policies.corun.hosted import FiniteScore, HostedPolicy
from hrm.policies.corun.iawp import Iawp
from hrm.policies.corun.ncf import NeuralFilter
from hrm.policies.corun.predictors import Gaussian, MatrixFactors, Mean, Neighbours, Predictor
from hrm.policies.corun.scores import CoRunScore, Cosine, Learned, Oracle, Overload
from hrm.policies.corun.store import load_estimates, save_estimates

__all__ = [
    "DEFAULT_SCORE",
    "HEURISTIC",
    "LEARNED",
    "SCORES",
    "HostedPolicy",
    "Stdm",
    "known",
    "load",
    "load_estimates",
    "load_hosted",
    "predictor",
    "save_estimates",
    "variant",
]

DEFAULT_SCORE = "cosine"
"""What ranked measured pairs best (benchmarks/results/paper-ncf.md)."""
SCORES: dict[str, Callable[..., CoRunScore]] = {
    "cosine": Cosine,
    "overload": Overload,
    "learned": Learned,
    "oracle": Oracle,
}
_POLICIES: dict[str, Callable[..., NodePolicy]] = {
    "random": Random,
    "mct": Mct,
    "min-min": MinMin,
    "pats": Pats,
    "iawp": Iawp,
}
LEARNED = frozenset({"iawp"})
"""Those that decide by what they predict, and for which ``HEURISTIC`` answers."""
HEURISTIC = "mct"
"""With ``cluster.HEURISTIC`` the best pair on validation seeds
(benchmarks/results/paper-ldwp.md)."""
DEFAULT_VARIANT = ("cosine", "guarded")
"""What ``iawp`` alone means, the best on validation seeds. ``iawp:cosine`` is the paper's."""
_GUARDED = {"tail_guard": True, "steal": True}
_PREDICTORS: dict[str, Callable[..., Predictor]] = {
    "mean": Mean,
    "neighbours": Neighbours,
    "matrix": MatrixFactors,
    "gaussian": Gaussian,
    "ncf": NeuralFilter,
}
_Made = TypeVar("_Made")
_SCORE_OPTIONS = {"oracle": "truth", "learned": "slowdowns"}


def known() -> list[str]:
    """The names of all node policies, sorted."""
    return sorted(_POLICIES)


def load(name: str, *, rng: np.random.Generator, **options: Any) -> NodePolicy:
    """The node policy ``name``, for one node.

    Options of all: ``caps`` (``Caps``). Of ``min-min``: ``window``. Of ``iawp``: ``score``
    (``cosine``, ``overload``, ``learned``, ``oracle`` or a ``CoRunScore``), ``truth`` (for
    ``oracle``: a function of a row and the rows beside it), ``slowdowns`` (for ``learned``; without
    it those of the estimates), ``queue_length``, ``patience``, ``tail_guard``, ``steal``.

    Raises:
        InvalidConfig: no policy, score or option of that name.
    """
    make = _POLICIES.get(name)
    if make is None:
        raise InvalidConfig(
            f"no node policy is called {name!r}; choose one of {', '.join(known())}"
        )
    if name == "iawp":
        options["score"] = _score(options.pop("score", DEFAULT_SCORE), options)
    return _made(f"node policy {name!r}", make, {"rng": rng, **options})


def load_hosted(
    name: str,
    *,
    rng: np.random.Generator,
    node: str,
    estimates: Stdm,
    sampled_at: Callable[[], float | None],
    clock_s: Callable[[], float] = time.thread_time,
) -> NodePolicy:
    """The node policy ``name`` for an agent; a learned one is hosted and begins in its shadow.

    ``name`` as for ``variant``; ``sampled_at``, ``clock_s`` as for ``HostedPolicy`` and ``Host``.

    Raises:
        InvalidConfig: no policy or score of that name.
    """
    base, options = variant(name)
    if base not in LEARNED:
        return load(base, rng=rng)
    score: str = options.pop("score")
    told = f"{score}, guarded" if options else score
    finite = FiniteScore(_score(score, {}))
    return HostedPolicy(
        load(base, rng=rng, score=finite, **options),
        load(HEURISTIC, rng=rng),
        node=node,
        model=f"{told} over {estimates.predictor.name}",
        clock_s=clock_s,
        outside=estimates.outside,
        sampled_at=sampled_at,
    )


def variant(spelled: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of ``load`` that a setting spells.

    A name, or ``iawp`` with a co-run score and perhaps ``guarded``, as in ``iawp:cosine:guarded``.
    ``guarded`` turns on ``tail_guard`` and ``steal``, which the paper does not have: a core leaves
    to a GPU what a GPU would end sooner.

    Raises:
        InvalidConfig: the words behind the name are none of these.
    """
    name, *words = spelled.split(":")
    if name not in LEARNED:
        if words:
            raise InvalidConfig(f"node policy {name!r} has no variants; write {name}")
        return name, {}
    scores = [word for word in words or DEFAULT_VARIANT if word != "guarded"]
    if len(scores) > 1 or not set(scores) <= set(SCORES):
        raise InvalidConfig(
            f"no node policy is called {spelled!r}; write {name}, or {name}:SCORE or "
            f"{name}:SCORE:guarded with SCORE one of {', '.join(sorted(SCORES))}"
        )
    guarded = "guarded" in (words or DEFAULT_VARIANT)
    return name, {"score": scores[0] if scores else DEFAULT_SCORE, **(_GUARDED if guarded else {})}


def predictor(name: str, **options: Any) -> Predictor:
    """The predictor ``name``: ``mean``, ``neighbours``, ``matrix``, ``gaussian`` or ``ncf``.

    ``ncf`` needs ``network``, a trained one or its file.

    Raises:
        InvalidConfig: no predictor or option of that name.
    """
    make = _PREDICTORS.get(name)
    if make is None:
        raise InvalidConfig(
            f"no predictor is called {name!r}; choose one of {', '.join(sorted(_PREDICTORS))}"
        )
    return _made(f"predictor {name!r}", make, options)


def _score(wanted: str | CoRunScore, options: dict[str, Any]) -> CoRunScore:
    if not isinstance(wanted, str):
        return wanted
    make = SCORES.get(wanted)
    if make is None:
        raise InvalidConfig(
            f"no co-run score is called {wanted!r}; choose one of {', '.join(sorted(SCORES))}"
        )
    own = _SCORE_OPTIONS.get(wanted)
    given = [options.pop(own)] if own in options else []
    return _made(f"co-run score {wanted!r}", make, {}, *given)


def _made(who: str, make: Callable[..., _Made], options: dict[str, Any], *given: Any) -> _Made:
    try:
        return make(*given, **options)
    except TypeError as error:
        raise InvalidConfig(f"{who} cannot be made: {error}") from error
