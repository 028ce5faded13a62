"""Server, holders and clients as real processes, around a program with a warm JVM's protocol."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hrm.cli import warm as command
from hrm.errors import AlreadyExists, Unavailable
from hrm.spark.warm import client as client_module
from hrm.spark.warm.client import surroundings
from hrm.spark.warm.kind import kind_of, request_of
from hrm.spark.warm.pool import KindKept, WarmBounds
from hrm.spark.warm.server import WarmServer

CLIENT = Path(client_module.__file__)
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
LIMIT_S = 30.0


class Place:
    """A directory with a Spark whose Java is ``fake_jvm.py``, and a server in a thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("spark/bin", "spark/jars", "java/bin", "cwd", "runtime"):
            (root / name).mkdir(parents=True)
        (root / "spark/bin/load-spark-env.sh").write_text("")
        (root / "spark/bin/spark-class").write_text(
            '#!/bin/sh\necho "cold because: $HRM_START" >&2\nshift\necho "cold $*"\nexit 7\n'
        )
        (root / "spark/bin/spark-class").chmod(0o755)
        java = root / "java/bin/java"
        shutil.copy(Path(__file__).with_name("fake_jvm.py"), root / "java/bin/fake_jvm.py")
        java.write_text(f'#!/bin/sh\nexec {sys.executable} -S {java.parent}/fake_jvm.py "$@"\n')
        java.chmod(0o755)
        self.behave("well")
        self.environment = {
            "PATH": os.environ["PATH"],
            "SPARK_HOME": str(root / "spark"),
            "JAVA_HOME": str(root / "java"),
            "HRM_PYTHON": sys.executable,
        }
        self.idle_s = 0.0
        self.server: WarmServer | None = None
        self._thread: threading.Thread | None = None

    def behave(self, how: str) -> None:
        (self.root / "java/bin/behaviour").write_text(how)

    def start(self, **bounds: Any) -> WarmServer:
        usual: dict[str, Any] = {"delay_s": 0.0}
        server = WarmServer(WarmBounds(**{**usual, **bounds}), self.root / "runtime", self._idle)
        request = request_of({
            "arguments": ["--master", "hrm://h:1", "pyspark-shell"], "properties": {},
            "environment": self.environment, "cwd": str(self.root / "cwd"),
            "surroundings": surroundings(),
        })  # fmt: skip
        kind = kind_of(request, surroundings(), sys.executable)
        assert not isinstance(kind, str), kind
        server.handle(KindKept(now=time.monotonic(), kind=kind))
        self._thread = threading.Thread(target=server.run)
        self._thread.start()
        self.server = server
        return server

    def _idle(self) -> float:
        """More than any number of cores could be: the machine is idle."""
        self.idle_s += 1e3
        return self.idle_s

    def stop(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self.ask("stop")
            self._thread.join(LIMIT_S)
            assert not self._thread.is_alive()

    def ask(self, what: str) -> dict[str, Any]:
        import socket

        connection = socket.socket(socket.AF_UNIX)
        with connection:
            connection.settimeout(LIMIT_S)
            connection.connect(str(self.root / "runtime" / "socket"))
            connection.sendall(client_module.frame({"ask": what}))
            frames = client_module.Frames()
            while data := connection.recv(65536):
                for reply in frames.feed(data):
                    return reply
        raise AssertionError("no reply")

    def kind(self) -> dict[str, Any]:
        (kind,) = self.ask("status")["kinds"]
        assert isinstance(kind, dict)
        return kind

    def driver(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        own = [SUBMIT, "--master", "spark+hrm://h:1", "app.py", *arguments]
        given = [SUBMIT, "--master", "hrm://h:1", "app.py", *arguments]
        words = [str(self.root / "runtime" / "socket"), "/event logs", str(len(given))]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(CLIENT), *words, *given, *own],
            env={**self.environment, "SECRET_OF_ADA": "s3cret", "BASH_FUNC__hrm_fail%%": "() {}"},
            cwd=self.root / "cwd",
            **{
                "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                "text": True, **more,
            },
        )  # fmt: skip

    def waiting(self) -> tuple[subprocess.Popen[str], int]:
        """A driver that has taken a JVM and waits, and the JVM's pid."""
        process = self.driver("wait", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        with process.stdout as lines:
            found = [lines.readline() for _ in range(3)]
        return process, int(found[-1].removeprefix("waiting "))

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.driver(*arguments)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
        return process.returncode, stdout, stderr


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    import tempfile

    root = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))  # sockets need short paths
    found = Place(root)
    yield found
    found.stop()
    there = [p for p in psutil.process_iter(["cmdline"]) if str(root) in str(p.info["cmdline"])]
    _, left = psutil.wait_procs(there, timeout=LIMIT_S)
    for process in left:
        process.kill()
    shutil.rmtree(root)
    assert not left, "a process has been left behind"


