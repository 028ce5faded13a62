"""A look at the pool, from the master's lists to the hook; and what is kept of it."""

from __future__ import annotations

import gzip
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from hrm.address import default_master
from hrm.autoscale.daemon import Autoscaler, check_role, run
from hrm.autoscale.feed import MasterFeed
from hrm.autoscale.files import ForecastFiles, KeptHistory
from hrm.autoscale.hook import HookRunner
from hrm.config import AutoscaleSettings, load
from hrm.errors import HrmError, InvalidConfig, NotAllowed, PermissionDenied, Unavailable
from hrm.forecast.history import DemandHistory
from hrm.forecast.steps import HOUR
from hrm.rpc import create_token
from tests.autoscale.master import ScaledMaster, feed_of, served
from tests.forecast.events import Events

T0 = 1_700_000_000 // 3600 * 3600.0


@pytest.fixture
def master() -> ScaledMaster:
    return ScaledMaster()


@pytest.fixture
def feed(master: ScaledMaster) -> Iterator[MasterFeed]:
    with served(master) as address, feed_of(address) as made:
        yield made


@pytest.fixture
def files(tmp_path: Path) -> ForecastFiles:
    return ForecastFiles("m:1", tmp_path / "state")


def autoscaler(files: ForecastFiles, **more: Any) -> Autoscaler:
    given: dict[str, Any] = {
        "command": "true", "nodes_max": 8, "forecast_step": "none", "down_after_s": 0.0,
        "cooldown_s": 0.0,
    }  # fmt: skip
    settings = AutoscaleSettings(**(given | more))
    hook = HookRunner(
        command=settings.command, timeout_s=settings.timeout_s, tries=1, sleep=lambda _: None
    )
    return Autoscaler(settings, files, hook)


