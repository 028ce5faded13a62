"""The rule of speed-ups: a worker goes where it makes epochs shorter, for the jobs worth most.

The second worker of a job that scales halves its epochs, and the third takes another third off
them; those of a job that hardly scales do little. So a job's last worker, or its next, is worth the
job's points times what it adds to the job's speed, in units of the speed of one worker. A job that
learns no more is worth half. Three rules follow, of which a moment has one:

- Something waits: its first worker would add a whole unit. Of the running jobs whose workers it
  could use, the one whose last worker is worth least gives that up, where it is worth less than a
  good half of a unit.
- Something is free: it goes to the jobs to which it is worth most, to each all that it gets at
  once.
- Neither: a worker moves to where it is worth more. It leaves a job whose epoch time with its
  present workers is known.

Each only where that pays: in the time that the job has left, or has run if that is less, it must
bring twice what it costs. A resize costs as much time as the latest ones have cost jobs
(``ElasticJob.lost_s``), or an epoch before that is known. A job with its least takes what is free
in any case.

Where the job in question may not change yet, it is waited for, until it has reported enough or is
silent for long: to resize the second best instead costs time twice. With few epochs left nothing
pays, and a job is not resized any more.

How a job scales is fitted to its own epoch times. Before it has run with two numbers of workers, a
fifth of an epoch is assumed to be serial; then its first change shows what the next one is worth.
A job learns no more while it converges, or once it would gain less than a hundredth until its last
epoch, if its curve were a hyperbola.

Limits: what waits counts as much as the mean of what runs, since nothing is known of it. Epoch
times of a job whose epochs grow, or whose workers are not alike, mislead the fit.

Sources: Optimus (Peng et al., EuroSys 2018), section 4.1, adds workers by marginal gain, from
speeds that are fitted while jobs run; it weighs them by the time left and knows no cost of a move.
The law of the fit is Amdahl's (AFIPS 1967). The constants were chosen on validation seeds of
``benchmarks.paper.rlpto``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import ElasticityView, ElasticJobView

__all__ = ["SpeedUpRule", "has_learned", "serial_share", "speed_up"]

SERIAL = 0.2
"""Share of an epoch on one worker that counts as serial, while it is not known."""
GAIN_LEFT = 0.01
"""Share of its accuracy: a job that has less to gain counts as one that learns no more."""


class SpeedUpRule:
    """See the module.

    Args:
        waits: a worker is given up for what waits if it is worth less than this share of its first.
        pays: what a resize brings must be so many times what it costs.
        learned: what a job that learns no more is worth, as a share.
        epochs_left: a job with fewer epochs before it is not resized.
    """

    name = "speed-up"

    def __init__(
        self,
        *,
        waits: float = 0.6,
        pays: float = 2.0,
        learned: float = 0.5,
        epochs_left: int = 10,
    ) -> None:
        self._waits = waits
        self._pays = pays
        self._learned = learned
        self._epochs_left = epochs_left

    def propose(self, view: ElasticityView) -> Resize | None:
        """See ``ElasticityPolicy``."""
        places = self._places(view)
        if view.waiting:
            first = sum(job.points for job in view.jobs) / max(1, len(view.jobs))
            places = [place for place in places if view.jobs[place].serves]
            return self._release(view, places, view.waiting - view.free, first)
        takers = heapq.nlargest(max(1, view.free), self._worths(view, places, 1))
        if view.free:
            able = (place for _, place in takers if view.jobs[place].may_grow)
            grown = (Resize(place, self.grant(view, place)) for place in able)
            return next((each for each in grown if self._pays_to_grow(view, each)), None)
        return self._move(view, places, *takers[0]) if takers else None

    def _move(
        self, view: ElasticityView, places: Sequence[int], most: float, taker: int
    ) -> Resize | None:
        """The job whose last worker is worth least gives it up to ``taker``, if that pays."""
        job = view.jobs[taker]
        if not job.warm or not job.since_resize:
            return None
        settled = [n for n in places if n != taker and view.jobs[n].workers in view.jobs[n].paces]
        worth, giver = min(self._worths(view, settled, 0), default=(most, taker))
        both = view.jobs[giver], job
        if worth >= most or not both[0].may_shrink:
            return None
        left_s = min(_left_s(each) for each in both)
        lost = self._cost(both[0], view.shrink_s) + self._cost(job, view.grow_s)
        return Resize(giver, -1) if (most - worth) * left_s > lost else None

    def _pays_to_grow(self, view: ElasticityView, wanted: Resize) -> bool:
        job = view.jobs[wanted.place]
        if job.workers == job.workers_min:
            return True
        then = self._points(job) / epoch_share(job.paces, job.workers + wanted.delta)
        gain = then - self._speed(job)
        return gain * _left_s(job) > self._cost(job, view.grow_s)

    def _pays_to_give(self, view: ElasticityView, place: int, gain: float) -> bool:
        job = view.jobs[place]
        return gain * _left_s(job) > self._cost(job, view.shrink_s)

    def _cost(self, job: ElasticJobView, seconds: float) -> float:
        """What a resize that stops it for so long, or for an epoch if that is not known, has to
        bring."""
        return self._pays * self._speed(job) * (seconds if seconds >= 0.0 else job.seconds)

    def grant(self, view: ElasticityView, taker: int) -> int:
        """What the job at place ``taker`` gets of what is free, at least 1, where each worker goes
        to where it is worth most. It gets all of that at once: each resize costs time."""
        places = self._places(view)
        heap = [(-worth, place) for worth, place in self._worths(view, places, 1)]
        heapq.heapify(heap)
        given = {taker: 0} | dict.fromkeys(places, 0)
        for _ in range(view.free):
            if not heap:
                break
            _, place = heapq.heappop(heap)
            given[place] += 1
            job = view.jobs[place]
            if job.workers + given[place] < job.workers_max:
                heapq.heappush(heap, (-self._worth(job, job.workers + given[place] + 1), place))
        return max(1, given[taker])

    def _places(self, view: ElasticityView) -> list[int]:
        """Of the jobs that are worth a resize."""
        return [
            place
            for place, job in enumerate(view.jobs)
            if job.epochs_max - job.epoch >= self._epochs_left and not job.silent
        ]

    def _release(
        self, view: ElasticityView, places: Sequence[int], count: int, first: float
    ) -> Resize | None:
        """Of the ``count`` jobs whose last worker is worth least, and much less than ``first``, the
        first that may give it up now, and for which that pays."""
        below = self._waits * first
        givers = heapq.nsmallest(count, self._worths(view, places, 0))
        able = [(w, place) for w, place in givers if w < below and view.jobs[place].may_shrink]
        pays = (n for w, n in able if self._pays_to_give(view, n, first - w))
        return next((Resize(place, -1) for place in pays), None)

    def _worths(
        self, view: ElasticityView, places: Sequence[int], more: int
    ) -> Iterator[tuple[float, int]]:
        """With each job's place, what its last worker is worth (``more`` 0), or its next (1)."""
        for place in places:
            job = view.jobs[place]
            if job.workers != (job.workers_max if more else job.workers_min):
                yield self._worth(job, job.workers + more), place

    def _worth(self, job: ElasticJobView, workers: int) -> float:
        """Of a job's ``workers``-th worker."""
        return self._points(job) * speed_up(job.paces, workers)

    def _speed(self, job: ElasticJobView) -> float:
        """What all its workers are worth."""
        return self._points(job) / epoch_share(job.paces, job.workers)

    def _points(self, job: ElasticJobView) -> float:
        return job.points * (self._learned if has_learned(job) else 1.0)


