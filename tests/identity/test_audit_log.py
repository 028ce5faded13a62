"""The audit log's files: what is written is read again, in order, within bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.errors import NotAllowed, NotFound
from hrm.identity.audit import AuditRecord
from hrm.identity.roles import CLUSTER, IdentityKind
from hrm.master import audit_log
from hrm.master.audit_log import PARTS, AuditLog
from hrm.rpc_server import CallOutcome

DRAIN = "/hrm.v1.AdminService/DrainNodes"


def outcome(what: str = "n1", **fields: Any) -> CallOutcome:
    values = {"identity": CLUSTER, "method": DRAIN, "peer": "ipv4:1.2.3.4:5", "what": what}
    return CallOutcome(**{**values, **fields})


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[AuditLog]:
    subject = AuditLog(tmp_path / "audit", 1 << 20, Clock())
    running = asyncio.create_task(subject.run())
    yield subject
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def latest(log: AuditLog, **fields: Any) -> list[AuditRecord]:
    return await log.latest(**{"name": "", "since_s": 0.0, "limit": 100, **fields})


async def test_changes_and_refusals_come_back_in_the_order_of_time(log: AuditLog) -> None:
    log.take(outcome("a"))
    log.take(outcome("b", error=NotFound("no such node: b")))
    log.take(outcome("c", lasts=True))
    log.take(outcome("d", error=NotAllowed("not yours")))
    found = await latest(log)
    assert [(x.what, x.result) for x in found] == [
        ("a", "ok"), ("b", "NOT_FOUND: no such node: b"), ("c", "begun"),
        ("d", "PERMISSION_DENIED: not yours"),
    ]  # fmt: skip
    assert [x.at_s for x in found] == [1_001.0, 1_002.0, 1_003.0, 1_004.0]
    assert [x.what for x in await latest(log, since_s=1_003.0)] == ["c", "d"]
    assert [x.what for x in await latest(log, limit=1)] == ["d"]
    assert await latest(log, name="somebody") == []


async def test_each_line_is_an_object_with_who_what_where_and_the_result(
    log: AuditLog, tmp_path: Path
) -> None:
    log.take(outcome("n1\nn2"))
    await log.flush()
    path = tmp_path / "audit" / "changes.jsonl"
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == {
        "time": "1970-01-01T00:16:41.000+00:00", "identity": "cluster", "kind": "cluster",
        "role": "admin", "token": "", "peer": "ipv4:1.2.3.4:5", "rpc": "AdminService/DrainNodes",
        "object": "n1\nn2", "result": "ok",
    }  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600


async def test_it_has_a_bound_and_a_flood_of_refusals_displaces_no_change(tmp_path: Path) -> None:
    bytes_max = 64 * 1024
    log = AuditLog(tmp_path / "audit", bytes_max, Clock())
    log.take(outcome("the change"))
    for number in range(3_000):
        log.take(outcome(f"x{number}", error=NotAllowed("not yours")))
        if number % 10 == 0:
            await log.flush()
    found = await latest(log, limit=10_000)
    assert found[0].what == "the change"
    assert found[-1].what == "x2999"
    files = list((tmp_path / "audit").iterdir())
    assert len(files) <= 2 * PARTS
    assert sum(path.stat().st_size for path in files) < 1.2 * bytes_max
    assert len(found) < 1_000


async def test_who_changes_much_displaces_own_lines_alone(tmp_path: Path) -> None:
    bytes_max = 256 * 1024
    log = AuditLog(tmp_path / "audit", bytes_max, Clock())
    eve = replace(CLUSTER, name="eve", kind=IdentityKind.USER)
    for number in range(30):
        log.take(outcome(f"early {number}"))
    for number in range(6_000):
        log.take(outcome(f"x{number}", identity=eve))
        if number == 3_000:
            log.take(outcome("late"))
        if number % 50 == 0:
            await log.flush()
    found = await latest(log, limit=10_000)
    others = [x.what for x in found if x.name == CLUSTER.name]
    assert others == [*(f"early {number}" for number in range(30)), "late"]
    assert [x.at_s for x in found] == sorted(x.at_s for x in found)
    own = [x.what for x in found if x.name == "eve"]
    assert own == [f"x{number}" for number in range(6_000 - len(own), 6_000)]
    files = list((tmp_path / "audit").iterdir())
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert sum(path.stat().st_size for path in files) < 0.7 * bytes_max
    assert 200 < len(own) < 1_000


async def test_where_nothing_can_be_merged_the_oldest_lines_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, flags: int) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(audit_log, "_opened", full)
    log = AuditLog(tmp_path / "audit", 64 * 1024, Clock())
    for number in range(1_000):
        log.take(outcome(f"x{number}"))
        if number % 10 == 0:
            await log.flush()
    assert (await latest(log))[-1].what == "x999"
    assert log.dropped == 0
    assert len(list((tmp_path / "audit").iterdir())) == PARTS


@given(st.lists(st.integers(0, 100)), st.integers(0, 1_000))
def test_shares_are_equal_and_fit(sizes: list[int], room: int) -> None:
    share = audit_log._share(sizes, room)
    used = sum(min(size, share) for size in sizes)
    assert used <= room
    if used < sum(sizes):
        assert used + sum(size > share for size in sizes) > room, "no more for each would fit"


async def test_what_is_damaged_is_passed_over(log: AuditLog, tmp_path: Path) -> None:
    log.take(outcome("a"))
    await log.flush()
    with (tmp_path / "audit" / "changes.jsonl").open("ab") as file:
        file.write(b'{"time": "19\n[]\n{}\n\xff\xfe\n')
    log.take(outcome("b"))
    assert [x.what for x in await latest(log)] == ["a", "b"]


async def test_what_cannot_be_written_is_counted(
    log: AuditLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "audit" / "changes.jsonl").mkdir()
    log.take(outcome("a"))
    await log.flush()
    assert log.dropped == 1
    monkeypatch.setattr(audit_log, "QUEUED_MAX", 0)
    log.take(outcome("b"))
    assert log.dropped == 2


async def test_what_was_taken_last_is_written_at_the_end(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit", 1 << 20)
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    log.take(outcome("last"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert "last" in (tmp_path / "audit" / "changes.jsonl").read_text()
