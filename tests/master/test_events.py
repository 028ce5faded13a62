"""The journal: changes are on disk, bounded, and read by late and by returning readers."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.core.master.core import MasterCore
from hrm.core.master.state import MasterState
from hrm.core.messages import events as e
from hrm.core.vocabulary.event_table import Lifecycle
from hrm.core.vocabulary.model import ApplicationId, ApplicationState, NodeState
from hrm.core.vocabulary.transitions import APPLICATION, NODE, ApplicationHappening, NodeHappening
from hrm.errors import InvalidConfig
from hrm.master import events_service, journal_file
from hrm.master import journal as journal_module
from hrm.master.events_service import EventService
from hrm.master.journal import EPOCH_BITS, EventFilter, Journal
from hrm.policies.min_wait import MinWait
from hrm.v1 import admin_pb2, application_pb2, common_pb2, events_pb2, events_pb2_grpc
from tests.master.test_services import (
    TIMEOUT_S,
    Running,
    asking_for,
    attached,
    node,
    refused,
    running,
    running_now,
)

EVERYTHING = EventFilter()
NOW = 1_000.0


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[Callable[..., Journal]]:
    """``journals(epoch, kept=…, keep_s=…)``: on one file, one after another."""
    made: list[Journal] = []

    def make(epoch: int = 1, kept: int = 1_000, keep_s: float = 3600.0) -> Journal:
        for journal in made:
            journal.close()
        made[:] = [Journal(tmp_path / "events.sqlite", epoch, kept=kept, keep_s=keep_s)]
        return made[0]

    yield make
    for journal in made:
        journal.close()


BY = {
    NodeState.ALIVE: NodeHappening.REGISTERED,
    NodeState.DRAINING: NodeHappening.DRAIN_ORDERED,
    NodeState.LOST: NodeHappening.FALLEN_SILENT,
}


def append(
    journal: Journal, *states: NodeState, at_s: float | None = None, name: str = "n1"
) -> None:
    """A node passes through ``states``."""
    life = Lifecycle("node", name, NODE, NodeState.ALIVE, journal.watch)
    for state in states:
        life.follow(BY[state], state, at_s if at_s is not None else time.time(), "said so")
        journal.took(None)


TO_AND_FRO = (NodeState.LOST, NodeState.ALIVE)


async def test_what_changed_is_there_for_the_next_master(
    journals: Callable[..., Journal],
) -> None:
    journal = journals(epoch=1)
    append(journal, NodeState.DRAINING, NodeState.LOST)
    await journal.flush()
    first = await journal.latest(EVERYTHING, 10)
    assert [(x.kind, x.node, x.from_state, x.to_state, x.reason) for x in first] == [
        ("node", "n1", "alive", "draining", "said so"),
        ("node", "n1", "draining", "lost", "said so"),
    ]
    later = journals(epoch=2)
    append(later, NodeState.DRAINING)
    await later.flush()
    known = await later.latest(EVERYTHING, 10)
    assert known[:2] == first
    assert (await later.page(first[-1].event_id, EVERYTHING, 10))[0] == known[2:]
    assert known[2].event_id > 2 << EPOCH_BITS, "whatever the last master lost"


async def test_a_closed_journal_has_written_all(journals: Callable[..., Journal]) -> None:
    journal = journals()
    append(journal, *(TO_AND_FRO * 600))
    again = journals(epoch=2, kept=10_000)
    assert len(await again.latest(EVERYTHING, 5_000)) == 1_200


async def test_no_more_are_kept_than_is_reported(
    journals: Callable[..., Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "TRIM_GROUP_MAX", 100)
    journal = journals(kept=1_000)
    append(journal, *(TO_AND_FRO * 1_000))
    await journal.flush()
    known = await journal.latest(EVERYTHING, 10_000)
    assert 1_000 <= len(known) <= 1_000 + 100 + journal_module.GROUP_MAX
    found, gone = await journal.page(known[0].event_id - 500, EVERYTHING, 1)
    assert (gone + 1, found) == (known[0].event_id, known[:1]), "who comes back now is told"
    assert (await journal.page(known[-1].event_id, EVERYTHING, 1)) == ([], 0)


async def test_old_ones_go(journals: Callable[..., Journal]) -> None:
    journal = journals(keep_s=3600.0)
    append(journal, *TO_AND_FRO, at_s=time.time() - 7200.0)
    append(journal, *TO_AND_FRO)
    again = journals(epoch=2, keep_s=3600.0)
    async with asyncio.timeout(TIMEOUT_S):
        known = await again.latest(EVERYTHING, 10)
        while len(known) != 2:
            known = await again.latest(EVERYTHING, 10)
    assert all(x.at_s > time.time() - 3600.0 for x in known)


def test_the_writer_rests_less_as_its_queue_fills_but_never_works_more_than_a_quarter() -> None:
    queued = range(0, journal_module.QUEUED_MAX + 1, 1_000)
    shares = [journal_module.rest_share(x) for x in queued]
    assert shares[0] == 19.0 and shares[-1] == 3.0
    assert shares == sorted(shares, reverse=True)


async def test_what_finds_no_capacity_is_counted_and_reported(
    journals: Callable[..., Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "QUEUED_MAX", 10)
    journal = journals()
    life = Lifecycle("node", "n1", NODE, NodeState.ALIVE, journal.watch)
    for state in TO_AND_FRO * 6:
        life.follow(BY[state], state, time.time(), "too many at once")
    journal.took(None)
    assert journal.dropped == 12
    append(journal, NodeState.DRAINING)
    await journal.flush()
    known = await journal.latest(EVERYTHING, 10)
    assert [x.kind for x in known] == ["journal", "node"], "it stands where they would"
    assert known[0].reason.startswith("12 events were dropped")
    of_one = await journal.latest(EventFilter(node="none of these"), 10)
    assert [x.kind for x in of_one] == ["journal"], "they may have been anybody's"


async def test_dropped_ones_are_reported_behind_what_was_queued_before(
    journals: Callable[..., Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing follows them."""
    journal = journals()
    monkeypatch.setattr(journal_module, "GROUP_MAX", 2)
    monkeypatch.setattr(journal_module, "QUEUED_MAX", 10)
    append(journal, *TO_AND_FRO * 5)
    life = Lifecycle("node", "n1", NODE, NodeState.ALIVE, journal.watch)
    for state in TO_AND_FRO * 6:
        life.follow(BY[state], state, time.time(), "too many at once")
    journal.took(None)
    async with asyncio.timeout(TIMEOUT_S):
        known = await journal.latest(EVERYTHING, 100)
        while len(known) < 11:
            await journal.grown(journal.newest(), 1.0)
            known = await journal.latest(EVERYTHING, 100)
    assert [x.kind for x in known] == [*["node"] * 10, "journal"]
    assert known[-1].reason.startswith("12 events were dropped")


