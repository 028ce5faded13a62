"""A learned order of what waits for a shared GPU decides where it may, and its guard is shown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from rich.console import Console
from structlog.testing import capture_logs

from hrm.agent.gpu.waiter_guard import FILE, WaiterGuard
from hrm.agent.gpu.waiter_policy import sharing_policy
from hrm.cli.policy import policy_view
from hrm.config import AgentSettings
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import (
    ContainerEnd,
    ContainerId,
    EndCause,
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.errors import InvalidRequest
from hrm.policies.guard import GuardMode
from hrm.policies.model_files import Model, write
from hrm.policies.shared_gpu.container_uses import ContainerUses, kind_of
from hrm.policies.shared_gpu.features import GPU_FIELDS, JOB_FIELDS
from hrm.policies.shared_gpu.guarded import MODEL_KIND, GuardedGpuSharing
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.policies.shared_gpu.network import network_shapes
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.policies.shared_gpu.waiters import ProfiledWaiters
from hrm.v1 import policy_pb2 as pb
from tests.policies.shared_gpu.test_container_uses import spec
from tests.policies.shared_gpu.test_learned import model

JOBS = {"a": (0.9, 100.0), "b": (0.5, 40.0), "c": (0.2, 60.0), "d": (0.05, 20.0)}
"""By what waits, in this order: its share of the GPU, and for how long it runs, seconds."""
IN_LINE = list(JOBS)


def frugal_first() -> Model:
    """Any start is better than to wait, and one of what uses less of the GPU, on the mean, best."""
    arrays = {name: np.zeros(shape, np.float32) for name, shape in network_shapes().items()}
    arrays["wj"][JOB_FIELDS.index("gpu_mean"), 0] = 1.0
    for name in ("w2", "wh"):
        arrays[name][0, 0] = 1.0
    arrays["bp"][1] = 1.0
    arrays["wa"][:2, 0] = (-5.0, 10.0)
    inputs = len(JOB_FIELDS) + len(GPU_FIELDS)
    ranges = {"low": np.full(inputs, -9, np.float32), "high": np.full(inputs, 999, np.float32)}
    return dataclasses.replace(model(), arrays=arrays | ranges)


def order_of(sharing: GpuSharingPolicy | None) -> list[str]:
    """In which order a node starts what waits for a GPU that has been used by one alone."""
    uses = ContainerUses(
        (
            (kind, RecordedUse((GpuUsePart(share, 1_000.0, share, 0.0),) * USE_PARTS))
            for name, (share, _) in {"all": (0.9, 0.0), **JOBS}.items()
            if (kind := kind_of(spec(name, name, 8_000 if name == "all" else 2_000))) is not None
        )
    )
    unit = ResourceUnit(
        unit_id=ResourceUnitId("n1/gpu0"),
        capacity=Resources(8, 8_000, 8_000),
        run_limit=4,
        gpu=Gpu(index=0, memory_mib=8_000),
    )
    policy = None if sharing is None else ProfiledWaiters(uses, sharing)
    core = NodeCore(NodeName("n1"), (unit,), gpu_waiters=policy)
    started: list[str] = []

    def feed(event: e.NodeEvent) -> None:
        made = core.handle(event)
        started.extend(x.spec.container_id for x in made if isinstance(x, c.StartProcess))

    everything = {"all": (0.9, 50.0), **JOBS}
    for now, (name, (_, run_s)) in enumerate(everything.items()):
        made = spec(name, name, 8_000 if name == "all" else 2_000)
        made = dataclasses.replace(made, expected_duration_s=run_s)
        feed(e.AssignReceived(now=float(now), epoch=1, spec=made))
    assert started == ["all"]
    end = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
    feed(e.ProcessEnded(now=9.0, container_id=ContainerId("all"), end=end))
    return started[1:]


def learned(path: Path, mode: str = "on") -> GuardedGpuSharing:
    made = sharing_policy("dqngpu:learned", model=path, mode=mode, node="n1", clock_s=lambda: 0.0)
    assert isinstance(made, GuardedGpuSharing)
    return made


def shown(guard: WaiterGuard) -> tuple[pb.LearnedPolicy, str]:
    """What the master gets, and what ``hrm policy show`` makes of it."""
    (report,) = guard.changed(10.0)
    console = Console(width=400)
    with console.capture() as text:
        console.print(policy_view(report))
    return report, text.get()


def test_a_learned_policy_that_is_on_orders_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "dqngpu-ddqn-1.npz"
    write(frugal_first(), path)
    by_rule = order_of(LookAhead())
    assert order_of(None) == IN_LINE
    assert by_rule not in (IN_LINE, IN_LINE[::-1]), "three orders that differ"
    for mode, order in (("on", IN_LINE[::-1]), ("shadow", by_rule), ("off", by_rule)):
        sharing = learned(path, mode)
        assert order_of(sharing) == order, mode
        status = sharing.guard.status(10.0)
        assert status.fallbacks == {}
        assert (status.learned > 0, status.shadowed > 0) == (mode == "on", mode == "shadow")


def damaged(path: Path) -> None:
    path.write_bytes(b"no model")


def of_another_schema(path: Path) -> None:
    write(dataclasses.replace(model(), schema="0" * 16), path)


def of_another_network(path: Path) -> None:
    write(model({"wj": np.zeros((1, 64), np.float32)}), path)


def beyond_numbers(path: Path) -> None:
    shape = network_shapes()["w2"]
    huge = np.full(shape, 3e38, np.float32)
    huge[::2] *= -1.0
    write(model({"w2": huge, "wh": huge}), path)


def without_a_number(path: Path) -> None:
    write(model({"b2": np.full(64, np.nan, np.float32)}), path)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize(
    ("make", "reason", "words"),
    [
        (lambda path: None, "not-loaded", "there is no model file"),
        (damaged, "not-loaded", "cannot be read"),
        (without_a_number, "not-loaded", "is not of finite float32 numbers"),
        (of_another_network, "not-loaded", "array 'wj' has the shape"),
        (of_another_schema, "schema", "was trained on features 0000000000000000"),
        (beyond_numbers, "not-finite", "a value of an action is no number"),
    ],
)
def test_where_its_model_is_of_no_use_the_rule_decides_and_the_reason_is_shown(
    tmp_path: Path, make: Callable[[Path], None], reason: str, words: str
) -> None:
    path = tmp_path / "dqngpu-ddqn-1.npz"
    make(path)
    sharing = learned(path)
    guard = WaiterGuard(sharing, tmp_path / FILE)
    sharing.guard.draw_key = b""  # by which this slice of time is the learned policy's
    assert order_of(sharing) == order_of(LookAhead())
    report, text = shown(guard)
    assert (report.policy, report.kind, report.mode) == (MODEL_KIND, "shared-gpu", "on")
    assert set(report.fallbacks) == {reason} and report.learned == 0
    assert f"fell back: {reason} {report.asked}" in text and words in text
    assert "dqngpu-ddqn (shared-gpu) is on" in text and "else look-ahead decides" in text


def guarded(path: Path, mode: str = "on") -> tuple[WaiterGuard, GuardedGpuSharing]:
    """As an agent makes it."""
    file = path / "dqngpu-ddqn-1.npz"
    if not file.exists():
        write(frugal_first(), file)
    sharing = learned(file, mode)
    return WaiterGuard(sharing, path / FILE), sharing


def mode_of(sharing: GuardedGpuSharing) -> GuardMode:
    return sharing.guard.mode


def order(mode: str, number: int, policy: str = MODEL_KIND) -> pb.PolicyOrder:
    return pb.PolicyOrder(policy=policy, mode=mode, order=number)


def test_the_mode_of_the_settings_holds_until_another_is_ordered(tmp_path: Path) -> None:
    guard, sharing = guarded(tmp_path, "canary-10")
    assert mode_of(sharing) is GuardMode.CANARY_10
    guard.follow(order("on", 7, "another"))
    assert mode_of(sharing) is GuardMode.CANARY_10
    guard.follow(order("off", 7))
    assert mode_of(sharing) is GuardMode.OFF
    again, sharing = guarded(tmp_path, "canary-10")
    assert mode_of(sharing) is GuardMode.OFF, "a restart is no reason"
    again.follow(order("off", 7))
    with pytest.raises(InvalidRequest, match="canary-50"):
        again.follow(order("half", 8))
    _, sharing = guarded(tmp_path, "on")
    assert mode_of(sharing) is GuardMode.ON, "somebody has written it into the settings since"


def test_what_fell_back_stays_in_its_shadow_over_a_restart(tmp_path: Path) -> None:
    guard, sharing = guarded(tmp_path)
    guard.follow(order("canary-50", 7))
    with capture_logs() as logs:
        sharing.guard._roll_back(100.0)
    (warning,) = (x for x in logs if x["log_level"] == "warning")
    assert warning["to_try_it_again"] == "hrm policy set dqngpu-ddqn canary-1"
    report, text = shown(guard)
    assert (report.mode, report.rolled_back_at_s) == ("shadow", 100.0)
    assert dict(report.fallbacks) == {"watchdog": 1} and "rolled back" in text
    again, sharing = guarded(tmp_path)
    again.follow(order("canary-50", 7))
    assert mode_of(sharing) is GuardMode.SHADOW, "the order that it had followed before"
    again.follow(order("canary-1", 8))
    assert mode_of(sharing) is GuardMode.CANARY_1


def test_a_new_master_gets_a_report_whether_something_has_changed_or_not(tmp_path: Path) -> None:
    guard, _ = guarded(tmp_path)
    assert len(guard.changed(0.0)) == 1
    assert guard.changed(0.0) == []
    guard.connected()
    assert len(guard.changed(0.0)) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"setting": "on", "mode": "half", "order": 1}'])
def test_a_mode_that_cannot_be_read_is_the_shadow(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with capture_logs() as logs:
        _, sharing = guarded(tmp_path)
    assert mode_of(sharing) is GuardMode.SHADOW
    assert "begins in its shadow" in logs[0]["event"]


def test_a_full_disk_keeps_no_mode_and_fails_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, sharing = guarded(tmp_path)
    (tmp_path / FILE / "in-the-way").mkdir(parents=True)
    with capture_logs() as logs:
        guard.follow(order("off", 7))
    assert mode_of(sharing) is GuardMode.OFF
    assert "cannot keep the mode" in logs[-1]["event"]


def test_what_is_kept_is_an_order_and_the_mode_it_began_from(tmp_path: Path) -> None:
    guard, _ = guarded(tmp_path)
    guard.follow(order("canary-1", 7))
    held = json.loads((tmp_path / FILE).read_text())
    assert held == {"setting": "on", "mode": "canary-1", "order": 7}


def test_every_mode_can_be_set_in_the_settings() -> None:
    annotation: Any = AgentSettings.model_fields["gpu_waiters_mode"].annotation
    assert set(get_args(annotation)) == {mode.value for mode in GuardMode}
