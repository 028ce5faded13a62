"""A master with ``placement_candidate``: what it shows, sets and keeps, and what cannot stop it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import structlog

from hrm.config import MasterSettings
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.model import NodeName, WorkloadClass
from hrm.errors import InvalidConfig
from hrm.master import placement_candidate
from hrm.master.placement_candidate import with_candidate
from hrm.policies.guard import GuardMode, GuardRegistry, PolicyGuard, Recommendation
from hrm.policies.guarded import GuardedPlacement, PlacementGuard
from hrm.policies.min_wait import MinWait
from hrm.testing.virtual import unit
from hrm.v1 import policy_pb2 as pb
from hrm.v1 import policy_pb2_grpc
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
from tests.policies.packages import install_package
from tests.policies.states import NOW, entries

Install = Callable[[str], None]
BATCH = WorkloadClass.BATCH
PACKAGE = "tried_candidate"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of this source, of which ``policy`` is the placement policy ``tried``."""

    def put(source: str) -> None:
        points = {"tried": f"{PACKAGE}:policy"}
        install_package(tmp_path / "site", monkeypatch, PACKAGE, source, points)

    yield put
    sys.modules.pop(PACKAGE, None)


def pairs(master: Running) -> list[GuardedPlacement]:
    schedulers = master.interpreter.core.placement.schedulers.values()
    found = [scheduler.policy for scheduler in schedulers]
    assert all(isinstance(policy, GuardedPlacement) for policy in found)
    return [policy for policy in found if isinstance(policy, GuardedPlacement)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - a thread and the core notify nothing
            await asyncio.sleep(0.01)


async def loaded(master: Running) -> None:
    await until(lambda: all(pair.candidate is not None for pair in pairs(master)))


async def shown(master: Running, *, records: bool = False) -> pb.LearnedPolicy:
    stub: Any = policy_pb2_grpc.PolicyServiceStub(master.channel)
    response = await stub.ShowPolicies(pb.ShowPoliciesRequest(records=records), timeout=TIMEOUT_S)
    (one,) = response.policies
    assert isinstance(one, pb.LearnedPolicy)
    return one


async def set_mode(master: Running, policy: str, mode: str) -> pb.LearnedPolicy:
    stub: Any = policy_pb2_grpc.PolicyServiceStub(master.channel)
    request = pb.SetPolicyModeRequest(policy=policy, mode=mode)
    response = await stub.SetPolicyMode(request, timeout=TIMEOUT_S)
    assert isinstance(response, pb.LearnedPolicy)
    return response


async def run_containers(master: Running, count: int) -> None:
    """One node starts as many containers of one application."""
    stream = master.nodes.Connect(timeout=TIMEOUT_S)
    await stream.write(node())
    assert (await stream.read()).WhichOneof("message") == "registered"
    session = await attached(master)
    await session.write(asking_for(count))
    for sequence in range(2, 2 + count):
        assign = await stream.read()
        await stream.write(running_now(assign.assign, sequence))
    core = master.interpreter.core
    await until(lambda: sum(x.waits for x in core.master_state.live.values()) == count)
    session.cancel()
    stream.cancel()


async def test_it_is_shown_next_to_the_policy_in_force_and_set_by_name(tmp_path: Path) -> None:
    async with running(tmp_path, placement_candidate="best-fit") as master:
        await loaded(master)
        assert [pair.name for pair in pairs(master)] == ["min-wait"] * len(pairs(master))
        await run_containers(master, 3)
        one = await shown(master, records=True)
        assert (one.policy, one.kind, one.heuristic) == ("best-fit", "placement", "min-wait")
        assert one.mode == "shadow"
        assert one.asked == one.shadowed == one.agreed == len(one.records) >= 1
        assert (one.learned, one.reference_compared, dict(one.fallbacks)) == (0, 3, {})
        assert one.records[0].learned == one.records[0].heuristic
        assert "n1/cpu" in one.records[0].heuristic
        assert "best_fit:BestFit" in one.model
        assert (await set_mode(master, "best-fit", "canary-10")).mode == "canary-10"
        with refused(grpc.StatusCode.NOT_FOUND, "placement_candidate"):
            await set_mode(master, "worst-fit", "on")
    async with running(tmp_path, placement_candidate="best-fit") as master:
        assert (await shown(master)).mode == "canary-10", "it outlives the master"
        assert {pair._trust.guard.mode for pair in pairs(master)} == {GuardMode.CANARY_10}


async def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        policies = [x.policy for x in master.interpreter.core.placement.schedulers.values()]
        assert {type(policy) for policy in policies} == {MinWait}
        stub: Any = policy_pb2_grpc.PolicyServiceStub(master.channel)
        response = await stub.ShowPolicies(pb.ShowPoliciesRequest(), timeout=TIMEOUT_S)
        assert len(response.policies) == 0


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise RuntimeError('no such weights')", "RuntimeError: no such weights"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def policy(index): return 1", "which is no placement policy"),
        ("class policy:\n  name = 'tried'\n  strict_order = True\n"
         "  def __init__(self, index): pass\n  def place(self, *_): return []", "strict_order"),
        ("class policy:\n  name = 'tried'\n  def __init__(self, index): pass\n"
         "  def place(self, *_): return []\n  def learns_from(self, _): 1 / 0", "ZeroDivision"),
    ],
)  # fmt: skip
async def test_one_that_fails_to_load_stops_nothing_and_says_why(
    tmp_path: Path, install: Install, source: str, why: str
) -> None:
    install(source)
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, placement_candidate="tried") as master:
            await until(lambda: any(x["event"].startswith("the candidate") for x in logs))
            await run_containers(master, 2)
            one = await shown(master)
            assert one.fallbacks["not-loaded"] == one.asked >= 1
            assert why in one.last
            assert [pair.candidate for pair in pairs(master)] == [None] * len(pairs(master))
    (warned,) = (x for x in logs if x["event"] == "the candidate for placement is not used")
    assert why in warned["why"]