async def test_a_disk_that_fails_stops_nothing(
    journals: Callable[..., Journal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "OPEN_TIMEOUT_S", 0.05)
    journal = journals()
    with contextlib.closing(sqlite3.connect(tmp_path / "events.sqlite")) as holder:
        holder.execute("BEGIN IMMEDIATE")
        append(journal, *TO_AND_FRO)
        await journal.flush()
        assert journal.dropped == 2
    append(journal, NodeState.DRAINING)
    await journal.flush()
    (moves, _) = await journal.latest(EVERYTHING, 10)
    assert moves.reason.startswith("2 events were dropped")
    assert "database is locked" in moves.reason, "the disk, and no queue that was full"


def test_a_journal_that_another_holds_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "OPEN_TIMEOUT_S", 0.05)
    path = tmp_path / "events.sqlite"
    holder = sqlite3.connect(path)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InvalidConfig, match="database is locked"):
        Journal(path, 1, kept=1_000, keep_s=60.0)
    holder.close()
    assert path.exists()


async def test_filters_select_events(journals: Callable[..., Journal]) -> None:
    journal = journals()
    append(journal, NodeState.LOST, at_s=time.time() - 100.0, name="n1")
    append(journal, NodeState.LOST, name="n2")
    app = Lifecycle("application", "app-1", APPLICATION, ApplicationState.SUBMITTED, journal.watch)
    app.take(ApplicationHappening.KILLED, time.time(), "why not")
    journal.took(e.KillRequested(now=0.0, call_id=1, application_id=ApplicationId("app-1")))
    await journal.flush()

    async def chosen(event_filter: EventFilter) -> list[str]:
        return [x.node or x.application_id for x in await journal.latest(event_filter, 10)]

    assert await chosen(EventFilter(node="n1")) == ["n1"]
    assert await chosen(EventFilter(application_id="app-1")) == ["app-1"]
    assert await chosen(EventFilter(since_s=time.time() - 50.0)) == ["n2", "app-1"]
    assert await chosen(EventFilter(kinds=("node",))) == ["n1", "n2"]
    assert await chosen(EventFilter(kinds=("node",), node="n2")) == ["n2"]
    assert await chosen(EventFilter(kinds=("application", "node"))) == ["n1", "n2", "app-1"]
    assert await chosen(EventFilter(kinds=("container",))) == []
    assert (await journal.latest(EventFilter(application_id="app-1"), 1))[
        0
    ].actor == "administrator"


