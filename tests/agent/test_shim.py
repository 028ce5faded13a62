"""The shim, tested by its effect on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.containers import shim
from hrm.agent.run_as import may_switch

Eventually = Callable[..., Any]
StartShim = Callable[..., subprocess.Popen[bytes]]
LIMIT_S = 15


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartShim]:
    """Start a shim in ``tmp_path`` around ``sh -c script``; its first line has what it started."""
    shims: list[subprocess.Popen[bytes]] = []

    def begin(script: str, **more: Any) -> subprocess.Popen[bytes]:
        spec = {
            "work_dir": str(tmp_path),
            "cwd": str(tmp_path),
            "argv": ["sh", "-c", script],
            "environment": {"PATH": os.environ["PATH"]},
            "cgroup_files": [],
            "log_bytes_max": 65_536,
            "log_files_max": 3,
            "grace_s": 5.0,
            **more,
        }
        shim.write_json(tmp_path / "spec.json", spec)
        assert (tmp_path / "spec.json").stat().st_mode & 0o777 == 0o600
        command = [sys.executable, "-I", "-S", shim.__file__, str(tmp_path / "spec.json")]
        shims.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return shims[-1]

    yield begin
    for process in shims:
        process.kill()
        process.communicate()


def report_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    document = json.loads(process.stdout.readline())
    assert isinstance(document, dict)
    return document


def exit_of(directory: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.wait(LIMIT_S) == 0
    document = json.loads((directory / "exit.json").read_text())
    assert isinstance(document, dict)
    return document


def test_a_container_from_start_to_end(start: StartShim, tmp_path: Path) -> None:
    process = start("echo out; echo err >&2; echo $GREETING; exit 3",
                    environment={"PATH": os.environ["PATH"], "GREETING": "hello"})  # fmt: skip
    report = report_of(process)
    end = exit_of(tmp_path, process)
    assert (end["exit_code"], end["signal"], end["stopped"], end["error"]) == (3, 0, False, "")
    assert end["ended_at_s"] >= report["started_at_s"]
    assert (tmp_path / "stdout").read_text() == "out\nhello\n"
    assert (tmp_path / "stderr").read_text() == "err\n"
    assert json.loads((tmp_path / "process.json").read_text()) == report
    assert report["boot_id"] == shim.boot_id()


def test_secrets_are_in_no_argument_and_in_no_file(start: StartShim, tmp_path: Path) -> None:
    process = start("exec sleep 60", environment={"PATH": os.environ["PATH"], "KEY": "s3cret"})
    report = report_of(process)
    for pid in (report["pid"], report["shim_pid"]):
        assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert not (tmp_path / "spec.json").exists()
    assert not any(b"s3cret" in path.read_bytes() for path in tmp_path.iterdir())


def test_a_signal_that_ends_the_command_is_named(start: StartShim, tmp_path: Path) -> None:
    end = exit_of(tmp_path, start("kill -SEGV $$"))
    assert (end["exit_code"], end["signal"]) == (128 + signal.SIGSEGV, signal.SIGSEGV)


def test_the_command_has_pristine_signals(start: StartShim, tmp_path: Path) -> None:
    exit_of(tmp_path, start("grep SigIgn /proc/self/status"))
    ignored = int((tmp_path / "stdout").read_text().split()[1], 16)
    # 32 and 33 are the C library's own: if an ancestor ignores them, no program can change that.
    assert ignored & ~(0b11 << 31) == 0


def test_nothing_outlives_the_command(start: StartShim, tmp_path: Path) -> None:
    # A daemon in the classical way: a session of its own, no parent left, pipes still open.
    script = (
        "setsid sh -c 'echo $$ > daemon.pid; exec sleep 600' & until [ -s daemon.pid ]; do :; done"
    )
    end = exit_of(tmp_path, start(script))
    assert end["exit_code"] == 0
    assert shim.start_ticks(int((tmp_path / "daemon.pid").read_text())) is None


def test_sigterm_is_polite(start: StartShim, tmp_path: Path) -> None:
    process = start("trap 'echo bye; exit 7' TERM; echo set; while :; do sleep 0.05; done")
    report_of(process)
    _wait_for_output(tmp_path, "set")
    process.terminate()
    end = exit_of(tmp_path, process)
    assert (end["exit_code"], end["stopped"], end["killed"]) == (7, True, False)
    assert (tmp_path / "stdout").read_text() == "set\nbye\n"


@pytest.mark.parametrize(
    ("ordered", "comes"),
    [({}, "PWR"), ({"signal": ""}, "PWR"), ({"signal": "USR1"}, "USR1"), ({"signal": "X"}, "PWR")],
)
def test_decommissioning_is_the_commands_own_business(
    start: StartShim, tmp_path: Path, ordered: dict[str, str], comes: str
) -> None:
    helper = f"(trap 'echo helper-hit' {comes} TERM; until [ -f done ]; do sleep 0.05; done) & "
    script = f"trap 'touch done; wait; echo moved; exit 0' {comes}; echo set; wait"
    process = start(helper + script, grace_s=600.0)
    report_of(process)
    _wait_for_output(tmp_path, "set")
    shim.write_json(tmp_path / "stop.json", {"grace_s": 600.0, "decommission": True, **ordered})
    process.terminate()
    end = exit_of(tmp_path, process)
    assert (end["exit_code"], end["stopped"], end["killed"]) == (0, True, False)
    assert (tmp_path / "stdout").read_text() == "set\nmoved\n"


def test_a_second_order_overtakes_a_decommissioning(start: StartShim, tmp_path: Path) -> None:
    script = "trap 'echo draining' PWR; trap 'exit 3' TERM; echo set; while :; do sleep 0.05; done"
    process = start(script, grace_s=600.0)
    report_of(process)
    _wait_for_output(tmp_path, "set")
    shim.write_json(tmp_path / "stop.json", {"grace_s": 600.0, "decommission": True})
    process.terminate()
    _wait_for_output(tmp_path, "draining")
    shim.write_json(tmp_path / "stop.json", {"grace_s": 600.0})
    process.terminate()
    end = exit_of(tmp_path, process)
    assert (end["exit_code"], end["killed"]) == (3, False)


def test_after_the_grace_period_comes_the_kill(start: StartShim, tmp_path: Path) -> None:
    script = "trap '' TERM; echo set; while :; do sleep 0.05; done"
    process = start(script, grace_s=600.0)
    report_of(process)
    _wait_for_output(tmp_path, "set")
    shim.write_json(tmp_path / "stop.json", {"grace_s": 0.2})
    process.terminate()
    end = exit_of(tmp_path, process)
    assert (end["signal"], end["stopped"], end["killed"]) == (signal.SIGKILL, True, True)


def test_a_killed_shim_takes_the_command_with_it(
    start: StartShim, tmp_path: Path, eventually: Eventually
) -> None:
    process = start("exec sleep 600")
    report = report_of(process)
    process.kill()
    eventually(lambda: shim.start_ticks(report["pid"]) is None)
    assert not (tmp_path / "exit.json").exists()


ACCOUNT = {"uid": 65_534, "gid": 65_534, "groups": [65_534, 100]}
as_root = pytest.mark.skipif(not may_switch(), reason="only root can become another user")


@as_root
def test_a_command_becomes_the_account(start: StartShim, tmp_path: Path) -> None:
    end = exit_of(tmp_path, start("id -u; id -g; id -G; umask", account=ACCOUNT, cwd="/"))
    assert end["exit_code"] == 0
    output = (tmp_path / "stdout").read_text().split("\n")
    assert output == ["65534", "65534", "65534 100", "0077", ""]
    about = (tmp_path / "stdout").stat()
    assert (about.st_uid, about.st_gid, about.st_mode & 0o777) == (65_534, 65_534, 0o600)
    assert (tmp_path / "exit.json").stat().st_uid == os.getuid()


@as_root
def test_a_killed_shim_takes_a_command_of_another_user_with_it(
    start: StartShim, tmp_path: Path, eventually: Eventually
) -> None:
    """The kernel forgets the parent-death signal when ids change: it must be requested after."""
    process = start("exec sleep 600", account=ACCOUNT, cwd="/")
    pid = report_of(process)["pid"]
    try:
        process.kill()
        eventually(lambda: shim.start_ticks(pid) is None)
    finally:
        if shim.start_ticks(pid) is not None:
            os.kill(pid, signal.SIGKILL)


@as_root
def test_an_account_without_the_way_to_its_directory_is_notified(
    start: StartShim, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    problem = report_of(start("true", account=ACCOUNT))["error"]
    assert problem == f"cannot enter {tmp_path}: Permission denied"


PRIORITY_RAISED = (
    "import sys; from hrm.agent.containers import shim; shim._ORDER_LIMIT_S = 0.3; "
    "shim.main(sys.argv)"
)


def test_a_command_that_does_not_read_its_order_is_given_up(tmp_path: Path) -> None:
    """It has hung while it waited for its order, and its pipe holds less than the order."""
    spec = {
        "work_dir": str(tmp_path), "cwd": str(tmp_path), "argv": ["sleep", "600"],
        "environment": {"PATH": os.environ["PATH"]}, "cgroup_files": [],
        "log_bytes_max": 65_536, "log_files_max": 1, "grace_s": 0.0, "waits": True,
    }  # fmt: skip
    shim.write_json(tmp_path / "spec.json", spec)
    kept = ("work_dir", "cgroup_files", "log_bytes_max", "log_files_max", "grace_s")
    order = {**{name: spec[name] for name in kept}, "input": "x" * (1 << 20)}
    with subprocess.Popen(
        [sys.executable, "-c", PRIORITY_RAISED, str(tmp_path / "spec.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            output, _ = process.communicate(json.dumps(order).encode() + b"\n", timeout=LIMIT_S)
        finally:
            process.kill()
    assert json.loads(output) == {"error": "it did not read its order within 0.3 s"}
    assert process.returncode == 0


def test_logs_rotate_and_stay_bounded(start: StartShim, tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 3000 ]; do echo line-$i; i=$((i+1)); done"
    exit_of(tmp_path, start(script, log_bytes_max=4096, log_files_max=2))
    files = [tmp_path / name for name in ("stdout.2", "stdout.1", "stdout")]
    assert all(0 < path.stat().st_size <= 4096 for path in files)
    assert not (tmp_path / "stdout.3").exists()
    kept = b"".join(path.read_bytes() for path in files).decode()
    assert kept.endswith("line-2998\nline-2999\n")
    whole = "".join(f"line-{i}\n" for i in range(3000))
    assert whole.endswith(kept)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"argv": ["no-such-command"]}, "cannot execute no-such-command: No such file"),
        ({"cwd": "/no/such/place"}, "cannot enter /no/such/place: No such file"),
        ({"cgroup_files": ["/no/such/group"]}, "cannot join the cgroup /no/such/group: No such"),
    ],
)
def test_a_command_that_cannot_start(
    start: StartShim, tmp_path: Path, more: dict[str, Any], problem: str
) -> None:
    process = start("true", **more)
    assert report_of(process)["error"].startswith(problem)
    end = exit_of(tmp_path, process)
    assert (end["exit_code"], end["error"].startswith(problem)) == (-1, True)
    assert not (tmp_path / "process.json").exists()


def _wait_for_output(directory: Path, word: str) -> None:
    """Follow stdout with ``tail`` until the word is in it."""
    command = ["timeout", str(LIMIT_S), "sh", "-c", 'until grep -qs "$1" stdout; do :; done']
    subprocess.run([*command, "sh", word], cwd=directory, check=True)
