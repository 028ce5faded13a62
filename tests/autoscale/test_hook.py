"""Hooks on real processes and a real HTTP server: those that work, fail and hang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from hrm.autoscale.hook import HookRunner
from hrm.config import AutoscaleSettings, load
from hrm.core.pool.scaler import REMOVE_CHARACTERS_MAX, CallHook
from hrm.errors import InvalidConfig

CALL = CallHook(
    wanted_nodes=7, present_nodes=5, remove=("n1", "n 2"), reason="9 needed now",
    waiting_cores=6.5, waiting_memory_mib=8192.0, waiting_gpu_memory_mib=0.0,
)  # fmt: skip
Eventually = Callable[..., object]


def command(tmp_path: Path, code: str) -> str:
    script = tmp_path / "hook.py"
    script.write_text(code)
    return f"{sys.executable} {script} 'one argument'"


def runner(command: str, **more: Any) -> HookRunner:
    return HookRunner(command=command, sleep=lambda _: None, **more)


def test_a_command_gets_the_call_twice_and_no_shell(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    code = (
        "import json, os, sys\n"
        "named = {n: v for n, v in os.environ.items() if n.startswith('HRM_')}\n"
        f"with open({str(found)!r}, 'w') as file:\n"
        "    json.dump([json.load(sys.stdin), sys.argv[1:], named], file)"
    )
    outcome = runner(command(tmp_path, code)).run(CALL)
    assert (outcome.ok, outcome.tries, outcome.reason) == (True, 1, "")
    document, arguments, variables = json.loads(found.read_text())
    assert document == {
        "wanted_nodes": 7, "present_nodes": 5, "remove": ["n1", "n 2"], "reason": "9 needed now",
        "waiting_cores": 6.5, "waiting_memory_mib": 8192.0, "waiting_gpu_memory_mib": 0.0,
    }  # fmt: skip
    assert arguments == ["one argument"]
    assert variables["HRM_WANTED_NODES"] == "7"
    assert variables["HRM_PRESENT_NODES"] == "5"
    assert variables["HRM_REMOVE_NODES"] == "n1,n 2"
    assert variables["HRM_WAITING_CORES"] == "6.5"
    assert variables["HRM_WAITING_MEMORY_MIB"] == "8192"


def test_a_command_that_fails_is_tried_again_and_its_words_are_kept(tmp_path: Path) -> None:
    code = "import sys\nsys.exit('no quota in zone b')"
    pauses: list[float] = []
    subject = HookRunner(command=command(tmp_path, code), tries=3, pause_s=2, sleep=pauses.append)
    outcome = subject.run(CALL)
    assert (outcome.ok, outcome.tries) == (False, 3)
    assert outcome.reason == "the command ended with status 1: no quota in zone b"
    assert pauses == [2, 4]


def test_a_command_that_recovers_succeeds(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = (
        f"import pathlib, sys\nmark = pathlib.Path({str(mark)!r})\n"
        "sys.exit(0 if mark.exists() else mark.touch() or 1)"
    )
    assert runner(command(tmp_path, code)).run(CALL).tries == 2


def test_a_command_that_hangs_is_killed_with_what_it_has_started(
    tmp_path: Path, eventually: Eventually
) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"with open({str(pids) + '.part'!r}, 'w') as file:\n"
        "    file.write(f'{os.getpid()} {child.pid}')\n"
        f"os.rename({str(pids) + '.part'!r}, {str(pids)!r})\n"
        "time.sleep(600)"
    )
    outcome = runner(command(tmp_path, code), timeout_s=5, tries=1).run(CALL)
    assert not outcome.ok
    assert "not ended within 5 s" in outcome.reason
    assert outcome.took_s < 60
    for pid in map(int, pids.read_text().split()):
        eventually(lambda pid=pid: not _lives(pid), what="the processes end")


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_command_that_is_not_there_or_reads_nothing(tmp_path: Path) -> None:
    assert "cannot be started" in runner("/no/such/program").run(CALL).reason
    many = CallHook(
        wanted_nodes=1, present_nodes=1, remove=tuple(f"node-{n}" for n in range(5000)), reason=""
    )
    assert runner(command(tmp_path, "pass")).run(many).ok


@pytest.mark.parametrize("status", [0, 3])
def test_it_is_the_end_of_the_command_that_counts_not_that_of_what_it_leaves(
    tmp_path: Path, status: int
) -> None:
    """``nohup terraform … &``, say, which keeps the standard error."""
    pid = tmp_path / "pid"
    code = f"sleep 600 & echo $! > {pid}; echo words >&2; exit {status}"
    outcome = runner(f"sh -c '{code}'", timeout_s=60, tries=1).run(CALL)
    left = psutil.Process(int(pid.read_text()))
    try:
        assert outcome.ok is (status == 0)
        assert outcome.took_s < 30
        assert outcome.reason == ("" if status == 0 else "the command ended with status 3: words")
        assert _lives(left.pid)
    finally:
        left.kill()


def test_of_what_a_command_writes_only_the_end_is_kept(tmp_path: Path) -> None:
    code = "head -c 50000000 /dev/zero >&2; echo the end >&2; exit 1"
    tracemalloc.start()
    try:
        outcome = runner(f"sh -c '{code}'", timeout_s=60, tries=1).run(CALL)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcome.reason.endswith("the end")
    assert most < 5_000_000


def test_names_of_so_many_nodes_as_a_call_has_fit_into_a_variable() -> None:
    name = "n" * 250
    remove = (name,) * (REMOVE_CHARACTERS_MAX // (len(name) + 1))
    many = CallHook(wanted_nodes=1, present_nodes=1, remove=remove, reason="")
    assert runner("true", tries=1).run(many).reason == ""


def test_where_it_is_to_stop_the_command_is_asked_to_end_and_not_tried_again(
    tmp_path: Path,
) -> None:
    mark, stop = tmp_path / "mark", threading.Event()
    code = f'trap "echo ended >> {mark}; exit 0" TERM; touch {mark}; while :; do sleep 0.05; done'
    subject = HookRunner(command=f"sh -c '{code}'", timeout_s=600, stop=stop)

    def stop_it() -> None:
        _wait_for(mark)
        stop.set()

    threading.Thread(target=stop_it, daemon=True).start()
    outcome = subject.run(CALL)
    assert (outcome.ok, outcome.tries) == (False, 1)
    assert "hrm autoscale was ended" in outcome.reason
    assert mark.read_text() == "ended\n"
    assert outcome.took_s < 60


def _wait_for(path: Path) -> None:
    until_s = time.monotonic() + 60
    tick = threading.Event()
    while not path.exists() and time.monotonic() < until_s:
        tick.wait(0.01)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_command_that_a_killed_process_has_left_ends_before_the_next_begins(
    tmp_path: Path, is_over: bool
) -> None:
    note, order = tmp_path / "hook.json", tmp_path / "order"
    left = subprocess.Popen(
        ["sh", "-c", f"sleep {600 if is_over else 0.5}; echo first >> {order}"],
        start_new_session=True,
    )
    began_s = psutil.Process(left.pid).create_time()
    timeout_s = 0.2 if is_over else 60.0
    note.write_text(json.dumps({"pid": left.pid, "began_s": began_s, "timeout_s": timeout_s}))
    try:
        subject = runner(f"sh -c 'echo second >> {order}'", note=note, timeout_s=60, tries=1)
        assert subject.run(CALL).ok
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(left.pid, signal.SIGKILL)
        left.wait(10)
    assert order.read_text() == ("second\n" if is_over else "first\nsecond\n")
    assert not note.exists()


@pytest.mark.parametrize(
    "note",
    ["", "[]", "{}", '{"pid": 1, "began_s": 5, "timeout_s": 60}',
     '{"pid": OWN, "began_s": 5, "timeout_s": 60}',
     '{"pid": 1e999, "began_s": "x", "timeout_s": null}'],
)  # fmt: skip
def test_a_note_that_is_of_no_command_holds_nothing_up(tmp_path: Path, note: str) -> None:
    path = tmp_path / "hook.json"
    path.write_text(note.replace("OWN", str(os.getpid())))
    assert runner("true", note=path, tries=1).run(CALL).ok


def test_while_a_command_runs_it_is_noted(tmp_path: Path) -> None:
    note, found = tmp_path / "hook.json", tmp_path / "found"
    code = f"until [ -s {note} ]; do sleep 0.02; done; cp {note} {found}; echo $$ >> {found}"
    assert runner(f"sh -c '{code}'", note=note, timeout_s=60, tries=1).run(CALL).ok
    document, pid = found.read_text().rsplit("}", 1)
    assert json.loads(document + "}")["pid"] == int(pid)


# --- over HTTP --------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    daemon_threads = True
    behaviour = "well"
    bodies: list[Any]
    ended: threading.Event


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if server.behaviour == "hangs":
            server.ended.wait(30)
            return
        if server.behaviour == "drips":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not server.ended.wait(0.1):
                try:
                    self.wfile.write(b"x")
                except OSError:
                    return
            return
        if server.behaviour == "garbage":
            self.wfile.write(b"\x00\x01 nothing\r\n\r\n")
            return
        code = {"well": 204, "refuses": 503, "redirects": 302}[server.behaviour]
        self.send_response(code)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.bodies, made.ended = [], threading.Event()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.ended.set()
        made.shutdown()
        made.server_close()


def posted(server: Server, behaviour: str, timeout_s: float = 10.0, tries: int = 2) -> Any:
    server.behaviour = behaviour
    url = f"http://127.0.0.1:{server.server_port}/pool"
    return HookRunner(url=url, timeout_s=timeout_s, tries=tries, sleep=lambda _: None)


def test_a_webhook_gets_the_call(server: Server) -> None:
    outcome = posted(server, "well").run(CALL)
    assert outcome.ok and outcome.tries == 1
    assert server.bodies[0]["wanted_nodes"] == 7


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("refuses", "503"), ("redirects", "302"), ("garbage", "cannot be")],
)
def test_a_webhook_that_fails_is_tried_again(server: Server, behaviour: str, reason: str) -> None:
    outcome = posted(server, behaviour).run(CALL)
    assert (outcome.ok, outcome.tries) == (False, 2)
    assert reason in outcome.reason
    assert len(server.bodies) == 2


@pytest.mark.parametrize("behaviour", ["hangs", "drips"])
def test_a_webhook_that_hangs_is_left_after_its_time(server: Server, behaviour: str) -> None:
    subject = posted(server, behaviour, timeout_s=0.5, tries=1)
    begun_s = time.monotonic()
    assert "no response within" in subject.run(CALL).reason or behaviour == "hangs"
    assert time.monotonic() - begun_s < 20
    server.behaviour = "well"  # the connection is closed: the next call does not wait for it
    assert subject.run(CALL).ok
    assert len(server.bodies) == 2


def test_where_it_is_to_stop_a_webhook_is_left_at_once(server: Server) -> None:
    stop = threading.Event()
    url = f"http://127.0.0.1:{server.server_port}/pool"
    server.behaviour = "drips"
    subject = HookRunner(url=url, timeout_s=600, stop=stop)
    stopper = threading.Timer(0.2, stop.set)
    stopper.start()
    outcome = subject.run(CALL)
    stopper.join()
    assert "hrm autoscale was ended" in outcome.reason and outcome.took_s < 60


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("command", " ", "names no program"),
        ("command", "''", "names no program"),
        ("command", "sh -c 'x", "cannot be read .* quote it"),
        ("command", "a\0b", "names no program"),
        ("url", "http://[::1", "no address of a webhook; write http"),
        ("url", "http://", "no address"),
        ("url", "http://host:port/", "no address"),
        ("url", "http://host/a b", "no address"),
        ("url", "ftp://host/", "no address"),
    ],
)
def test_a_hook_that_cannot_be_used_is_refused_with_the_settings(
    setting: str, value: str, message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        load(AutoscaleSettings, **{setting: value})


def test_hooks_that_can_be_used_are_taken() -> None:
    assert load(AutoscaleSettings, command="sh -c 'x y'").command == "sh -c 'x y'"
    for url in ("http://[::1]:8080/x", "https://hooks.example.com", "http://10.0.0.1:80/?pool=a"):
        assert load(AutoscaleSettings, url=url).url == url


def test_nobody_listens() -> None:
    outcome = HookRunner(url="http://127.0.0.1:1/", tries=1).run(CALL)
    assert "cannot be called" in outcome.reason


def test_the_environment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_ZONE", "b")
    code = "import os, sys\nsys.exit(0 if os.environ['CLOUD_ZONE'] == 'b' else 1)"
    assert runner(command(tmp_path, code)).run(CALL).ok
    assert "HRM_WANTED_NODES" not in os.environ
