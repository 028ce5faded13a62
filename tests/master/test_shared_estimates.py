"""The master's table of each user's steps: when workers get it, and how much of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import Device, Row
from hrm.pipelines.master import estimates as module
from hrm.pipelines.master.estimates import EstimatesOfUsers
from hrm.pipelines.master.streams import WorkerStream
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.policies.corun.store import load_estimates, merge_estimates
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire.gpu_uses import to_gpu_use

ROW, OTHER = Row("edges", 1, "P4"), Row("faces", 1, "P4")
USERS = {NodeName("w1"): "ann", NodeName("w2"): "ann", NodeName("w3"): "bob"}
AS_FAST = dict.fromkeys(Device, 1.0)


class Master:
    """The table, and the streams of workers that have registered; ``take``: they read."""

    def __init__(self, directory: Path, users: dict[NodeName, str]) -> None:
        self.now = 100.0
        self.known = EstimatesOfUsers(directory, users.get, clock_s=lambda: self.now)
        self.streams = {worker: WorkerStream("") for worker in users}
        self.taken: list[pb.MasterPipelineMessage] = []
        for worker in users:
            assert self.known.whole(worker) == b""

    def tick(self, passed_s: float = module.SHARE_PERIOD_S) -> None:
        self.now += passed_s
        self.known.ticked(self.streams)

    def take(self, workers: Iterable[NodeName] = ()) -> dict[NodeName, bytes]:
        """What ``workers`` (default: all) find on their streams."""
        found: dict[NodeName, bytes] = {}
        for worker in workers or self.streams:
            stream = self.streams[worker]
            while not stream.queue.empty():
                message = stream.queue.get_nowait()
                assert isinstance(message, pb.MasterPipelineMessage)
                stream.written(message)
                assert worker not in found, "one message at a time"
                self.taken.append(message)
                found[worker] = message.estimates
        return found


def test_what_was_measured_of_a_pipeline_is_listed_by_step(tmp_path: Path) -> None:
    known = Master(tmp_path, USERS).known
    of_ann = known.of("ann")
    use = (GpuUsePart(0.5, 700.0, 0.5, 0.1),) * USE_PARTS
    of_ann.observe_run(Row("p/b", 5, "P4"), Device.GPU, 2.0, 100.0, 800.0)
    of_ann.observe_gpu_use(Row("p/b", 5, "P4"), use)
    of_ann.observe_run(Row("p/a", 1, "P4"), Device.CPU, 3.0)
    of_ann.observe_run(Row("pq/a", 1, "P4"), Device.CPU, 3.0)
    first, second = known.profiles("ann", "p")
    assert (first.row.kind, first.cpu_s, first.gpu_s, first.memory_mib) == ("p/a", 3.0, 0.0, 0.0)
    assert (first.size_above_mb, first.size_at_most_mb) == (20.0, 60.0)
    assert (second.size_above_mb, second.size_at_most_mb) == (400.0, 0.0)
    assert (second.gpu_s, second.gpu_use_runs) == (2.0, 1)
    assert (second.memory_mib, second.gpu_memory_mib) == pytest.approx((100.0, 800.0))
    assert to_gpu_use(second.gpu_use) == use
    assert known.profiles("ann", "p/a") == [first]
    assert known.profiles("bob", "p") == []


def read(content: bytes) -> Stdm:
    received = Stdm(memory_mib=1000.0)
    load_estimates(content, received)
    return received


def test_each_worker_gets_what_is_new_of_its_own_user(tmp_path: Path) -> None:
    master = Master(tmp_path, USERS)
    master.known.of("ann").observe_run(ROW, Device.GPU, 2.0)
    master.tick(0.5)
    assert master.take() == {}, "not before the period has passed"
    master.tick()
    sent = master.take()
    assert set(sent) == {"w1", "w2"}, "of bob's steps nothing is known"
    assert read(sent[NodeName("w1")]).run_s(ROW, Device.GPU) == pytest.approx(2.0)
    master.tick()
    assert master.take() == {}, "they have it"
    master.known.of("ann").observe_run(ROW, Device.GPU, 4.0)
    master.tick()
    assert set(master.take()) == {"w1", "w2"}


def test_only_what_has_changed_since_is_sent_and_it_is_enough(tmp_path: Path) -> None:
    master = Master(tmp_path, USERS)
    known, worker = master.known.of("ann"), NodeName("w1")
    rng = np.random.default_rng(0)
    for number in range(300):
        row = Row(f"step {number}", 1, "P4")
        known.observe_run(row, Device.GPU, rng.uniform(1, 9), rng.uniform(50, 900))
        known.observe_cells(row, {"sm": rng.uniform(), "dram": rng.uniform()})
    master.tick()
    everything = master.take()[worker]
    known.observe_run(ROW, Device.GPU, 2.0)
    known.observe_run(ROW, Device.GPU, 3.0, co_runners=(OTHER,))
    master.tick()
    changed = master.take()[worker]
    assert list(read(changed).entries) == [ROW]
    assert len(changed) < 0.25 * len(everything)
    node = Stdm(memory_mib=1000.0)
    for content in (everything, changed):
        merge_estimates(content, node, AS_FAST)
    assert {row: entry.runs for row, entry in node.entries.items()} == {
        row: entry.runs for row, entry in known.entries.items()
    }
    assert node.pair_effects.sums() == known.pair_effects.sums()


def test_what_a_run_used_of_its_gpu_reaches_the_other_workers(tmp_path: Path) -> None:
    master, node = Master(tmp_path, USERS), Stdm(memory_mib=1000.0)
    known, worker = master.known.of("ann"), NodeName("w2")
    known.observe_run(ROW, Device.GPU, 2.0)
    known.observe_run(OTHER, Device.GPU, 2.0)
    for gpu in (0.5, 0.25):
        master.tick()
        merge_estimates(master.take()[worker], node, AS_FAST)
        known.observe_gpu_use(ROW, (GpuUsePart(gpu, 700.0, gpu, 0.125),) * USE_PARTS)
    master.tick()
    last = master.take()[worker]
    assert list(read(last).entries) == [ROW], "of no other has anything changed"
    merge_estimates(last, node, AS_FAST)
    assert node.gpu_use(ROW) == (GpuUsePart(0.375, 700.0, 0.375, 0.125),) * USE_PARTS
    assert node.gpu_use(OTHER) == ()


def test_workers_that_have_the_same_are_sent_one_message_and_not_all_at_once(
    tmp_path: Path,
) -> None:
    users = dict.fromkeys((NodeName(f"w{number}") for number in range(1000)), "ann")
    master = Master(tmp_path, users)
    master.known.of("ann").observe_run(ROW, Device.GPU, 2.0)
    master.tick()
    reached = master.take()
    assert len(reached) == 50, "a twentieth"
    assert len({id(message) for message in master.taken}) == 1, "it is made once"
    for _ in range(19):
        master.tick(0.5)
        more = master.take()
        assert not set(more) & set(reached)
        reached |= more
    assert len(reached) == 1000
    assert len(set(reached.values())) == 1


def test_a_worker_that_does_not_read_holds_one_message_and_misses_nothing(tmp_path: Path) -> None:
    master = Master(tmp_path, USERS)
    slow, quick = NodeName("w1"), NodeName("w2")
    for seconds in (2.0, 3.0, 4.0):
        master.known.of("ann").observe_run(ROW, Device.GPU, seconds)
        master.known.of("ann").observe_run(Row(f"for {seconds}", 1, "P4"), Device.GPU, seconds)
        master.tick()
        assert quick in master.take([quick])
    assert master.streams[slow].queue.qsize() == 1
    node = Stdm(memory_mib=1000.0)
    merge_estimates(master.take([slow])[slow], node, AS_FAST)
    master.tick()
    merge_estimates(master.take([slow])[slow], node, AS_FAST)
    assert node.run_s(ROW, Device.GPU) == pytest.approx(3.0)
    assert len(node.entries) == 4


def test_a_worker_that_registers_begins_with_all_and_is_sent_what_comes_later(
    tmp_path: Path,
) -> None:
    master = Master(tmp_path, USERS)
    for row in (ROW, OTHER):
        master.known.of("ann").observe_run(row, Device.GPU, 2.0)
    master.now += 5.0
    again = NodeName("w1")
    assert set(read(master.known.whole(again)).entries) == {ROW, OTHER}
    master.tick(5.0)
    assert set(master.take()) == {"w2"}, "w1 has it"
    master.known.of("ann").observe_run(ROW, Device.GPU, 2.0)
    del master.streams[again]
    master.tick()
    assert set(master.take()) == {"w2"}, "and is gone now"


def test_of_a_table_that_is_too_large_the_latest_rows_are_sent_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SENT_BYTES_MAX", 8_000)
    master = Master(tmp_path, USERS)
    known = master.known.of("ann")
    rows = [Row(f"step {number}", 1, "P4") for number in range(1000)]
    for number, row in enumerate(rows):
        known.observe_run(row, Device.GPU, 1.0 + number / 7)
    with capture_logs() as logs:
        master.tick()
        sent = master.take()[NodeName("w1")]
        master.known.whole(NodeName("w2"))
    assert len(sent) <= 8_000
    received = list(read(sent).entries)
    assert received and received == rows[-len(received) :]
    warned = [log for log in logs if "too many to send" in log["event"]]
    assert [(log["user"], log["rows"]) for log in warned] == [("ann", 1000)]


def test_workers_of_a_user_whose_table_was_read_again_are_sent_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "USERS_MAX", 0)
    master = Master(tmp_path, USERS)
    for _ in range(3):
        master.known.of("ann").observe_run(ROW, Device.GPU, 2.0)
    master.tick()
    master.take()
    before = master.known.of("ann")
    asyncio.run(master.known._save())
    assert master.known.of("ann") is not before
    master.known.of("ann").observe_run(OTHER, Device.GPU, 1.0)
    master.tick()
    assert list(read(master.take()[NodeName("w1")]).entries) == [ROW, OTHER]
