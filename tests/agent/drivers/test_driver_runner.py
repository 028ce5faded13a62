"""The runner of a driver as a process: when it starts and kills, how it ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.agent.drivers import driver_runner
from hrm.errors import HrmError
from hrm.v1 import submission_pb2 as pb
from tests.agent.drivers.conftest import DATA, FakeMaster, Node, gone


def test_a_driver_gets_its_files_and_its_settings(node: Node, master: FakeMaster) -> None:
    code, out, err = node.run('pwd; cat a.jar | wc -c; printf "%s\\n" "$@"; exit 7')
    assert code == 7, err
    directory, size, *arguments = out.splitlines()
    assert directory == str(node.work_dir / "app")
    assert int(size) == len(DATA)
    properties = node.work_dir / "spark.properties"
    assert arguments == [
        "--master", f"hrm://127.0.0.1:{master.port}",
        "--deploy-mode", "client", "--properties-file", str(properties), "--name", "app",
        "--class", "a.B", "--jars", "hdfs://h/b.jar", str(node.work_dir / "app" / "a.jar"),
        "one", "two words",
    ]  # fmt: skip
    text = properties.read_text()
    assert "spark.x=y z\n" in text
    assert "spark.driver.host=127.0.0.1\n" in text
    assert "the-client" not in text
    assert properties.stat().st_mode & 0o077 == 0
    assert (node.work_dir / "exit-code").read_text() == "7"
    assert [(x.submission_id, x.attempt, x.gone) for x in (master.asked[0], master.asked[-1])] == [
        ("driver-1", 2, False), ("driver-1", 2, True),
    ]  # fmt: skip


def test_the_token_of_a_connect_server_is_no_setting(node: Node) -> None:
    setting = "spark.hrm.driverEnv.SPARK_CONNECT_AUTHENTICATE_TOKEN"
    node.document["conf"] += [[setting, "a-secret"], ["spark.hrm.driverEnv.OTHER", "shown"]]
    code, _, err = node.run("true")
    assert code == 0, err
    text = (node.work_dir / "spark.properties").read_text()
    assert "spark.hrm.driverEnv.OTHER=shown" in text
    assert "a-secret" not in text


def test_tokens_are_in_memory_alone_and_of_the_drivers_programs_too(
    node: Node, master: FakeMaster
) -> None:
    node.document |= {"has_tokens": True, "ownership_key": "proof"}
    master.tokens = b"HDTS-tokens"
    code, out, err = node.run(
        'echo "$KRB5CCNAME"; sh -c \'test -f "$HADOOP_TOKEN_FILE_LOCATION" && '
        'cat "$HADOOP_TOKEN_FILE_LOCATION" "$HADOOP_TOKEN_FILE_LOCATION"\''
    )
    assert code == 0, err
    assert out == f"{node.work_dir}/no-tickets\nHDTS-tokensHDTS-tokens"
    for path in filter(Path.is_file, node.directory.rglob("*")):
        assert b"HDTS" not in path.read_bytes(), f"{path} has them"


def test_a_driver_whose_tokens_are_gone_is_not_started(node: Node, master: FakeMaster) -> None:
    node.document |= {"has_tokens": True, "ownership_key": "proof"}
    code, out, err = node.run("echo started")
    assert (code, out, err) == (1, "", "HRM: the tokens are gone\n")
    assert master.asked[-1].gone, "its lease is given back"


def test_a_driver_whose_lease_is_over_before_it_starts_is_not_started(
    node: Node, master: FakeMaster
) -> None:
    node.document |= {"has_tokens": True, "ownership_key": "proof"}
    master.tokens, master.tokens_take_s, master.lease_s = b"HDTS-tokens", 1.5, 1.0
    code, out, err = node.run("echo started")
    assert (code, out) == (1, "")
    assert "expired before the driver could start" in err
    assert master.asked[-1].gone, "its successor need not wait"


def test_a_driver_without_a_lease_does_not_start(node: Node, master: FakeMaster) -> None:
    master.refuses = "driver 3 has taken its place"
    code, out, err = node.run("echo started")
    assert (code, out) == (1, "")
    assert err == "HRM: driver 3 has taken its place\n"


def test_a_driver_whose_lease_is_refused_is_killed(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    master.lease_s = 30.0
    runner = node.start('echo $$ > pid; sleep 100 & echo $! > child; trap "" TERM; wait; wait')
    child = node.work_dir / "app" / "child"
    eventually(lambda: child.exists() and child.read_text().endswith("\n"), 30.0)
    master.refuses = "it was abandoned"
    _, err = runner.communicate(timeout=30)
    assert runner.returncode == 137
    assert "the driver is killed: it was abandoned" in err
    assert gone(int((node.work_dir / "app" / "pid").read_text()))
    assert gone(int(child.read_text()))
    assert master.asked[-1].gone, "its successor need not wait"


def test_a_driver_that_reaches_no_master_is_killed_when_its_lease_ends(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    master.lease_s = 2.0
    runner = node.start("echo $$ > pid; exec sleep 100")
    eventually(lambda: len(master.asked) > 5, 30.0, "it is renewed")
    assert runner.poll() is None
    master.silent = True
    _, err = runner.communicate(timeout=30)
    assert runner.returncode == 137
    assert "no master has renewed the driver's lease in time" in err
    assert gone(int((node.work_dir / "app" / "pid").read_text()))


def test_a_driver_without_supervision_goes_on_alone(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    runner = node.start("while [ ! -e end ]; do sleep 0.1; done; exit 3")
    eventually(lambda: len(master.asked) > 2, 30.0)
    master.silent = True
    (node.work_dir / "app" / "end").touch()
    assert runner.wait(30) == 3
    runner.communicate()


def test_a_driver_dies_with_its_runner(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    runner = node.start("echo $$ > pid; exec sleep 100")
    eventually(lambda: len(master.asked) > 2, 30.0)
    pid = node.work_dir / "app" / "pid"
    eventually(pid.exists, 10.0)
    os.kill(runner.pid, signal.SIGKILL)
    runner.communicate()
    eventually(lambda: gone(int(pid.read_text())), 10.0, "the driver is gone")


def test_a_driver_handles_sigterm_itself(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    runner = node.start('trap "exit 9" TERM; touch ready; while :; do sleep 0.1; done')
    eventually((node.work_dir / "app" / "ready").exists, 30.0)
    os.killpg(runner.pid, signal.SIGTERM)
    assert runner.wait(30) == 9
    runner.communicate()


def test_a_kill_while_files_are_fetched_ends_at_once(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    master.stalls = True
    runner = node.start("echo started")
    cache = node.directory / "cache"
    eventually(lambda: list(cache.glob("*.part")), 30.0, "it fetches")
    os.killpg(runner.pid, signal.SIGTERM)
    out, err = runner.communicate(timeout=30)
    assert (runner.returncode, out) == (143, "")
    assert err == "HRM: stopped before the driver has started\n"
    assert not list(cache.iterdir()), "half a file is of no use"
    assert not master.asked, "it never had a lease"


def test_a_kill_while_no_master_replies_ends_at_once(
    node: Node, master: FakeMaster, eventually: Callable[..., Any]
) -> None:
    master.silent = True
    runner = node.start("echo started")
    eventually((node.work_dir / "app" / "a.jar").exists, 30.0, "it has its files")
    os.killpg(runner.pid, signal.SIGTERM)
    out, _ = runner.communicate(timeout=30)
    assert (runner.returncode, out) == (143, "")


class _Clock:
    """In place of the runner's clock and of its pauses."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        patch.setattr(driver_runner, "_now_s", lambda: self.now)
        patch.setattr(threading.Event, "wait", lambda _event, seconds: self._pass(seconds))

    def _pass(self, seconds: float) -> None:
        self.now += seconds


