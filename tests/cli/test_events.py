"""``hrm events``: lines for people, objects for programs, and a follower that outlives a master."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import Result

from hrm import rpc
from hrm.cli.events import KindChoice, line_of, seconds_of
from hrm.core.vocabulary.history import EVENT_KINDS
from hrm.errors import InvalidRequest
from hrm.v1 import events_pb2, events_pb2_grpc
from tests.cli.conftest import FakeMaster

ENDED = events_pb2.StateEvent(
    event_id=7,
    at_s=1_700_000_000.25,
    kind="container",
    application_id="app-1",
    container_id="app-1-x1",
    node="node-1",
    from_state="running",
    to_state="ended",
    reason="over its limit\nof 1 GiB",
    actor="node node-1",
    cause="memory-limit",
    exit_code=137,
)


EXCLUDED = events_pb2.StateEvent(
    event_id=8,
    at_s=1_700_000_001.0,
    kind="node",
    application_id="app-1",
    node="node-1",
    to_state="excluded",
    reason="for app-1 for 60 s, until 2023-11-14 22:14:21 UTC: 2 of its containers failed there",
    actor="node node-1",
)


def event(number: int) -> events_pb2.StateEvent:
    return events_pb2.StateEvent(
        event_id=number, kind="node", node=f"n{number}", to_state="alive", actor="master"
    )


class FakeJournal(events_pb2_grpc.EventServiceServicer):
    """Two events for the first reader, and two others for a reader that returns."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def WatchEvents(self, request: Any, context: Any) -> Iterator[events_pb2.EventPage]:  # noqa: N802
        self.requests.append(request)
        if request.limit == 99:
            yield events_pb2.EventPage(resume="0")
            return
        first = int(request.resume or 0) + 1
        yield events_pb2.EventPage(
            events=[event(first), event(first + 1)], resume=str(first + 1), gap=first > 1
        )
        if request.follow:
            killed, stopped = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED
            context.abort(killed if first == 1 else stopped, "gone")


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJournal]:
    token = rpc.create_token(tmp_path / "token")
    assert token
    fake = FakeJournal()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    events_pb2_grpc.add_EventServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("HRM_MASTER", f"127.0.0.1:{port}")
    monkeypatch.setenv("HRM_TOKEN_FILE", str(tmp_path / "token"))
    try:
        yield fake
    finally:
        server.stop(grace=None).wait(timeout=10)


def test_a_line_states_when_what_where_why_and_by_which() -> None:
    line = line_of(ENDED)
    assert line.partition(".250 ")[2] == (
        "container app-1-x1 running -> ended on node-1 (memory-limit 137): over its limit of 1 GiB "
        "[node node-1]"
    )
    assert line_of(event(3)).endswith("node n3 alive [master]")
    assert ".000 node node-1 excluded: for app-1 for 60 s, until " in line_of(EXCLUDED)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("1.5h", 5400), ("2d", 172800)]
)
def test_an_age_has_a_unit(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["10", "m", "-5m", "1w", "1e3s", "10 m x"])
def test_what_is_no_age_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write 30s, 10m, 2h or 1d"):
        seconds_of(text)


def test_events_for_users_and_for_programs(
    journal: FakeJournal, hrm: Callable[..., Result]
) -> None:
    done = hrm("events", "--app", "app-1", "--node", "n1")
    assert done.exit_code == 0, done.output
    assert [line.split()[3] for line in done.stdout.splitlines()] == ["n1", "n2"]
    assert (journal.requests[-1].application_id, journal.requests[-1].node) == ("app-1", "n1")
    assert journal.requests[-1].limit == 100
    done = hrm("events", "--since", "10m", "--output", "json")
    document = json.loads(done.stdout)
    assert [x["node"] for x in document["events"]] == ["n1", "n2"]
    assert document["resume"] == "2"
    assert journal.requests[-1].since_s > 0
    assert journal.requests[-1].limit == 100_000
    assert "no such events" in hrm("events", "--limit", "99").stderr
    assert hrm("events", "--kind", "node", "--kind", "master").exit_code == 0
    assert list(journal.requests[-1].kinds) == ["node", "master"]
    assert hrm("events", "--kind", "driver").exit_code == 2
    assert tuple(kind.value for kind in KindChoice) == EVENT_KINDS


def test_a_bad_age_is_one_clear_line(master: FakeMaster, hrm: Callable[..., Result]) -> None:
    done = hrm("events", "--since", "soon")
    assert done.exit_code == 1
    assert "error: --since 'soon' is no age" in done.stderr


def test_a_follower_comes_back_with_its_token(journal: FakeJournal) -> None:
    command = [sys.executable, "-m", "hrm.cli", "events", "--follow", "--output", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(8)]
        process.terminate()
        stderr_text = process.stderr.read().decode()
    shown = [x["node"] or x["to_state"] for x in lines]
    assert shown == ["n1", "n2", "gap", "n3", "n4", "gap", "n5", "n6"]
    assert lines[2]["kind"] == "journal"
    assert [x.resume for x in journal.requests[:3]] == ["", "2", "4"]
    assert stderr_text.count("waiting for it") in (2, 3), (
        "after the last page, too, if it gets so far"
    )
    assert "events are missing here" in stderr_text, "the second page has a gap"
