"""What an agent keeps of its containers' use of GPUs, and what it sends of that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hrm.agent.gpu import use_records
from hrm.agent.gpu.use_records import SAVE_S, GpuUseRecords
from hrm.agent.gpu.waiter_policy import sharing_policy
from hrm.config import AgentSettings
from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import ContainerEnd, ContainerId, EndCause
from hrm.errors import InvalidConfig
from hrm.policies.guard import GuardMode
from hrm.policies.model_files import write
from hrm.policies.shared_gpu.guarded import GuardedGpuSharing
from hrm.policies.shared_gpu.waiters import ProfiledWaiters
from hrm.wire.container_uses import to_container_uses
from tests.policies.shared_gpu.test_container_uses import spec, use
from tests.policies.shared_gpu.test_learned import model

NAN = float("nan")
DONE = ContainerEnd(cause=EndCause.EXITED, exit_code=0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lived(records: GpuUseRecords, clock: Clock, name: str, application: str = "train") -> None:
    records.began(spec(name, application=application))
    for _ in range(USE_PARTS):
        records.sampled({name: use(800.0)})
        clock.now += 1.0
    records.ended(ContainerId(name), DONE)


def test_records_outlive_the_agent(tmp_path: Path) -> None:
    clock = Clock()
    records = GpuUseRecords(tmp_path / "uses", clock)
    lived(records, clock, "c1")
    records.save()
    again = GpuUseRecords(tmp_path / "uses", clock)
    assert again.uses.get(spec()) == records.uses.get(spec()) == (use(800.0),) * USE_PARTS
    assert (tmp_path / "uses").stat().st_mode & 0o777 == 0o600


def test_they_are_written_now_and_then_and_only_if_there_is_something_new(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "uses"
    records = GpuUseRecords(path, clock)
    lived(records, clock, "c1")
    records.sampled({})
    assert not path.exists()
    clock.now += SAVE_S
    records.sampled({})
    assert path.exists()
    path.unlink()
    clock.now += SAVE_S
    records.sampled({})
    assert not path.exists()


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", '{"version": 2, "kinds": []}', '{"version": 1, "kinds": [{}]}',
        '{"version": 1, "kinds": [{"kind": ["a", "b", "executor", 0, 1], "runs": 1, "parts": []}]}',
        json.dumps({"version": 1, "kinds": [
            {"kind": ["a", "b", "executor", 0, 1], "runs": 1, "parts": [[NAN, 1, 0, 0]] * USE_PARTS}
        ]}),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_and_recorded_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "uses"
    path.write_text(content)
    with capture_logs() as logs:
        assert list(GpuUseRecords(path).uses) == []
    (line,) = logs
    assert line["file"] == str(path) and line["why"]


def test_a_sample_without_a_part_is_left_out_with_one_line(tmp_path: Path) -> None:
    clock = Clock()
    records = GpuUseRecords(tmp_path / "uses", clock)
    records.began(spec())
    with capture_logs() as logs:
        for _ in range(5):
            records.sampled({"c1": GpuUsePart(NAN, 800.0, NAN, 0.0)})
            clock.now += 1.0
        records.ended(ContainerId("c1"), DONE)
    first, last = logs
    assert first["why"] == "gpu is nan, no number" and first["container"] == "c1"
    assert last["why"] == "fewer than two samples were taken of it"
    assert list(records.uses) == []


def test_a_disk_that_is_full_loses_no_record_but_on_the_disk(tmp_path: Path) -> None:
    clock = Clock()
    records = GpuUseRecords(tmp_path / "gone" / "uses", clock)
    lived(records, clock, "c1")
    with capture_logs() as logs:
        records.save()
    assert logs[0]["event"] == "recorded uses of GPUs are not saved"
    (tmp_path / "gone").mkdir()
    records.save()
    assert (tmp_path / "gone" / "uses").exists()


def test_the_master_gets_what_is_new_some_at_a_time_and_all_again_on_a_new_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_records, "GPU_USES", 2)
    clock = Clock()
    records = GpuUseRecords(tmp_path / "uses", clock)
    for name in ("a", "b", "c"):
        lived(records, clock, name, application=name)

    def news() -> list[str]:
        return [kind.name for kind, _ in to_container_uses(records.news())]

    assert [news(), news(), news()] == [["a", "b"], ["c"], []]
    lived(records, clock, "b2", application="b")
    assert [news(), news()] == [["b"], []]
    records.connected()
    assert [news(), news(), news()] == [["a", "c"], ["b"], []]


def test_the_setting_names_a_policy(tmp_path: Path) -> None:
    def policy(text: str, path: Path | None = None, mode: str = "shadow") -> str:
        found = sharing_policy(text, model=path, mode=mode, node="n1", clock_s=lambda: 0.0)
        return "" if found is None else found.name

    assert AgentSettings.model_fields["gpu_waiters"].default == "queue"
    assert policy("queue") == ""
    assert policy("dqngpu") == "look-ahead"
    assert policy("dqngpu:sjf-packed") == "sjf-packed"
    for wrong in ("fifo", "dqngpu:", "dqngpu:none", "queue:sjf-packed", ""):
        with pytest.raises(InvalidConfig, match="write queue, dqngpu"):
            policy(wrong)
    with pytest.raises(InvalidConfig, match=r"python -m hrm\.learn\.dqngpu"):
        policy("dqngpu:learned")
    path = tmp_path / "dqngpu-ddqn-1.npz"
    with pytest.raises(InvalidConfig, match="does not use"):
        policy("dqngpu", path)
    assert policy("dqngpu:learned", path) == "dqngpu-ddqn", "its guard shows that there is no model"


def test_a_learned_one_is_behind_its_guard_with_what_looks_ahead(tmp_path: Path) -> None:
    path = tmp_path / "dqngpu-ddqn-1.npz"
    write(model(), path)
    learned = sharing_policy("dqngpu:learned", model=path, mode="on", node="n1", clock_s=float)
    assert isinstance(learned, GuardedGpuSharing)
    assert learned.guard.mode is GuardMode.ON and learned.guard.heuristic == "look-ahead"
    shadow = sharing_policy("dqngpu:learned", model=path, mode="shadow", node="n1", clock_s=float)
    assert isinstance(shadow, GuardedGpuSharing) and shadow.guard.mode is GuardMode.SHADOW


def test_a_policy_learns_of_the_ends_of_what_it_named(tmp_path: Path) -> None:
    clock = Clock()
    records = GpuUseRecords(tmp_path / "uses", clock)
    seen: list[tuple[str, bool, float]] = []
    at_s: list[float] = []

    class Kept(ProfiledWaiters):
        def ended(self, container_id: ContainerId, *, now: float, ran_s: float, ok: bool) -> None:
            seen.append((container_id, ok, ran_s))
            at_s.append(now)

    policy = sharing_policy("dqngpu", model=None, mode="shadow", node="n1", clock_s=float)
    assert policy is not None
    records.policy = Kept(records.uses, policy)
    lived(records, clock, "c1")
    records.began(spec("c2"))
    records.ended(ContainerId("c2"), ContainerEnd(cause=EndCause.GPU_MEMORY_LIMIT))
    records.ended(ContainerId("adopted"), DONE)
    assert seen == [("c1", True, 16.0), ("c2", False, 0.0)]
    assert min(at_s) > 1e9, "for people: of a roll back they see when it was"
