"""What a co-run score is worth on measured co-runs: does it rank them, does choosing by it pay?

Three figures for each score and each way of sharing:

``each``    Spearman's rank correlation of what the score says of a job in a set with the slow-down
            of that job. Scores that see both sides of a set alike say the same of all its jobs.
``joint``   the same of the score of a set, with the excess over the times alone of all its jobs
``regret``  choose for each job the set with the best score: the joint loss above that of the best
            set, relative to choosing at random (0: always the best, 1: as good as random)

Scores that learn are tried *cold*, before any co-run, and *seen*: each set after those of the other
half of the table were observed. A set that was measured twice is in one half with both: seen, it
would be known already. Intervals are of 95 %, over jobs drawn with replacement (a set
counts as often as all of its jobs were drawn together): sets of one job resemble each other.

Sources: LDWP + IAWP, section 3.4; Spearman (1904); the bootstrap of two crossed factors after Owen
(2007), "The pigeonhole bootstrap".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hrm.pipelines.policies.corun.corun_table import CoRun, CoRunTable, TabledEstimates
from hrm.pipelines.policies.corun.gpu_sharing import GpuSharing
from hrm.pipelines.policies.corun.pair_effects import Ridges
from hrm.pipelines.policies.corun.predictors import Floats
from hrm.pipelines.policies.corun.scores import CoRunScore, PredictsVictims

__all__ = [
    "RESAMPLES",
    "Figure",
    "ScoreQuality",
    "halves_of",
    "pair_of_kinds",
    "qualities",
    "rank_correlation",
    "regret",
    "same_set",
]

RESAMPLES = 400
FOLDS = 2
_Counts = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Figure:
    """A value, and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreQuality:
    """What one score is worth; see the module. None: it says the same of all, so it ranks none."""

    score: str
    sharing: GpuSharing
    seen: bool
    each: Figure | None
    joint: Figure | None
    regret: Figure | None
    runs: int
    choices: int


def same_set(run: CoRun) -> Hashable:
    """Equal for runs of the same jobs."""
    return tuple(sorted(run.rows))


def pair_of_kinds(run: CoRun) -> Hashable:
    """Equal for runs of the same kinds of jobs: of two in different halves, no job of a kind was
    seen next to one of the other's kind."""
    return tuple(sorted(row.kind for row in run.rows))


def halves_of(
    runs: Sequence[CoRun],
    rng: np.random.Generator,
    together: Callable[[CoRun], Hashable] = same_set,
) -> _Counts:
    """The half, 0 or 1, of each run, drawn; runs for which ``together`` is equal share one."""
    numbers: dict[Hashable, int] = {}
    of_run = [numbers.setdefault(together(run), len(numbers)) for run in runs]
    halves: _Counts = rng.permutation(len(numbers)) % FOLDS
    return halves[of_run]


def qualities(
    table: CoRunTable,
    scores: Mapping[str, Callable[[], CoRunScore]],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    ridges: Ridges | None = None,
    share: float = 1.0,
    together: Callable[[CoRun], Hashable] = same_set,
    on_progress: Callable[[float, str], None] = lambda share, doing: None,
) -> list[ScoreQuality]:
    """Of every score, in each mode of ``table``; learning ones cold and seen.

    Args:
        seed: of the halves and of the resampled jobs.
        ridges: of the score ``sensitivity``.
        share: of the other half that is observed before a set is judged, 0..1.
        together: see ``halves_of``. With ``pair_of_kinds`` no set is judged that is like one that
            was seen.
        on_progress: is called before each score, with the share that is done, 0..1, and with what
            comes, and after the last.
    """
    found = []
    modes = table.modes()
    for done, mode in enumerate(modes):
        runs = [run for run in table.runs if run.sharing is mode]
        cases = _Cases(runs, np.random.default_rng([seed, 0xB0]), resamples)
        halves = halves_of(runs, np.random.default_rng([seed, 0xFD]), together)
        for number, (name, make) in enumerate(scores.items()):
            on_progress((done + number / len(scores)) / len(modes), f"{mode.value}, {name}")
            score = make()
            cold = [TabledEstimates(table, mode, ridges)] * len(runs)
            found.append(_quality(name, score, cold, cases, seen=False))
            if isinstance(score, PredictsVictims):
                taught = [
                    _taught(table, mode, _some(runs, halves != half, share), ridges)
                    for half in range(FOLDS)
                ]
                seen = [taught[half] for half in halves]
                found.append(_quality(name, score, seen, cases, seen=True))
    on_progress(1.0, "done")
    return found


def _some(runs: Sequence[CoRun], mask: npt.NDArray[np.bool_], share: float) -> list[CoRun]:
    """``share`` of those in ``mask``, evenly spaced."""
    chosen = [run for run, is_in in zip(runs, mask, strict=True) if is_in]
    ends = np.floor(share * np.arange(len(chosen) + 1) + 1e-9)
    return [run for run, more in zip(chosen, np.diff(ends), strict=True) if more]