def test_one_that_watches_changes_nothing() -> None:
    """The core replies the same, and each move is observed once, as it is made."""

    def fed(core: MasterCore) -> list[Any]:
        registered = e.ApplicationRegistered(
            now=NOW,
            call_id=1,
            application_id=ApplicationId(""),
            submission_key="k",
            name="a",
            user="u",
        )
        out = core.handle(registered)
        app = next(iter(core.master_state.applications))
        out += core.handle(
            e.ApplicationAttached(now=NOW, call_id=2, application_id=app, session=1, epoch=1)
        )
        return out + core.handle(e.KillRequested(now=NOW, call_id=3, application_id=app))

    moves: list[Any] = []
    watched = MasterCore(1, [MinWait(0)], watch=moves.append)
    assert repr(fed(watched)) == repr(fed(MasterCore(1, [MinWait(0)])))
    assert [(kind, was, to) for kind, _, _, was, to, _, _ in moves] == [
        ("application", None, ApplicationState.SUBMITTED),
        ("application", ApplicationState.SUBMITTED, ApplicationState.KILLED),
    ]
    assert isinstance(watched.master_state, MasterState)


# --- over gRPC --------------------------------------------------------------------------------


def stub(master: Running) -> Any:
    return events_pb2_grpc.EventServiceStub(master.channel)


async def read(master: Running, **event_filter: Any) -> tuple[list[Any], str]:
    """The events that match a filter, and the token to resume from."""
    found: list[Any] = []
    resume = ""
    request = events_pb2.WatchEventsRequest(**event_filter)
    async for page in stub(master).WatchEvents(request, timeout=TIMEOUT_S):
        found += page.events
        resume = page.resume
    return found, resume


async def lived(master: Running) -> str:
    """An application whose one executor runs on n1 and fails there; returns its id."""
    stream = master.nodes.Connect(timeout=TIMEOUT_S)
    await stream.write(node())
    await stream.read()
    session = await attached(master)
    await session.write(asking_for(1))
    async with asyncio.timeout(TIMEOUT_S):
        while (order := await stream.read()).WhichOneof("message") != "assign":
            pass
    spec = order.assign
    await stream.write(running_now(spec, 2))
    ended = running_now(spec, 3)
    ended.container.state = common_pb2.CONTAINER_STATE_ENDED
    ended.container.end.CopyFrom(
        common_pb2.ContainerEnd(
            cause=common_pb2.END_CAUSE_EXITED, exit_code=3, message="it wanted to"
        )
    )
    await stream.write(ended)
    async with asyncio.timeout(TIMEOUT_S):
        while common_pb2.CONTAINER_STATE_ENDED not in _states(await session.read()):
            pass
    huge = application_pb2.ContainerRequest(
        executor_id="9", resources=common_pb2.Resources(vcores=64, memory_mib=512)
    )
    ask = application_pb2.RequestContainers(containers=[huge])
    await session.write(application_pb2.ApplicationUpdate(request=ask))
    assert (await session.read()).refused.message
    kill = admin_pb2.KillApplicationRequest(application_id=spec.application_id, reason="enough")
    await master.admin.KillApplication(kill, timeout=TIMEOUT_S)
    session.cancel()
    stream.cancel()
    return str(spec.application_id)


def _states(notice: Any) -> list[int]:
    """The states of the containers in a notice, or in several in one."""
    return [x.state for x in (notice.container, *notice.changed.containers)]


CONTAINER_LIFE = ["pending", "assigned", "running", "ended"]


