"""The part of a forecast that follows changes: a small gated recurrent network.

One layer of 32 units reads the last intervals: of each the volume, the volume one season before the
interval that follows it, and where that one stands in the day and week. From the last state it
predicts by how much the next volume differs from an *anchor*: the latest volume, or the one a
season ago, whichever has the smaller error on the intervals that stop the training (for intervals
of a day the source's form, the volume itself, is a third choice). Several networks of unlike random
weights are averaged. They are trained by PyTorch, on the machine that forecasts, within seconds,
and run in numpy.

Source: RLPTO, eq. 1, names the GRU and its week of input; sizes, loss and stopping are chosen here.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hrm.forecast.series import Floats, VolumeSeries
from hrm.forecast.steps import ForecastStep

__all__ = ["Anchor", "GruEnsemble", "GruOptions", "GruWeights", "fit_gru"]

UNITS = 32
STOPPING_SHARE = 0.2
"""The last part of the training intervals, by which the training is stopped."""
SAMPLES_MIN = 16
"""Windows without which nothing is learned."""
ORIGINS_AT_ONCE = 256
"""Each has a row of all values in memory."""

OutOfTime = Callable[[], bool]


class Anchor(enum.Enum):
    """What the network's output is added to."""

    LATEST = "the latest volume"
    SEASON = "the volume a season ago"
    NONE = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class GruOptions:
    """How to train."""

    networks: int = 3
    epochs_max: int = 80
    patience: int = 12
    batch: int = 64
    learning_rate: float = 3e-3
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GruWeights:
    """One network: matrices of a GRU with ``UNITS`` units u and k features, in PyTorch's order of
    gates (reset, update, new): (3u, k), (3u, u), (3u,), (3u,); and of a linear head, (u,), ()."""

    of_input: Floats
    of_state: Floats
    input_bias: Floats
    state_bias: Floats
    head: Floats
    head_bias: float

    def output(self, windows: Floats) -> Floats:
        """Of windows of shape (n, lags, k), shape (n,)."""
        units = len(self.head)
        state = np.zeros((len(windows), units))
        for place in range(windows.shape[1]):
            given = windows[:, place] @ self.of_input.T + self.input_bias
            kept = state @ self.of_state.T + self.state_bias
            both = given[:, : 2 * units] + kept[:, : 2 * units]
            gates = 0.5 * (1.0 + np.tanh(0.5 * both))  # the logistic function, without overflow
            reset, update = gates[:, :units], gates[:, units:]
            new = np.tanh(given[:, 2 * units :] + reset * kept[:, 2 * units :])
            state = (1.0 - update) * new + update * state
        found: Floats = state @ self.head + self.head_bias
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GruEnsemble:
    """Trained networks, and the scales of what they were trained on."""

    step: ForecastStep
    start_s: float
    anchor: Anchor
    networks: tuple[GruWeights, ...]
    mean: float
    spread: float
    change_spread: float
    why: str

    def one_step(self, values: Floats, first: int) -> Floats:
        """Forecasts of ``values[first:]``, each from what comes before it, shape (n - first,)."""
        places = np.arange(first, len(values))
        scaled = (values - self.mean) / self.spread
        calendar = self._calendar(len(values))
        return self._unscaled(self._next(scaled[None, :], places, calendar))

    def paths(self, values: Floats, origins: Sequence[int], leads: int) -> Floats:
        """Forecasts of ``values[o : o + leads]`` from ``values[:o]``, for each origin o, shape
        (len(origins), leads): each lead from the forecasts of those before it."""
        found = np.empty((len(origins), leads))
        scaled = (values - self.mean) / self.spread
        calendar = self._calendar(len(values) + leads)
        for first in range(0, len(origins), ORIGINS_AT_ONCE):
            some = np.asarray(origins[first : first + ORIGINS_AT_ONCE])
            rows = np.arange(len(some))
            whole = np.hstack([np.tile(scaled, (len(some), 1)), np.zeros((len(some), leads))])
            for lead in range(leads):
                whole[rows, some + lead] = self._next(whole, some + lead, calendar)
                found[first : first + len(some), lead] = whole[rows, some + lead]
        return self._unscaled(found)

    def _next(self, scaled: Floats, places: Any, calendar: Floats) -> Floats:
        windows = _windows(scaled, places, calendar, self.step)
        outputs = np.mean([network.output(windows) for network in self.networks], axis=0)
        anchors = _anchors(scaled, places, self.step.season, self.anchor)
        found: Floats = anchors + outputs * self.change_spread
        return found

    def _calendar(self, count: int) -> Floats:
        empty = VolumeSeries(step=self.step, start_s=self.start_s, values=np.empty(0))
        return empty.calendar(count)

    def _unscaled(self, scaled: Floats) -> Floats:
        return scaled * self.spread + self.mean


