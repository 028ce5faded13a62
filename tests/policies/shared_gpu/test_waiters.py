"""The next of several that wait for a GPU, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hrm.core.node.gpu_waiters import GpuSharer, SharedGpuView
from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import WorkloadClass
from hrm.policies.shared_gpu.container_uses import ContainerUses, kind_of
from hrm.policies.shared_gpu.heuristics import GpuSharingView, PackedByLength
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.policies.shared_gpu.registry import HEURISTICS
from hrm.policies.shared_gpu.waiters import ProfiledWaiters
from tests.policies.shared_gpu.test_container_uses import spec

CARD_MIB = 8_000


def waits(name: str, run_s: float = 100.0) -> GpuSharer:
    return GpuSharer(spec(name, application=name), 900.0, run_s)


def streams(name: str) -> GpuSharer:
    made = replace(spec(name, application=name), workload_class=WorkloadClass.STREAM)
    return GpuSharer(made, 900.0, math.inf)


def recorded(**loads: float) -> ContainerUses:
    """Of each application the share of the GPU, throughout; all have 2,000 MiB."""
    known = []
    for name, load in loads.items():
        kind = kind_of(spec(application=name))
        assert kind is not None
        known.append((kind, RecordedUse((GpuUsePart(load, 2_000.0, load, 0.0),) * USE_PARTS)))
    return ContainerUses(known)


def view(*waiting: GpuSharer, running: tuple[GpuSharer, ...] = ()) -> SharedGpuView:
    return SharedGpuView(1_000.0, CARD_MIB, 4, running, waiting)


def chosen(uses: ContainerUses, seen: SharedGpuView, name: str = "look-ahead") -> str | None:
    place = ProfiledWaiters(uses, HEURISTICS[name]()).choose(seen)
    return None if place is None else seen.waiting[place].spec.application_name


def test_what_complements_the_load_that_runs_is_next() -> None:
    """0.9 and 0.9 are more than the GPU, 0.9 and 0.1 are not."""
    uses = recorded(heavy=0.9, other=0.9, light=0.1)
    seen = view(waits("other"), waits("light"), running=(waits("heavy"),))
    assert chosen(uses, seen) == "light"


def test_where_none_fits_the_load_the_line_decides() -> None:
    uses = recorded(heavy=0.9, other=0.9)
    assert chosen(uses, view(waits("other"), waits("other"), running=(waits("heavy"),))) is None


def test_a_stream_holds_its_greatest_use_for_good() -> None:
    """It has run for a hundred seconds, and what waits takes a hundred."""
    parts = [GpuUsePart(0.95 if n == 0 else 0.0, 2_000.0, 0.0, 0.0) for n in range(USE_PARTS)]
    kind = kind_of(spec(application="stream"))
    assert kind is not None
    known = [*recorded(heavy=0.9, light=0.05), (kind, RecordedUse(tuple(parts)))]
    seen = view(waits("heavy"), waits("light"), running=(streams("stream"),))
    assert chosen(ContainerUses(known), seen) == "light"


def test_the_longest_is_next_where_pairs_end_sooner_so() -> None:
    """Two fit at once, and a short one runs. With the long one: the last ends after 100 s. With the
    short one, then the long one: after 150 s."""
    uses = recorded(short=0.5, long=0.5)
    running = (waits("short", 50.0)._replace(since_s=1_000.0),)
    assert chosen(uses, view(waits("short", 50.0), waits("long"), running=running)) == "long"


def test_other_policies_may_decide() -> None:
    uses = recorded(short=0.5, long=0.5)
    seen = view(waits("long"), waits("short", 50.0))
    assert chosen(uses, seen, "sjf-packed") == "short"
    assert chosen(uses, seen, "ljf-packed") == "long"
    assert chosen(uses, seen, "fifo-packed") == "long"


def test_the_greatest_memory_of_a_life_is_what_counts() -> None:
    parts = [GpuUsePart(0.1, 100.0 * n + 0.5, 0.1, 0.0) for n in range(USE_PARTS)]
    kind = kind_of(spec())
    assert kind is not None
    policy = ProfiledWaiters(ContainerUses([(kind, RecordedUse(tuple(parts)))]), LookAhead())
    assert policy.peak_mib(spec()) == 1_501
    assert policy.peak_mib(spec(application="unknown")) is None


@pytest.mark.parametrize("run_s", [0.0, 1.0, 1e7])
def test_any_run_time_is_shown_to_the_policy(run_s: float) -> None:
    seen: list[GpuSharingView] = []

    class Kept(PackedByLength):
        def choose(self, view: GpuSharingView) -> int | None:
            seen.append(view)
            return super().choose(view)

    policy = ProfiledWaiters(recorded(one=0.1, other=0.1), Kept())
    running = (GpuSharer(spec(application="one"), 900.0, run_s),)
    assert policy.choose(view(waits("one", run_s), waits("other", 60.0), running=running)) in (0, 1)
    (shown,) = seen
    assert all(ticks < len(profile) for profile, ticks in shown.running)
    assert shown.now >= 0 and all(one.arrived == 0 for one in shown.waiting)