async def test_a_life_is_reconstructed_from_its_events(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        app = await lived(master)
        found, _ = await read(master, application_id=app)
        of_container = [x for x in found if x.kind == "container"]
        assert [x.to_state for x in of_container] == CONTAINER_LIFE
        assert [x.from_state for x in of_container] == ["", *CONTAINER_LIFE[:-1]]
        assert [x.node for x in of_container] == ["", "n1", "n1", "n1"]
        assert [x.actor for x in of_container] == [
            "application", "scheduler-1", "node n1", "node n1",
        ]  # fmt: skip
        end = of_container[-1]
        assert (end.cause, end.exit_code, end.reason) == ("exited", 3, "it wanted to")
        of_app = [(x.to_state, x.actor) for x in found if x.kind == "application"]
        assert of_app == [
            ("submitted", "application"),
            ("running", "node n1"),
            ("refused", "application"),
            ("killed", "administrator"),
        ]
        ids = [x.event_id for x in found]
        assert ids == sorted(set(ids))
        on_node, _ = await read(master, node="n1")
        assert [x.to_state for x in on_node if x.kind == "node"] == ["alive"]
        assert {x.container_id for x in on_node} == {"", end.container_id}


async def test_nodes_that_are_excluded_are_reported_with_reason_and_end(tmp_path: Path) -> None:
    times = {"node_failures": 1, "node_exclusion_s": 0.2, "node_exclusion_max_s": 0.2}
    async with running(tmp_path, **times) as master:
        app = await lived(master)
        request = events_pb2.WatchEventsRequest(node="n1", follow=True)
        found: list[Any] = []
        async for page in stub(master).WatchEvents(request, timeout=TIMEOUT_S):
            found += [x for x in page.events if "excluded" in (x.from_state, x.to_state)]
            if len(found) == 2:
                break
        assert [(x.kind, x.node, x.application_id) for x in found] == [("node", "n1", app)] * 2
        assert [(x.from_state, x.to_state) for x in found] == [
            ("", "excluded"), ("excluded", "admitted"),
        ]  # fmt: skip
        assert found[0].reason.startswith(f"for {app} for 0.2 s, until ")
        assert found[0].reason.endswith("failed there at once, the last: it wanted to")
        assert [x.actor for x in found] == ["node n1", "master"]
        assert found[1].at_s >= found[0].at_s + 0.2
        of_app, _ = await read(master, application_id=app)
        assert {x.event_id for x in found} <= {x.event_id for x in of_app}
    async with running(tmp_path) as master:
        again, _ = await read(master, node="n1")
        assert found == [x for x in again if "excluded" in (x.from_state, x.to_state)], "durable"


async def test_one_that_clears_a_node_ends_its_exclusion(tmp_path: Path) -> None:
    async with running(tmp_path, node_failures=1) as master:
        await lived(master)
        undo = admin_pb2.DrainNodesRequest(names=["n1"], undo=True)
        await master.admin.DrainNodes(undo, timeout=TIMEOUT_S)
        moves, _ = await read(master, node="n1")
        assert (moves[-1].to_state, moves[-1].actor) == ("admitted", "administrator")
        assert moves[-1].reason.endswith(": returned to service")


async def test_a_drain_and_a_return_are_recorded_with_their_reasons(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        await lived(master)
        for undo, reason in ((False, "new kernel"), (True, "it is up"), (False, "")):
            call = admin_pb2.DrainNodesRequest(names=["n1"], undo=undo, reason=reason)
            await master.admin.DrainNodes(call, timeout=TIMEOUT_S)
        moves, _ = await read(master, node="n1", kinds=("node",))
        assert [(x.to_state, x.reason) for x in moves][-3:] == [
            ("draining", "new kernel"),
            ("alive", "it is up"),
            ("draining", "a drain was requested"),
        ]


async def test_why_is_reported_after_the_master_has_forgotten(tmp_path: Path) -> None:
    async def why(master: Running, app: str) -> Any:
        request = admin_pb2.ExplainApplicationRequest(application_id=app)
        return await master.admin.ExplainApplication(request, timeout=TIMEOUT_S)

    async with running(tmp_path) as master:
        app = await lived(master)
        moves = await why(master, app)
        assert "killed" in moves.summary
        assert "enough" in moves.summary
        failure_line = "1 container ended badly (exited): it wanted to"
        assert failure_line in moves.details
        assert any(line.startswith("refused 1 executor") for line in moves.details)
    async with running(tmp_path, ended_applications_kept=0) as master:
        master.interpreter.submit(e.Ticked(now=time.time()))
        assert app not in master.interpreter.core.master_state.applications
        later = await why(master, app)
        assert later.summary.startswith("killed after ")
        assert later.summary.endswith(": enough")
        assert failure_line in later.details
        assert "it was submitted by somebody as app" in later.details
        with refused(grpc.StatusCode.NOT_FOUND, "and hrm pipeline list --all the tasks"):
            await why(master, "app-of-nobody")


async def test_a_log_is_searched_for_where_the_journal_states(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        app = await lived(master)
    async with running(tmp_path, ended_applications_kept=0) as master:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node())
        await stream.read()
        for executor in ("", "1"):
            request = admin_pb2.ReadLogsRequest(application_id=app, executor_id=executor)
            # No server is at the endpoint of this node: the test is that it is called at all.
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "the agent of n1"):
                await master.admin.ReadLogs(request, timeout=TIMEOUT_S).read()
        request = admin_pb2.ReadLogsRequest(application_id=app, executor_id="7")
        with refused(grpc.StatusCode.NOT_FOUND, "no "):
            await master.admin.ReadLogs(request, timeout=TIMEOUT_S).read()
        stream.cancel()


async def test_a_follower_is_notified_of_a_gap_where_it_is(
    journals: Callable[..., Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is slower than events are dropped, without any reconnection."""
    monkeypatch.setattr(journal_module, "TRIM_GROUP_MAX", 10)
    monkeypatch.setattr(events_service, "PAGE_EVENTS", 5)
    journal = journals(kept=20)
    append(journal, NodeState.LOST)
    pages = EventService(journal)._pages(EVERYTHING, None, 10, follow=True)
    first = await anext(pages)
    assert [len(first.events), (await anext(pages)).gap] == [1, False]
    append(journal, *TO_AND_FRO * 50)
    await journal.flush()
    async with asyncio.timeout(TIMEOUT_S):
        while len(await journal.latest(EVERYTHING, 1_000)) > 30:
            append(journal, *TO_AND_FRO)
            await journal.flush()
    gap, after = await anext(pages), await anext(pages)
    await pages.aclose()  # type: ignore[attr-defined]
    assert (gap.gap, len(gap.events), after.gap) == (True, 0, False)
    assert after.events[0].event_id == int(gap.resume) + 1 > first.events[0].event_id + 1


async def test_a_reader_that_follows_goes_on_at_the_next_master(tmp_path: Path) -> None:
    seen: list[Any] = []
    resume = ""
    async with running(tmp_path) as master:
        follow = stub(master).WatchEvents(
            events_pb2.WatchEventsRequest(follow=True, limit=10), timeout=TIMEOUT_S
        )
        app = await lived(master)
        async with asyncio.timeout(TIMEOUT_S):
            while "killed" not in [x.to_state for x in seen]:
                page = await follow.read()
                seen += page.events
                resume = page.resume
        follow.cancel()
    async with running(tmp_path) as master:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node("n2"))
        await stream.read()
        call = stub(master).WatchEvents(
            events_pb2.WatchEventsRequest(follow=True, resume=resume), timeout=TIMEOUT_S
        )
        async with asyncio.timeout(TIMEOUT_S):
            while "n2" not in [x.node for x in seen]:
                seen += (await call.read()).events
        call.cancel()
        stream.cancel()
        ids = [x.event_id for x in seen]
        assert ids == sorted(set(ids)), "none twice, in order"
        everything, _ = await read(master, limit=1_000)
        assert [x.event_id for x in everything] == ids, "and none missed"
        assert app in {x.application_id for x in seen}


@pytest.mark.parametrize(
    ("event_filter", "part"),
    [
        ({"limit": -1}, "limit is -1"),
        ({"limit": 100_001}, "from 1 to 100000"),
        ({"since_s": -1.0}, "since_s is -1"),
        ({"since_s": float("nan")}, "since_s is nan"),
        ({"kinds": ["node", "driver"]}, "'driver' is no kind of event; there are: application, "),
        ({"resume": "x"}, "no token"),
        ({"resume": "9" * 19}, "no token"),
        ({"node": "n" * 100_000}, "node has 100000 characters"),
    ],
)
async def test_bad_filters_are_refused(
    tmp_path: Path, event_filter: dict[str, Any], part: str
) -> None:
    async with running(tmp_path) as master:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, part):
            await read(master, **event_filter)


async def test_not_all_may_follow_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, event_followers=1) as master:
        request = events_pb2.WatchEventsRequest(follow=True)
        first = stub(master).WatchEvents(request, timeout=TIMEOUT_S)
        await first.read()
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "follow already"):
            await stub(master).WatchEvents(request, timeout=TIMEOUT_S).read()
        first.cancel()