class _Away:
    """A master that is unreachable for ``calls`` calls; ``sleeps``: the runner sleeps in call n."""

    def __init__(self, clock: _Clock, calls: int, sleeps: dict[int, float]) -> None:
        self._clock = clock
        self._calls = calls
        self._sleeps = sleeps
        self.asked = 0

    def Lease(  # noqa: N802
        self, request: Any, timeout: float, wait_for_ready: bool
    ) -> pb.LeaseDriverResponse:
        self.asked += 1
        self._clock.now += timeout + self._sleeps.get(self.asked, 0.0)
        if self.asked <= self._calls:
            raise grpc.RpcError
        return pb.LeaseDriverResponse(lease_s=20.0, renew_s=5.0)


@pytest.mark.parametrize("slept_s", [0.0, 10_000.0])
def test_the_patience_of_a_runner_with_its_master_counts_only_while_it_is_awake(
    monkeypatch: pytest.MonkeyPatch, slept_s: float
) -> None:
    clock = _Clock(monkeypatch)
    away = _Away(clock, calls=12, sleeps={3: slept_s})
    driver_runner.Lease(away, "m:1", "driver-1", 1, "k" * 64).take()
    assert away.asked == 13
    hopeless = _Away(clock, calls=1_000, sleeps={3: slept_s})
    with pytest.raises(HrmError):
        driver_runner.Lease(hopeless, "m:1", "driver-1", 1, "k" * 64).take()
    assert hopeless.asked < 60


def test_a_runner_that_slept_until_its_first_lease_was_over_requests_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept = _Away(_Clock(monkeypatch), calls=0, sleeps={1: 500.0})
    driver_runner.Lease(slept, "m:1", "driver-1", 1, "k" * 64).take()
    assert slept.asked == 2


def test_a_lease_is_over_when_its_time_is_whether_or_not_its_runner_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = _Clock(monkeypatch)
    lease = driver_runner.Lease(_Away(clock, calls=0, sleeps={}), "m:1", "driver-1", 1, "k" * 64)
    lease.take()
    monkeypatch.setattr(lease._let_go, "wait", lambda _: setattr(clock, "now", clock.now + 500.0))
    assert lease.hold().startswith("no master has renewed the driver's lease in time")