def fit_gru(
    values: Floats,
    step: ForecastStep,
    start_s: float,
    options: GruOptions | None = None,
    out_of_time: OutOfTime = lambda: False,
) -> GruEnsemble | str:
    """Networks trained on ``values``, shape (n,), transformed and complete; the first of them is of
    the interval that begins at ``start_s``. Or, in place of them, the reason why there are none.

    The same values and options give the same networks, if there is time for all of them.
    """
    options = options or GruOptions()
    try:
        import torch  # noqa: F401 - is it there?
    except ImportError:
        return "PyTorch is not installed: pip install 'hrm-spark[forecast]'"
    seasons = tuple(each for each in step.gru_seasons if 3 * each <= len(values))
    used = replace(step, gru_seasons=seasons)
    skipped = _first_place(used)
    samples = len(values) - skipped
    if samples < SAMPLES_MIN:
        return f"{len(values)} intervals give {max(0, samples)} examples; {SAMPLES_MIN} are needed"
    mean, spread = float(values.mean()), float(values.std())
    if spread < 1e-9:
        return "all volumes are equal"
    scaled = (values - mean) / spread
    calendar = VolumeSeries(step=step, start_s=start_s, values=values).calendar(len(values))
    places = np.arange(skipped, len(values))
    windows = _windows(scaled[None, :], places, calendar, used)
    learning = samples - max(4, int(STOPPING_SHARE * samples))
    make = _Maker(windows, options, learning, out_of_time)
    choices = (Anchor.LATEST, Anchor.SEASON) if step.is_long_season else tuple(Anchor)
    tried: list[tuple[float, Anchor, GruWeights]] = []
    with _one_thread():
        changes = {
            anchor: scaled[places] - _anchors(scaled[None, :], places, step.season, anchor)
            for anchor in choices
        }
        for anchor in choices:
            network = make.network(changes[anchor], 0)
            if network is not None:
                tried.append((make.error(changes[anchor], network), anchor, network))
        if not tried:
            return "there was no time to train it"
        _, anchor, first = min(tried, key=lambda each: each[0])
        others = [make.network(changes[anchor], each) for each in range(1, options.networks)]
    networks = (first, *(each for each in others if each is not None))
    return GruEnsemble(
        step=used,
        start_s=start_s,
        anchor=anchor,
        networks=networks,
        mean=mean,
        spread=spread,
        change_spread=make.spread(changes[anchor]),
        why=f"GRU of {UNITS} units, {len(networks)} networks, beginning at {anchor.value}",
    )


@dataclass(frozen=True, slots=True)
class _Maker:
    """Trains networks on the first ``learning`` windows; the others stop the training."""

    windows: Floats
    options: GruOptions
    learning: int
    out_of_time: OutOfTime

    def spread(self, changes: Floats) -> float:
        return max(1e-6, float(changes[: self.learning].std()))

    def network(self, changes: Floats, number: int) -> GruWeights | None:
        wanted = changes / self.spread(changes)
        return _train(self.windows, wanted, self.learning, self.options, number, self.out_of_time)

    def error(self, changes: Floats, network: GruWeights) -> float:
        """Mean absolute error on the windows that stop the training, as of scaled volumes."""
        outputs = network.output(self.windows[self.learning :]) * self.spread(changes)
        return float(np.abs(outputs - changes[self.learning :]).mean())