async def test_one_that_is_slow_to_load_is_not_waited_for(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load = threading.Event()
    monkeypatch.setattr(threading, "may_load", may_load, raising=False)
    install(
        "import threading\nthreading.may_load.wait(30)\n"
        "from hrm.policies.worst_fit import WorstFit as policy"
    )
    async with running(tmp_path, placement_candidate="tried") as master:
        await run_containers(master, 1)
        one = await shown(master)
        assert dict(one.fallbacks) == {"not-loaded": one.asked}
        assert "being loaded" in one.last
        may_load.set()
        await loaded(master)
    assert not [x for x in threading.enumerate() if x.name == "load tried" and not x.daemon]


async def test_a_master_that_ends_before_does_not_wait_either(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load = threading.Event()
    monkeypatch.setattr(threading, "may_load", may_load, raising=False)
    install("import threading\nthreading.may_load.wait(30)\nraise RuntimeError('too late')")
    async with running(tmp_path, placement_candidate="tried"):
        pass
    may_load.set()


def _surround(guards: GuardRegistry | None = None, **settings: Any) -> None:
    with_candidate(
        MasterSettings(**settings), [MinWait(0)], lambda _: None, guards or GuardRegistry()
    )


def test_a_name_that_is_of_no_use_is_refused_with_what_to_set(monkeypatch: Any) -> None:
    with pytest.raises(InvalidConfig) as refusal:
        _surround(placement_candidate="wishful")
    for part in ("'wishful'", "set placement_candidate in hrm.toml [master]", "best-fit"):
        assert part in refusal.value.message
    with pytest.raises(InvalidConfig) as refusal:
        _surround(placement_candidate="min-wait")
    assert "the placement_policy in force already; remove it" in refusal.value.message
    assert "worst-fit" in refusal.value.message


def test_one_name_is_not_two_policies() -> None:
    guards = GuardRegistry()
    other: PolicyGuard[int, int] = PolicyGuard(
        policy="best-fit", kind="cluster", heuristic="min-wait", model="", schema="",
        learned=lambda _: Recommendation(1, ""), fallback=lambda _: Recommendation(0, ""),
        clock_s=lambda: 0.0,
    )  # fmt: skip
    guards.add(other)
    with pytest.raises(InvalidConfig, match="two policies are called 'best-fit', for cluster and"):
        _surround(guards, placement_candidate="best-fit")


async def test_an_unknown_name_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no placement policy is called 'wishful'"):
        async with running(tmp_path, placement_candidate="wishful"):
            pass


def test_one_that_waits_is_over_its_time_and_one_on_a_busy_machine_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = {"thread_time": 0.0, "monotonic": 0.0}
    for name in clocks:
        monkeypatch.setattr(placement_candidate, name, lambda name=name: clocks[name])

    def fallbacks(processor_s: float, passed_s: float) -> dict[str, int]:
        def place(view: ClusterView, placement: Placement, now: float) -> list[int | None]:
            clocks["thread_time"] += processor_s
            clocks["monotonic"] += passed_s
            return MinWait(0).place(view, placement, now)

        guard = PlacementGuard(
            "tried", heuristic="min-wait", origin="here", clock_s=placement_candidate._clock_s
        )
        candidate: Any = SimpleNamespace(name="tried", place=place)
        state = SharedState()
        state.add(NodeName("n1"), UnitQueue(unit("n1")))
        placement = Placement(BATCH, (1, 1, 0, 1), entries(1, (1, 1, 0, 1), BATCH), 0, 0.0)
        guard.around(MinWait(0), candidate).place(ClusterView(state), placement, NOW)
        return guard.guard.status(NOW).fallbacks

    assert fallbacks(processor_s=0.005, passed_s=0.4) == {}
    assert fallbacks(processor_s=0.02, passed_s=0.02) == {"over-budget": 1}
    assert fallbacks(processor_s=0.0, passed_s=2.0) == {"over-budget": 1}
