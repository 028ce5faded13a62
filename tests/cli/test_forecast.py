"""``hrm forecast``: history, forecast and errors as a chart, a picture and JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from hrm import errors, rpc
from hrm.autoscale.files import ForecastFiles, KeptHistory
from hrm.cli.forecast import _other_horizon, _queue_name
from hrm.core.vocabulary.history import StateEvent
from hrm.forecast.history import DemandHistory
from hrm.forecast.steps import DAY
from tests.autoscale.master import ScaledMaster, served
from tests.forecast.events import Events

pytest.importorskip("statsmodels")

Run = Callable[..., Result]
DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def _few_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for orders is not what these tests are of."""
    monkeypatch.setattr("hrm.forecast.sarimax.FITS_MAX", 2)
    monkeypatch.setattr("hrm.forecast.sarimax.LONG_SEASON_FITS_MAX", 1)


def weeks_of_tasks(days: int, now: float) -> list[StateEvent]:
    """On working days 20 tasks, at weekends 6, of which each takes an hour on one of two nodes."""
    events = Events()
    first = now // DAY_S - days
    for day in range(days):
        begin_s = (first + day) * DAY_S
        weekday = int(first + day + 3) % 7
        for task in range(20 if weekday < 5 else 6):
            at_s, name, node = begin_s + task * 3600.0, f"{day}-{task}", f"n{task % 2}"
            events.started(at_s, name, node=node)
            events.ended(at_s + 3600.0, name, node=node)
    made = sorted(events.taken(), key=lambda each: each.at_s)
    return [replace(each, event_id=(1 << 32) + n) for n, each in enumerate(made, 1)]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    master = ScaledMaster()
    master.journal = weeks_of_tasks(40, time.time())
    token = tmp_path / "token"
    rpc.create_token(token)
    with served(master) as address:
        monkeypatch.setenv("HRM_MASTER", address)
        monkeypatch.setenv("HRM_TOKEN_FILE", str(token))
        yield address


def test_the_chart_has_the_past_and_the_tables_what_comes(hrm: Run, target: str) -> None:
    result = hrm("forecast")
    assert result.exit_code == 0, result.stderr
    assert "█" in result.stdout
    assert "by day" in result.stdout
    assert "NODES FOR P90" in result.stdout
    for method in ("LSP", "last value", "a season ago"):
        assert method in result.stdout
    assert "SARIMAX" in result.stderr
    assert ForecastFiles(target).history_path.is_file()