def _taught(
    table: CoRunTable, mode: GpuSharing, runs: Sequence[CoRun], ridges: Ridges | None
) -> TabledEstimates:
    """Estimates that have seen ``runs``."""
    estimates = TabledEstimates(table, mode, ridges)
    estimates.observe(runs)
    return estimates


class _Cases:
    """The measured side: of each set and each job in it, with the resampled weights."""

    def __init__(self, runs: Sequence[CoRun], rng: np.random.Generator, resamples: int) -> None:
        self.runs = runs
        rows = sorted({row for run in runs for row in run.rows})
        number = {row: place for place, row in enumerate(rows)}
        self.members = [(run, place) for run in runs for place in range(len(run.rows))]
        self.slowdowns = np.array([run.slowdowns[place] for run, place in self.members])
        self.losses = np.array([sum(run.slowdowns) - len(run.rows) for run in runs])
        sizes = [len(run.rows) for run in runs]
        self.of_run: _Counts = np.repeat(np.arange(len(runs)), sizes)
        groups: dict[int, list[int]] = {}
        for place, run in enumerate(runs):
            for row in set(run.rows):
                groups.setdefault(number[row], []).append(place)
        self.choices = {row: np.array(group) for row, group in groups.items() if len(group) > 1}
        self.drawn = [
            np.bincount(rng.integers(len(rows), size=len(rows)), minlength=len(rows))
            for _ in range(resamples)
        ]
        distinct = [sorted({number[row] for row in run.rows}) for run in runs]
        self.weights = [
            np.array([int(np.prod(drawn[own])) for own in distinct]) for drawn in self.drawn
        ]


def _quality(
    name: str,
    score: CoRunScore,
    estimates: Sequence[TabledEstimates],
    cases: _Cases,
    *,
    seen: bool,
) -> ScoreQuality:
    own, as_newcomer = [], []
    for place, (run, member) in zip(cases.of_run, cases.members, strict=True):
        row, known = run.rows[member], estimates[place]
        others = (*run.rows[:member], *run.rows[member + 1 :])
        newcomer = score.score(row, others, known)
        as_newcomer.append(newcomer)
        own.append(
            score.own(row, others, known) if isinstance(score, PredictsVictims) else newcomer
        )
    each = np.array(own)
    totals = np.bincount(cases.of_run, np.array(as_newcomer))
    joint: Floats = totals / np.bincount(cases.of_run)
    regrets = [regret(joint, cases.losses, cases.choices, drawn) for drawn in cases.drawn]
    return ScoreQuality(
        score=name,
        sharing=cases.runs[0].sharing,
        seen=seen,
        each=_figure(
            rank_correlation(each, cases.slowdowns),
            [
                rank_correlation(each, cases.slowdowns, weights[cases.of_run])
                for weights in cases.weights
            ],
        ),
        joint=_figure(
            rank_correlation(joint, cases.losses),
            [rank_correlation(joint, cases.losses, weights) for weights in cases.weights],
        ),
        regret=None
        if _constant(joint)
        else _figure(regret(joint, cases.losses, cases.choices), regrets),
        runs=len(cases.runs),
        choices=len(cases.choices),
    )


def _figure(value: float | None, resampled: Sequence[float | None]) -> Figure | None:
    if value is None:
        return None
    sound = [one for one in resampled if one is not None]
    if not sound:
        return Figure(value, float("-inf"), float("inf"))
    low, high = np.quantile(sound, [0.025, 0.975])
    return Figure(value, float(low), float(high))


def rank_correlation(one: Floats, other: Floats, counts: _Counts | None = None) -> float | None:
    """Spearman's, of two sequences of which element i counts ``counts[i]`` times; None: one of
    them is constant."""
    if counts is not None:
        one, other = np.repeat(one, counts), np.repeat(other, counts)
    if _constant(one) or _constant(other):
        return None
    ranks = np.stack([_ranks(one), _ranks(other)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    both = float(ranks[0] @ ranks[1])
    return both / float(np.sqrt((ranks[0] @ ranks[0]) * (ranks[1] @ ranks[1])))


def _constant(values: Floats) -> bool:
    return len(values) < 2 or float(np.ptp(values)) <= 1e-12


def _ranks(values: Floats) -> Floats:
    """From 0; equal values share the mean of their ranks."""
    _, places, counts = np.unique(np.round(values, 12), return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2.0
    found: Floats = middle[places]
    return found


def regret(
    scores: Floats,
    losses: Floats,
    choices: Mapping[int, _Counts],
    counts: _Counts | None = None,
) -> float | None:
    """The loss of choosing by ``scores`` above the best choice, relative to a random choice.

    ``choices``: by job, the sets among which it chooses; ``counts``: how often each job counts.
    Sets of equal score are as likely as each other. None: no choice matters.
    """
    lost = at_random = 0.0
    for job, group in choices.items():
        weight = 1 if counts is None else int(counts[job])
        if not weight:
            continue
        own, scored = losses[group], scores[group]
        chosen = own[scored <= scored.min() + 1e-12]
        lost += weight * float(chosen.mean() - own.min())
        at_random += weight * float(own.mean() - own.min())
    return lost / at_random if at_random > 0 else None