def _first_place(step: ForecastStep) -> int:
    """The first interval of which all inputs and anchors are known."""
    return max(step.gru_lags + max(step.gru_seasons, default=0), step.season)


def _windows(scaled: Floats, places: Any, calendar: Floats, step: ForecastStep) -> Floats:
    """What the network sees before each of ``places``.

    ``scaled``: shape (1, n), for all places, or (len(places), n), a row each. Returns shape
    (len(places), lags, 1 + seasons + features of the calendar).
    """
    seen = np.asarray(places)[:, None] - np.arange(step.gru_lags, 0, -1)
    rows = np.zeros((1, 1), dtype=int) if len(scaled) == 1 else np.arange(len(scaled))[:, None]
    columns = [scaled[rows, seen]]
    columns += [scaled[rows, seen + 1 - season] for season in step.gru_seasons]
    return np.concatenate([np.stack(columns, axis=-1), calendar[seen + 1]], axis=-1)


def _anchors(scaled: Floats, places: Any, season: int, anchor: Anchor) -> Floats:
    rows: Any = 0 if len(scaled) == 1 else np.arange(len(scaled))
    if anchor is Anchor.NONE:
        return np.zeros(len(places))
    found: Floats = scaled[rows, np.asarray(places) - (1 if anchor is Anchor.LATEST else season)]
    return found


def _train(
    windows: Floats,
    wanted: Floats,
    learning: int,
    options: GruOptions,
    number: int,
    out_of_time: OutOfTime,
) -> GruWeights | None:
    """One network, as it was when its error after ``learning`` examples was least; None: there was
    no time for an epoch."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(options.seed * 1_000 + number)
    inputs = torch.tensor(windows, dtype=torch.float32)
    targets = torch.tensor(wanted, dtype=torch.float32)
    gru = nn.GRU(windows.shape[2], UNITS, batch_first=True)
    head = nn.Linear(UNITS, 1)
    parameters = [*gru.parameters(), *head.parameters()]
    with torch.no_grad():
        for each in parameters:  # PyTorch's own distribution, from a generator of our own
            each.uniform_(-(UNITS**-0.5), UNITS**-0.5, generator=generator)
    optimizer = torch.optim.Adam(parameters, lr=options.learning_rate)
    loss_of = nn.HuberLoss()

    def predicted(some: Any) -> Any:
        return head(gru(some)[0][:, -1])[:, 0]

    best, kept, waited = np.inf, None, 0
    for _ in range(options.epochs_max):
        order = torch.randperm(learning, generator=generator)
        for first in range(0, learning, options.batch):
            batch = order[first : first + options.batch]
            if out_of_time():
                return kept
            optimizer.zero_grad()
            loss_of(predicted(inputs[batch]), targets[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            error = float(loss_of(predicted(inputs[learning:]), targets[learning:]))
        waited += 1
        if error < best - 1e-5:
            best, kept, waited = error, _weights(gru, head), 0
        if waited > options.patience:
            break
    return kept


def _weights(gru: Any, head: Any) -> GruWeights:
    def array(parameter: Any) -> Floats:
        return np.array(parameter.detach().numpy(), dtype=float)

    return GruWeights(
        of_input=array(gru.weight_ih_l0),
        of_state=array(gru.weight_hh_l0),
        input_bias=array(gru.bias_ih_l0),
        state_bias=array(gru.bias_hh_l0),
        head=array(head.weight)[0],
        head_bias=float(head.bias.detach()[0]),
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Networks of this size are trained fastest by one thread, and other work has the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
