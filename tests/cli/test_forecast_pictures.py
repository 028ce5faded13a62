"""The picture of a forecast."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hrm.cli import forecast_pictures


class Past(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.values)


def test_its_legend_covers_nothing_that_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    past = Past(start_s=0.0, end_s=86_400.0, values=np.arange(24.0))
    step = SimpleNamespace(seconds=3_600, name="hour")
    series = SimpleNamespace(step=step, tail=lambda _: past)
    steps = np.full(3, 24.0)
    report: Any = SimpleNamespace(
        series=series, expected=steps, quantiles={0.1: steps - 1, 0.9: steps + 1}
    )

    forecast_pictures.draw(tmp_path / "a.png", report, None, "", "png")

    (picture,) = drawn
    picture.canvas.draw()
    (panel,) = picture.axes
    legend = panel.get_legend().get_window_extent()
    assert legend.y0 >= panel.get_window_extent().y1, "it is above the panel"
    assert legend.x0 >= panel.get_window_extent().x0