def test_json_has_the_history_the_quantiles_and_the_nodes(hrm: Run, target: str) -> None:
    found = json.loads(hrm("forecast", "--queue", "etl", "--output", "json").stdout)
    assert found["queue"] == "root.etl"
    assert found["step_s"] == 86_400
    assert 38 <= len(found["history"]["tasks"]) <= 40
    assert set(found["history"]["tasks"]) == {20, 6}
    assert len(found["forecast"]) == 7
    for each in found["forecast"]:
        assert each["p10"] <= each["p50"] <= each["p90"]
        # A node that is busy all the day serves 24 tasks of an hour.
        assert each["nodes"] == pytest.approx(each["p90"] / 20, abs=2)
    weekdays = {int(e["begin_s"] // 86_400 + 3) % 7: e["expected"] for e in found["forecast"]}
    assert weekdays[0] == pytest.approx(20, rel=0.3)
    assert weekdays[6] == pytest.approx(6, rel=0.3)
    assert found["errors"]["LSP"]["one_minus_wape"] > 0.7


def test_pictures_are_written(hrm: Run, target: str, tmp_path: Path) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    result = hrm("forecast", "--png", str(png), "--svg", str(svg))
    assert result.exit_code == 0, result.stderr
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    refused = hrm("forecast", "--svg", str(tmp_path / "none" / "a.svg"))
    assert refused.exit_code == 1
    assert "cannot be written" in refused.stderr


def test_a_queue_without_tasks_is_named_with_those_that_have_some(hrm: Run, target: str) -> None:
    result = hrm("forecast", "--queue", "nobody")
    assert result.exit_code == 1
    assert "'nobody'" in result.stderr
    assert "root.etl" in result.stderr and "hrm queues" in result.stderr


def test_too_little_history_says_what_to_type(
    hrm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = ScaledMaster()
    master.journal = weeks_of_tasks(3, time.time())
    with served(master) as address:
        rpc.create_token(tmp_path / "t")
        monkeypatch.setenv("HRM_TOKEN_FILE", str(tmp_path / "t"))
        result = hrm("forecast", "--master", address)
        assert result.exit_code == 1
        assert "needs 14" in result.stderr and "--horizon hour" in result.stderr
        assert hrm("forecast", "--master", address, "--horizon", "hour").exit_code == 0


def test_a_fresh_cluster_hears_at_once_when_there_is_enough() -> None:
    kept = KeptHistory(history=DemandHistory())
    assert "no container has started in it yet" in _other_horizon(kept, DAY)
    began_s, events = 1_700_000_100.0, Events()
    events.started(began_s, "a")
    kept.history.add(events.taken(), began_s + 60)
    kept.history.reached(began_s + 3600)
    assert _other_horizon(kept, DAY) == (
        "no horizon has enough yet; from 2023-11-16 22:15 UTC on: hrm forecast --horizon 5min"
    )
    kept.history.reached(began_s + 3 * DAY_S)
    assert _other_horizon(kept, DAY) == "now: hrm forecast --horizon hour"


def test_the_last_part_of_a_queues_name_is_enough() -> None:
    history = DemandHistory()
    for name in ("root.a.nightly", "root.b.c.nightly", "root.b.daily", "root.etl"):
        history.tasks.setdefault(1, Counter())[name] = 1
    kept = KeptHistory(history=history)
    found = {each: _queue_name(each, kept) for each in ("daily", "etl", "c", "root.b", "b", "")}
    assert found == {
        "daily": "root.b.daily", "etl": "root.etl", "c": "root.b.c", "root.b": "root.b",
        "b": "root.b", "": "",
    }  # fmt: skip
    several = r"'nightly' may be any of root\.a\.nightly, root\.b\.c\.nightly; write the whole"
    with pytest.raises(errors.InvalidRequest, match=several):
        _queue_name("nightly", kept)
    with pytest.raises(errors.NotFound, match="hrm queues"):
        _queue_name("ghtly", kept)


def test_a_history_that_cannot_be_written_is_said_and_shown(
    hrm: Run, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise errors.Unavailable("history.json.gz cannot be written: free space")

    monkeypatch.setattr(ForecastFiles, "write_history", full)
    result = hrm("forecast")
    assert result.exit_code == 0
    assert "cannot be written: free space" in result.stderr


@pytest.mark.parametrize(
    "content", ['{"last_call": [1]}', '{"last_call": {"ok": false, "at_s": 1e30}}']
)
def test_a_damaged_file_of_a_scaler_does_not_stop_a_forecast(
    hrm: Run, target: str, content: str
) -> None:
    path = ForecastFiles(target).scaler_path
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert hrm("forecast").exit_code == 0


def test_a_hook_that_failed_is_reported(hrm: Run, target: str) -> None:
    call = {"at_s": time.time(), "ok": False, "reason": "the command ended with status 1"}
    ForecastFiles(target).write_scaler({"last_call": call})
    result = hrm("forecast")
    assert "its hook failed" in result.stderr
    assert "the command ended with status 1" in result.stderr


def test_a_damaged_history_is_read_again_from_the_journal(hrm: Run, target: str) -> None:
    path = ForecastFiles(target).history_path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no gzip")
    result = hrm("forecast")
    assert result.exit_code == 0
    assert "could not be read" in result.stderr


def test_what_is_not_installed_is_named(
    hrm: Run, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "statsmodels" else sys
    )
    result = hrm("forecast")
    assert result.exit_code == 1
    assert "pip install 'hrm-spark[forecast]'" in result.stderr


@pytest.mark.parametrize("wrong", [("--horizon", "week"), ("--limit", "0")])
def test_bad_options_are_refused(hrm: Run, wrong: tuple[str, str]) -> None:
    assert hrm("forecast", *wrong).exit_code == 2