def _left_s(job: ElasticJobView) -> float:
    """Until its last epoch, or as long as it has run, if that is less: many end before the last
    that they may do, and some do not say how many that are."""
    return min(job.epochs_max - job.epoch, job.epoch) * job.seconds


def has_learned(job: ElasticJobView) -> bool:
    """Whether it has hardly anything to gain until its last epoch."""
    if not job.warm:
        return False
    left = job.change * job.epoch * (1.0 - job.epoch / job.epochs_max)
    return job.converging or left < GAIN_LEFT * job.accuracy


def speed_up(paces: Mapping[int, float], workers: int) -> float:
    """What a job's ``workers``-th worker, from 1, adds to its speed, in units of that of one;
    ``paces``: see ``serial_share``."""
    before = 1.0 / epoch_share(paces, workers - 1) if workers > 1 else 0.0
    return 1.0 / epoch_share(paces, workers) - before


def epoch_share(paces: Mapping[int, float], workers: int) -> float:
    """What an epoch takes with so many workers, over what it takes with one."""
    serial = serial_share(paces)
    return serial + (1.0 - serial) / workers


def serial_share(paces: Mapping[int, float]) -> float:
    """Of an epoch on one worker, 0 to 1; ``paces``: seconds of an epoch by number of workers.

    With w workers it takes a + b / w, neither below zero: least squares over what has been seen,
    each number of workers counting alike.
    """
    if len(paces) < 2:
        return SERIAL
    mean = sum(1.0 / workers for workers in paces) / len(paces)
    mean_s = sum(paces.values()) / len(paces)
    spread = joint = 0.0
    for workers, seconds in paces.items():
        off = 1.0 / workers - mean
        spread += off * off
        joint += off * (seconds - mean_s)
    divided_s = max(0.0, joint / spread)
    serial_s = max(0.0, mean_s - divided_s * mean)
    return serial_s / (serial_s + divided_s)