def ready(place: Place, eventually: Callable[..., Any]) -> None:
    eventually(lambda: place.kind()["ready"] == 1, LIMIT_S, "a JVM is ready")


def test_a_driver_takes_the_jvm_that_waits_and_another_replaces_it(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.start()
    ready(place, eventually)
    code, stdout, stderr = place.run("3")
    assert code == 3
    assert "arguments --master spark+hrm://h:1 app.py 3" in stdout
    assert "variable s3cret" in stdout
    assert "before" not in stdout + stderr, "what it wrote earlier belongs to nobody"
    assert json.loads(stderr.removeprefix("properties ")) == {
        "spark.hrm.start": "warm", "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": "/event logs",
    }  # fmt: skip
    eventually(lambda: place.kind()["used"] == 1, LIMIT_S, "it is counted")
    ready(place, eventually)
    assert place.run("0")[0] == 0


def test_no_secret_is_in_the_arguments_or_the_environment_of_a_process(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.start()
    ready(place, eventually)
    process, pid = place.waiting()
    seen = psutil.Process(pid)
    assert "s3cret" not in str(seen.environ()) + str(seen.cmdline())
    process.terminate()
    assert process.wait(LIMIT_S) == 143


def test_input_output_and_their_ends_pass_through(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.start()
    ready(place, eventually)
    process = place.driver("echo")
    stdout, _ = process.communicate("to be\nor not\n" * 20_000, timeout=LIMIT_S)
    assert stdout.count("to be\nor not\n") == 20_000
    assert process.returncode == 0
    ready(place, eventually)
    code, stdout, _ = place.run("much")
    assert (code, stdout.count("x")) == (0, 300_000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_jvm_in_use_ends_with_the_process_that_stands_for_it(
    place: Place, eventually: Callable[..., Any], number: signal.Signals
) -> None:
    place.start()
    ready(place, eventually)
    process, pid = place.waiting()
    process.send_signal(number)
    assert process.wait(LIMIT_S) == (143 if number is signal.SIGTERM else -number)
    eventually(lambda: not psutil.pid_exists(pid), LIMIT_S, "the JVM has ended")


def test_what_ends_by_a_signal_is_seen_to_end_by_it(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.start()
    ready(place, eventually)
    process, pid = place.waiting()
    os.kill(pid, signal.SIGKILL)
    assert process.wait(LIMIT_S) == -signal.SIGKILL


def test_an_application_goes_on_when_the_server_ends_and_what_waits_ends(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.start(per_kind=1)
    ready(place, eventually)
    process = place.driver("echo")
    eventually(lambda: place.kind()["used"] == 1, LIMIT_S, "it has been taken")
    ready(place, eventually)
    place.stop()
    stdout, _ = process.communicate("still here", timeout=LIMIT_S)
    assert "still here" in stdout
    assert process.returncode == 0


def test_two_that_want_the_one_jvm_get_one_warm_and_one_cold_start(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.start(delay_s=60.0)
    ready(place, eventually)
    both = [place.driver("0"), place.driver("0")]
    ended = [process.communicate(timeout=LIMIT_S) for process in both]
    assert sorted(process.returncode for process in both) == [0, 7], "7 is the cold one's"
    (cold,) = [stderr for stdout, stderr in ended if stdout.startswith("cold")]
    assert cold == "cold because: cold: no warm driver of its kind is ready\n"


def test_a_cold_start_has_the_arguments_as_they_were_given(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.start()
    code, stdout, stderr = place.run("--x", "y z")
    assert (code, stdout) == (7, "cold --master hrm://h:1 app.py --x y z\n")
    assert "not ready yet" in stderr


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("declines", "the addresses of this machine have changed"),
        ("deaf", "the warm JVM has not read its order within 0.8 s"),
    ],
)
def test_a_jvm_that_does_not_take_its_order_costs_one_line_and_a_cold_start(
    place: Place, eventually: Callable[..., Any], behaviour: str, why: str
) -> None:
    place.behave(behaviour)
    place.start(delay_s=60.0)
    ready(place, eventually)
    code, stdout, stderr = place.run("0")
    assert (code, stdout.split()[0]) == (7, "cold")
    assert stderr.splitlines()[0] == f"HRM: this driver starts cold: {why}"
    eventually(lambda: place.kind()["problem"] == why, LIMIT_S, "the pool knows")


def test_a_rehearsal_that_fails_or_hangs_is_given_up_with_the_reason(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.behave("fails")
    place.start()
    eventually(
        lambda: "the rehearsal's reason" in place.kind()["problem"], LIMIT_S, "the last line"
    )
    assert place.run("0")[0] == 7
    place.stop()
    shutil.rmtree(place.root / "runtime")
    (place.root / "runtime").mkdir()
    place.behave("hangs")
    place.start(ready_limit_s=0.5, delay_s=60.0)
    eventually(lambda: "not ready within 0.5 s" in place.kind()["problem"], LIMIT_S, "its limit")


def test_one_that_is_killed_while_it_waits_is_replaced(
    place: Place, eventually: Callable[..., Any]
) -> None:
    place.start()
    ready(place, eventually)
    waiting = jvms(place)
    assert len(waiting) == 1
    waiting[0].kill()
    eventually(lambda: jvms(place) not in ([], waiting), LIMIT_S, "another has started")
    ready(place, eventually)
    assert place.run("0")[0] == 0


def jvms(place: Place) -> list[psutil.Process]:
    name = str(place.root / "java/bin/fake_jvm.py")
    return [p for p in psutil.process_iter(["cmdline"]) if name in (p.info["cmdline"] or [])]


def test_a_full_disk_beneath_its_logs_stops_nothing(
    place: Place, eventually: Callable[..., Any]
) -> None:
    server = place.start()
    ready(place, eventually)
    place.stop()
    shutil.rmtree(place.root / "runtime")
    (place.root / "runtime").mkdir()
    (place.root / "runtime" / "jvm-1.log").symlink_to("/dev/full")
    assert server.address.parent == place.root / "runtime"
    place.start()
    ready(place, eventually)
    assert place.run("0")[0] == 0


def test_where_no_server_is_there_a_driver_starts_cold_without_a_word(place: Place) -> None:
    place.start()
    place.stop()
    code, _, stderr = place.run("0")
    assert code == 7
    assert stderr == "cold because: cold: no warm server is there\n"


def test_a_client_that_says_nothing_or_nonsense_holds_nobody_up(
    place: Place, eventually: Callable[..., Any]
) -> None:
    import socket

    place.start()
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as wrong:
        for each in (silent, wrong):
            each.connect(str(place.root / "runtime" / "socket"))
            each.settimeout(LIMIT_S)
        wrong.sendall(b"\xff" * 100)
        assert wrong.recv(10) == b"", "dropped"
        ready(place, eventually)
        assert place.run("0")[0] == 0
        assert silent.recv(10) == b"", "dropped after its time"


def test_the_commands_say_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HRM_HOME", str(tmp_path))
    for what in ("status", "stop"):
        with pytest.raises(Unavailable, match="type hrm warm to start"):
            command.ask(what)


def test_bounds_of_a_server_that_runs_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    monkeypatch.setenv("HRM_HOME", str(place.root / "home"))
    (place.root / "home" / "warm").mkdir(parents=True)
    address = place.root / "home" / "warm" / "address"
    server = place.start()
    address.write_text(f"{server.address}\n")
    with pytest.raises(AlreadyExists, match="hrm warm --stop"):
        command.keep_here({"per_kind": 2})
