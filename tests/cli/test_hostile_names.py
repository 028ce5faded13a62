"""Untrusted names, messages and logs on a user's terminal: nothing in them acts on it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from rich.console import Console

from hrm.cli import console, pipeline_views, policy, queries, render
from hrm.cli.events import line_of
from hrm.v1 import admin_pb2, events_pb2, pipeline_pb2, policy_pb2, submission_pb2
from tests.hostile_text import HOSTILE, TOP_SECRET_MARKUP, filled, unseen

WIDTH = 100
OUR_STYLES = re.compile(r"\x1b\[[0-9;]*m")

VIEWS: dict[str, Callable[[], Any]] = {
    "status": lambda: render.cluster_view(filled(admin_pb2.Cluster)),
    "nodes": lambda: render.nodes_table([filled(admin_pb2.Node)]),
    "node show": lambda: render.node_view(filled(admin_pb2.Node)),
    "apps": lambda: render.applications_table([filled(admin_pb2.Application)]),
    "app show": lambda: render.application_view(filled(admin_pb2.Application)),
    "app why": lambda: render.explanation_view(filled(admin_pb2.Explanation)),
    "policy show": lambda: policy.policies_view(filled(policy_pb2.ShowPoliciesResponse)),
    "policy shadow": lambda: policy.shadow_view(filled(policy_pb2.ShowPoliciesResponse)),
    "policy set": lambda: policy.ordered_view(filled(policy_pb2.LearnedPolicy)),
    "pipeline list": lambda: pipeline_views.tasks_table([filled(pipeline_pb2.PipelineTaskInfo)]),
    "pipeline workers": lambda: pipeline_views.workers_table(
        filled(pipeline_pb2.ListPipelineTasksResponse)
    ),
}


@pytest.mark.parametrize("width", [40, WIDTH, 10_000])
@pytest.mark.parametrize("name", VIEWS)
def test_no_table_obeys_what_it_shows(name: str, width: int) -> None:
    shown = Console(width=width, force_terminal=True, color_system=None, highlight=False)
    with shown.capture() as captured:
        shown.print(VIEWS[name]())
    output = captured.get()
    for style in ("\x1b[1m", "\x1b[0m"):  # bold headings are ours
        output = output.replace(style, "")
    assert unseen(output) == []
    if width > WIDTH:  # narrow columns fold
        assert "\\x1b[2J" in output, "it says what is there"
        assert TOP_SECRET_MARKUP in output, "markup is text"


def test_submissions_events_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    from hrm.cli import driver_submit

    rows = [filled(submission_pb2.Submission)] * 2
    queries.show(rows[0], console.Output.TABLE, lambda render: render.submissions_table(rows))
    console.line(line_of(filled(events_pb2.StateEvent)))
    console.line(driver_submit._line(rows[0]))
    console.error_line(HOSTILE)
    console.note(HOSTILE)
    out, err = capsys.readouterr()
    assert unseen(out) == []
    assert unseen(err) == []
    assert "\\x1b" in out
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    "kind", [admin_pb2.ListApplicationsResponse, admin_pb2.Node, admin_pb2.Explanation]
)
def test_json_has_the_truth_in_its_own_escapes(
    kind: type[Message], capsys: pytest.CaptureFixture[str]
) -> None:
    queries.show(filled(kind), console.Output.JSON, lambda _: "")
    output = capsys.readouterr().out
    assert unseen(output) == []
    assert HOSTILE in _strings(json.loads(output))


def _strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(_strings, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(_strings, value)) if value else set()
    return {value} if isinstance(value, str) else set()


def test_views_pass_text_through_one_place() -> None:
    """``rich``'s own ``escape`` only handles markup."""
    folder = Path(console.__file__).parent
    direct = [p.name for p in folder.glob("*.py") if "markup import escape" in p.read_text()]
    assert direct == ["console.py"]


def test_a_daemons_log_is_seen_and_obeyed_by_nothing() -> None:
    program = f"""
import structlog
from hrm.cli.daemons import _escape_logs
_escape_logs()
hostile = {HOSTILE!r}
log = structlog.get_logger("test")
log.warning("heard", name=hostile, names=[hostile], said={{hostile: hostile}})
try:
    raise ValueError(hostile)
except ValueError:
    log.error("failed", exc_info=True)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert done.stdout == b"", "a daemon's log goes to standard error"
    for output in (on_a_terminal(command), done.stderr.decode()):
        assert "heard" in output
        assert unseen(OUR_STYLES.sub("", output)) == []


PROGRAM = """
import sys
from hrm.cli.console import LogWriter
writer = LogWriter()
for chunk in (b"one\\r", b"\\n\\x1b[2J two \\xc3", b"\\xa4 \\xe2\\x80\\xae\\xff\\n"):
    writer.write(chunk)
writer.write(b"", last=True)
"""
RAW = b"one\r\n\x1b[2J two \xc3\xa4 \xe2\x80\xae\xff\n"


def test_a_log_reaches_a_pipe_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, timeout=60
    )
    assert done.stdout == RAW


def test_a_log_on_a_terminal_obeys_nothing(tmp_path: Path) -> None:
    output = on_a_terminal([sys.executable, "-c", PROGRAM])
    assert unseen(output) == []
    assert output == "one\n\\x1b[2J two ä \\u202e\\xff\n"


def on_a_terminal(command: list[str], environment: dict[str, str] | None = None) -> str:
    """The output on a real terminal of ``WIDTH`` columns, with its line ends as written."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    variables = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=variables | (environment or {})
    )
    os.close(child)
    pieces = []
    while True:
        try:
            piece = os.read(parent, 65_536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(parent)
    assert process.wait(60) is not None
    return b"".join(pieces).decode().replace("\r\n", "\n")