def test_what_waits_calls_the_hook(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    master.pending_cores = 20.0
    autoscaler(files).tick(feed, T0)
    state = files.read_scaler()
    assert state["last_call"]["ok"] is True
    assert state["last_call"]["call"]["wanted_nodes"] == 5
    assert state["scaler"]["target"] == 5
    assert master.drains == []


def test_what_is_not_needed_is_drained_first_and_then_named(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    subject = autoscaler(files)
    subject.tick(feed, T0)
    assert master.drains == [(("n1",), False)]
    assert master.reasons == ["hrm autoscale: 1 wanted at most within 0 s, of 3"]
    assert files.read_scaler()["last_call"] == {}
    subject.tick(feed, T0 + 30)
    assert files.read_scaler()["last_call"]["call"]["remove"] == ["n1"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("false", "status 1"),
        (f"{sys.executable} -c 'import time; time.sleep(600)'", "not ended within 1 s"),
    ],
    ids=["fails", "hangs"],
)
def test_a_hook_that_fails_or_hangs_gives_nodes_back_and_is_reported(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles, command: str, reason: str
) -> None:
    subject = autoscaler(files, command=command, timeout_s=1.0, cooldown_s=3600.0)
    subject.tick(feed, T0)
    subject.tick(feed, T0 + 30)
    assert master.drains == [(("n1",), False), (("n1",), True)]
    state = files.read_scaler()
    assert state["last_call"]["ok"] is False
    assert reason in state["last_call"]["reason"]
    assert state["scaler"] == {"target": 3, "leaving": [], "removed": {}}


def test_a_drain_that_fails_is_repeated_and_ends_nothing(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    subject = autoscaler(files)
    subject.tick(feed, T0)
    master.pending_cores, master.refuses_drains = 20.0, True
    with pytest.raises(grpc.RpcError, match="no such node"):  # n1 was to return to service
        subject.tick(feed, T0 + 30)
    assert files.read_scaler()["scaler"]["target"] == 2
    master.refuses_drains = False
    subject.tick(feed, T0 + 60)
    assert master.drains[-1] == (("n1",), True)
    assert files.read_scaler()["last_call"]["call"]["wanted_nodes"] == 5


def test_while_nodes_come_back_to_a_restarted_master_nothing_is_done(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    subject = autoscaler(files)
    master.pending_cores, master.incomplete = 20.0, True
    subject.tick(feed, T0)
    assert files.read_scaler()["last_call"] == {} and master.drains == []
    master.incomplete = False
    subject.tick(feed, T0 + 30)
    assert files.read_scaler()["last_call"]["call"]["wanted_nodes"] == 5


def test_a_dry_run_touches_nothing(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    subject = autoscaler(files, command="", dry_run=True)
    subject.tick(feed, T0)
    master.pending_cores = 20.0
    subject.tick(feed, T0 + 30)
    assert master.drains == [] and files.read_scaler() == {}


def test_a_dry_run_says_that_nothing_is_done(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    subject = autoscaler(files, command="", dry_run=True)
    with capture_logs() as logs:
        subject.tick(feed, T0)
        master.pending_cores = 20.0
        subject.tick(feed, T0 + 30)
    assert [each["event"] for each in logs] == [
        "would be done, but for the dry run: nodes leave",
        "would be done, but for the dry run: the hook is called",
    ]


def test_a_state_that_cannot_be_written_changes_nothing_until_it_can(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    master.pending_cores = 20.0
    subject = autoscaler(files)
    files.scaler_path.mkdir(parents=True)
    for step in range(2):  # the second look begins as if the first had not been
        with pytest.raises(Unavailable, match=r"autoscale\.json cannot be written.*free space"):
            subject.tick(feed, T0 + 30 * step)
    assert subject._last_call == {}
    files.scaler_path.rmdir()
    subject.tick(feed, T0 + 60)
    assert files.read_scaler()["last_call"]["call"]["wanted_nodes"] == 5


def test_a_history_that_cannot_be_used_does_not_stop_scaling(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unusable() -> Any:
        raise Unavailable("history.json.gz can neither be read nor be renamed")

    monkeypatch.setattr(files, "read_history", unusable)
    master.pending_cores = 20.0
    autoscaler(files, forecast_step="hour").tick(feed, T0)
    state = files.read_scaler()
    assert "can neither be read" in state["why_no_forecast"]
    assert state["last_call"]["call"]["wanted_nodes"] == 5


def test_a_history_that_cannot_be_written_does_not_stop_scaling(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(kept: KeptHistory) -> None:
        raise Unavailable("history.json.gz cannot be written: free space")

    monkeypatch.setattr(files, "write_history", full)
    master.pending_cores = 20.0
    with capture_logs() as logs:
        autoscaler(files, forecast_step="hour").tick(feed, T0)
    assert {"history.json.gz cannot be written: free space"} == {
        each["remark"] for each in logs if each["event"] == "history"
    }
    state = files.read_scaler()
    assert "needs 48" in state["why_no_forecast"]
    assert state["last_call"]["call"]["wanted_nodes"] == 5


def test_a_journal_that_takes_longer_than_a_call_is_read_in_several(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    events = Events()
    for number in range(1200):
        events.started(T0 - 86_400 + number, f"c{number}")
    master.journal, master.pages_read = events.taken(), 1
    subject = autoscaler(files, forecast_step="hour")
    read = []
    for step in range(3):
        subject.tick(feed, T0 + 30 * step)
        read.append(sum(sum(x.values()) for x in files.read_history()[0].history.tasks.values()))
    assert read == [500, 1000, 1200]


def test_what_a_damaged_file_of_a_scaler_leads_to_is_said(
    files: ForecastFiles, tmp_path: Path
) -> None:
    files.scaler_path.parent.mkdir(parents=True)
    for content in (
        "garbage", "[]", '{"scaler": []}', '{"scaler": null}', '{"last_call": [1]}',
        '{"last_call": {"at_s": 1e30}}', '{"last_call": {"at_s": "x"}}', '{"format": 2}',
        '{"last_call": {"at_s": NaN}}', "[" * 100_000,
    ):  # fmt: skip
        files.scaler_path.write_text(content)
        assert files.read_scaler() == {}
        with capture_logs() as logs:
            autoscaler(files)
        assert "hrm node drain NAME --undo" in logs[0]["event"], content
        assert ".damaged" in logs[0]["damage"] and not files.scaler_path.exists()
    files.scaler_path.write_text('{"scaler": {"target": "many"}}')
    with capture_logs() as logs:
        autoscaler(files)
    assert "is none" in logs[0]["damage"]


def test_a_state_of_before_formats_were_written_is_taken_over(files: ForecastFiles) -> None:
    files.scaler_path.parent.mkdir(parents=True)
    files.scaler_path.write_text('{"scaler": {"target": 4, "leaving": ["n1"]}, "last_call": {}}')
    with capture_logs() as logs:
        assert autoscaler(files)._scaler.target == 4
    assert logs == []


def test_two_for_one_master_are_noticed(files: ForecastFiles, tmp_path: Path) -> None:
    settings = AutoscaleSettings(command="true", master="m:1", token_file=tmp_path / "none")
    with ForecastFiles("m:1").held():
        with pytest.raises(InvalidConfig, match=r"another hrm autoscale .*autoscale\.lock; end it"):
            run(settings)
        with pytest.raises(HrmError, match="token"):  # it touches nothing
            run(settings.model_copy(update={"dry_run": True}))
        with ForecastFiles("other:1").held():
            pass
    with pytest.raises(HrmError, match="token"):
        run(settings)


@pytest.mark.parametrize("role", ["viewer", "submitter"])
def test_a_role_that_may_not_drain_is_an_error_at_once(
    master: ScaledMaster, tmp_path: Path, role: str
) -> None:
    master.role, master.pending_cores = role, 20.0
    mark = tmp_path / "mark"
    create_token(tmp_path / "token")
    with served(master) as address:
        settings = AutoscaleSettings(
            command=f"touch {mark}", master=address, token_file=tmp_path / "token",
            forecast_step="none",
        )  # fmt: skip
        with pytest.raises(NotAllowed, match=rf"is of role {role}.*hrm token create .*operator"):
            run(settings)
    assert not mark.exists()


def test_a_dry_run_may_be_a_viewers(master: ScaledMaster, feed: MasterFeed) -> None:
    master.role = "viewer"
    check_role(feed, AutoscaleSettings(dry_run=True))
    master.role = "operator"
    check_role(feed, AutoscaleSettings(command="true"))


def test_the_next_process_knows_which_nodes_leave(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    autoscaler(files).tick(feed, T0)
    again = autoscaler(files)
    again.tick(feed, T0 + 30)
    assert files.read_scaler()["last_call"]["call"]["remove"] == ["n1"]


def test_the_forecast_of_the_history_is_provided_for(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    pytest.importorskip("statsmodels")
    events = Events()
    for hour in range(72):  # 24 tasks an hour, of which a node serves 4 while it is busy
        for task in range(24):
            at_s = T0 - (72 - hour) * 3600.0 + 10.0
            events.started(at_s, f"{hour}-{task}", node=f"n{task % 6}")
            events.ended(at_s + 3500.0, f"{hour}-{task}", node=f"n{task % 6}")
    master.journal = sorted(events.taken(), key=lambda each: each.at_s)
    for number, event in enumerate(master.journal, 1):
        master.journal[number - 1] = _numbered(event, number)
    subject = autoscaler(files, forecast_step="hour", headroom=0.0)
    subject.tick(feed, T0 + 65)
    state = files.read_scaler()
    assert state["why_no_forecast"] == ""
    assert state["forecast_nodes"] == pytest.approx(6, abs=1)
    kept, damage = files.read_history()
    assert damage == "" and len(kept.history.volumes(HOUR)) >= 71


def _numbered(event: Any, number: int) -> Any:
    from dataclasses import replace

    return replace(event, event_id=(1 << 32) + number)


def test_without_enough_history_what_waits_decides_alone(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    master.pending_cores = 20.0
    autoscaler(files, forecast_step="hour").tick(feed, T0)
    state = files.read_scaler()
    assert "needs 48" in state["why_no_forecast"]
    assert state["last_call"]["call"]["wanted_nodes"] == 5


def test_metrics_have_what_it_decides_and_how_its_hook_ends(
    master: ScaledMaster, feed: MasterFeed, files: ForecastFiles
) -> None:
    subject = autoscaler(files, command="false")
    with subject.metrics.serving("127.0.0.1", 0) as address:
        assert "hrm_autoscale_nodes_" not in _read(address)  # nothing is known yet
        master.pending_cores = 20.0
        subject.tick(feed, T0)
        subject.metrics.look_failed()
        page = _read(address)
    for line in (
        "hrm_autoscale_nodes_wanted 5.0",
        "hrm_autoscale_nodes_target 3.0",  # the hook has failed
        "hrm_autoscale_nodes_in_service 3.0",
        'hrm_autoscale_hook_calls_total{outcome="failed"} 1.0',
        "hrm_autoscale_hook_failures_in_a_row 1.0",
        'hrm_autoscale_looks_total{outcome="succeeded"} 1.0',
        'hrm_autoscale_looks_total{outcome="failed"} 1.0',
    ):
        assert line in page.splitlines()
    assert "nodes_forecast" not in page


def test_a_port_of_metrics_that_is_taken_is_named(files: ForecastFiles) -> None:
    subject = autoscaler(files)
    with subject.metrics.serving("127.0.0.1", 0) as address:
        port = int(address.split(":")[2].removesuffix("/metrics"))
        taken = pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port}.*--metrics-port")
        with taken, subject.metrics.serving("127.0.0.1", port):
            raise AssertionError("it is served twice")


def _read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as response:
        return str(response.read().decode())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"nodes_min": 9}, "nodes_min"),
        ({"url": "http://x/"}, "both"),
        ({"command": ""}, "--dry-run"),
    ],
)
def test_settings_that_contradict_each_other(
    files: ForecastFiles, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        autoscaler(files, **more)


def test_no_token_is_an_error_at_once(tmp_path: Path) -> None:
    settings = AutoscaleSettings(command="true", token_file=tmp_path / "none")
    with pytest.raises((InvalidConfig, PermissionDenied)):
        run(settings)


@pytest.mark.parametrize(
    ("variable", "stated", "expected"),
    [
        ("head:7480", {}, "head:7480"),
        ("hrm://head", {}, "head:7480"),
        ("head:7480", {"master": "other:1"}, "other:1"),
        (None, {}, "127.0.0.1:4711"),
    ],
)
def test_its_master_is_that_of_every_other_command(
    variable: str | None,
    stated: dict[str, str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HRM_HOME", str(tmp_path))
    (tmp_path / "cluster.json").write_text('{"port": 4711}')
    monkeypatch.delenv("HRM_MASTER", raising=False)
    if variable is not None:
        monkeypatch.setenv("HRM_MASTER", variable)
    assert load(AutoscaleSettings, **stated).master == expected
    assert default_master(stated.get("master")) == expected


def test_a_variable_that_names_no_master_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HRM_MASTER", "7480")
    with pytest.raises(InvalidConfig, match=r"HRM_MASTER: '7480' is no address .* write HOST:PORT"):
        load(AutoscaleSettings)
    assert load(AutoscaleSettings, master="head").master == "head:7480"


# --- the history ------------------------------------------------------------------------------


def test_the_history_goes_on_where_it_ended(master: ScaledMaster, feed: MasterFeed) -> None:
    events = Events()
    events.started(T0, "a")
    master.journal = list(events.made)
    kept = KeptHistory(history=DemandHistory())
    assert feed.update(kept, T0 + 10) == ""
    events.started(T0 + 20, "b")
    master.journal = list(events.made)
    feed.update(kept, T0 + 3660)
    assert kept.history.volumes(HOUR, "root.etl").values.tolist() == [2.0]


def test_what_was_removed_before_it_was_read_is_a_gap(
    master: ScaledMaster, feed: MasterFeed
) -> None:
    events = Events()
    events.started(T0, "a")
    master.journal = list(events.made)
    kept = KeptHistory(history=DemandHistory())
    feed.update(kept, T0 + 10)
    events.started(T0 + 600, "lost")
    events.started(T0 + 1200, "c")
    master.journal, master.trimmed = list(events.made), events.made[1].event_id
    feed.update(kept, T0 + 3600)
    assert kept.history.gaps == [(T0, T0 + 1200)]  # clocks may differ by a minute


def test_another_cluster_at_the_same_address_begins_again(
    master: ScaledMaster, feed: MasterFeed
) -> None:
    events = Events(epoch=5)
    events.started(T0, "a")
    kept = KeptHistory(history=DemandHistory(), epoch=5, started_at_s=1000.0)
    kept.history.add(events.taken(), T0 + 1)
    assert "another cluster" in feed.update(kept, T0 + 10)
    assert kept.history.begun_s is None and kept.epoch == 1


def test_a_damaged_file_is_set_aside(files: ForecastFiles) -> None:
    files.history_path.parent.mkdir(parents=True)
    files.history_path.write_bytes(b"no gzip")
    kept, why = files.read_history()
    assert kept.history == DemandHistory()
    assert "could not be read" in why and ".damaged" in why
    assert files.read_history()[1] == ""


def test_whatever_byte_of_the_history_is_damaged_it_is_set_aside(files: ForecastFiles) -> None:
    events = Events()
    events.started(T0, "a")
    history = DemandHistory()
    history.add(events.taken(), T0 + 10)
    files.write_history(KeptHistory(history=history))
    sound = files.history_path.read_bytes()
    for place in range(len(sound)):
        for flip in (0x01, 0x80):
            content = bytearray(sound)
            content[place] ^= flip
            files.history_path.write_bytes(content)
            kept, why = files.read_history()
            assert kept.history in (DemandHistory(), history)
            assert ("could not be read" in why) is (kept.history != history)


@pytest.mark.parametrize("document", ["[" * 100_000, '{"history": {"format": 1}, "epoch": 1e999}'])
def test_documents_that_are_none_are_set_aside(files: ForecastFiles, document: str) -> None:
    files.history_path.parent.mkdir(parents=True)
    files.history_path.write_bytes(gzip.compress(document.encode()))
    assert "could not be read" in files.read_history()[1]


def test_a_longer_history_is_not_replaced_by_a_shorter_one(files: ForecastFiles) -> None:
    events = Events()
    events.started(T0, "a")
    events.started(T0 + 1, "b")
    both, one = DemandHistory(), DemandHistory()
    both.add(events.made, T0 + 10)
    one.add(events.made[:1], T0 + 10)
    files.write_history(KeptHistory(history=both, epoch=1, started_at_s=5.0))
    files.write_history(KeptHistory(history=one, epoch=1, started_at_s=5.0))
    assert files.read_history()[0].history == both
