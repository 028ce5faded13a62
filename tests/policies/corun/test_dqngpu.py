"""Sharing GPUs by recorded profiles: who joins whom, who waits, and what is shown to the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.errors import InvalidConfig
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import Device, NodeView, Row, StartDecision
from hrm.pipelines.policies.corun import GuardedNodePolicy, Stdm, load, load_guarded, parse
from hrm.pipelines.policies.corun.dqngpu import DqnGpu
from hrm.pipelines.policies.corun.scores import speeds
from hrm.policies.shared_gpu.heuristics import GpuSharingView, PackedByLength
from tests.policies.corun.worlds import Known, constant_use, gpu, node_view, subtask

RNG = np.random.default_rng(0)


class Recorded:
    """Packed SJF, which remembers what it was shown; ``waits``: it starts nothing but the first."""

    name = "recorded"

    def __init__(self, *, waits: bool = False) -> None:
        self.views: list[GpuSharingView] = []
        self._waits = waits

    def choose(self, view: GpuSharingView) -> int | None:
        self.views.append(view)
        if self._waits and view.running:
            return None
        return PackedByLength().choose(view)


def dispatched(view: NodeView, sharing: Recorded | None = None) -> list[StartDecision]:
    return DqnGpu(rng=RNG, sharing=sharing or Recorded()).dispatch(view)


def on_gpus(starts: Sequence[StartDecision]) -> list[str]:
    return [one.key.subtask for one in starts if one.device is Device.GPU]


def halves(first: float, second: float, memory_mib: float = 500.0) -> tuple[GpuUsePart, ...]:
    """The use of the GPU in both halves of a run."""
    half = USE_PARTS // 2
    return tuple(GpuUsePart(use, memory_mib, use, 0.0) for use in [first] * half + [second] * half)


def test_what_fits_together_in_every_tick_shares_a_gpu() -> None:
    ready = [subtask("edges"), subtask("faces")]
    uses = {"edges": halves(0.9, 0.1), "faces": halves(0.1, 0.9)}
    view = node_view(ready, Known(gpu_use=uses), gpus=[gpu(0)])
    assert on_gpus(dispatched(view)) == ["edges", "faces"]
    uses["faces"] = halves(0.9, 0.1)
    view = node_view(ready, Known(gpu_use=uses), gpus=[gpu(0)])
    assert on_gpus(dispatched(view)) == ["edges"], "both are busy at first"


def test_what_runs_is_as_far_as_it_would_be_alone() -> None:
    uses = {"edges": halves(0.9, 0.1), "faces": halves(0.8, 0.8)}
    running = replace(gpu(0, running=["edges"]), elapsed_s=(1.0,))
    estimates = Known(gpu_s={"edges": 4.0, "faces": 1.0}, gpu_use=uses)
    assert not on_gpus(dispatched(node_view([subtask("faces")], estimates, gpus=[running])))
    late = replace(running, elapsed_s=(2.5,))
    assert on_gpus(dispatched(node_view([subtask("faces")], estimates, gpus=[late]))) == ["faces"]


def test_one_without_a_profile_takes_an_idle_gpu_alone() -> None:
    ready = [subtask("edges", task="t1"), subtask("faces", task="t2")]
    known = {"faces": constant_use(0.1)}
    first = dispatched(node_view(ready[:1], Known(), gpus=[gpu(0)]))
    assert on_gpus(first) == ["edges"]
    both = dispatched(node_view(ready, Known(gpu_use=known), gpus=[gpu(0)]))
    assert on_gpus(both) == ["faces"], "what is known goes first, and the other has to be alone"
    joins = node_view(ready[1:], Known(gpu_use=known), gpus=[gpu(0, running=["edges"])])
    assert not on_gpus(dispatched(joins)), "nothing joins what was never measured"


def test_what_leaves_no_profile_is_taken_to_use_what_is_estimated() -> None:
    ready = [subtask("edges", task=f"t{n}") for n in range(3)]

    def started(runs_alone: int, *running: str, **more: Any) -> int:
        estimates = Known(features={"edges": [0.4] * 8}, runs_alone=runs_alone, **more)
        gpus = [gpu(0, running=running)]
        return len(on_gpus(dispatched(node_view(ready, estimates, gpus=gpus))))

    assert [started(runs) for runs in range(4)] == [1, 1, 2, 2], "of 40 % two fit"
    assert [started(runs, "edges") for runs in range(4)] == [0, 0, 1, 1]
    assert started(2, gpu_use={"edges": constant_use(0.9)}) == 1, "what was recorded counts"


def test_its_policy_may_leave_capacity_unused() -> None:
    ready = [subtask("edges", task=f"t{n}") for n in range(3)]
    estimates = Known(gpu_use={"edges": constant_use(0.1)})
    assert len(dispatched(node_view(ready, estimates, gpus=[gpu(0)]))) == 3
    starts = dispatched(node_view(ready, estimates, gpus=[gpu(0), gpu(1)]), Recorded(waits=True))
    assert [start.number for start in starts] == [0, 1]


def test_cores_take_what_a_gpu_would_not_end_sooner() -> None:
    ready = [subtask("edges"), subtask("faces")]
    estimates = Known(
        cpu_s={"edges": 100.0, "faces": 5.0},
        gpu_s={"edges": 1.0, "faces": 2.0},
        gpu_use={"edges": constant_use(0.9), "faces": constant_use(0.9)},
    )
    busy = [replace(gpu(0, running=["edges"]), elapsed_s=(0.0,), remaining_s=4.0)]
    starts = dispatched(node_view(ready, estimates, idle=[0, 1], gpus=busy))
    assert [(x.key.subtask, x.device) for x in starts] == [("faces", Device.CPU)]


def test_one_that_a_gpu_slows_down_is_not_offered_to_it() -> None:
    estimates = Known({"edges": 1.0}, {"edges": 3.0}, gpu_use={"edges": constant_use(0.1)})
    assert not dispatched(node_view([subtask("edges")], estimates, gpus=[gpu(0)]))
    starts = dispatched(node_view([subtask("edges")], estimates, idle=[0], gpus=[gpu(0)]))
    assert [one.device for one in starts] == [Device.CPU]


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_a_policy_is_shown_the_same_whatever_runs_take(scale: float) -> None:
    ready = [subtask("edges"), subtask("faces")]
    uses = {"edges": halves(0.9, 0.1), "faces": halves(0.2, 0.9)}
    slow = dict.fromkeys(("edges", "faces"), 1e6)
    estimates = Known(slow, {"edges": 4.0 * scale, "faces": 8.0 * scale}, gpu_use=uses)
    sharing = Recorded()
    dispatched(node_view(ready, estimates, gpus=[gpu(0)]), sharing)
    view = sharing.views[0]
    lengths = sorted(len(one.profile) for one in view.waiting)
    assert 4 <= lengths[0] <= 12 and lengths[1] == pytest.approx(2 * lengths[0], abs=1)
    assert view.waiting[0].profile.peak[1] == pytest.approx(500.0 / (0.9 * 8000.0))


def test_equal_profiles_are_one_and_a_very_long_run_stays_within_bounds() -> None:
    ready = [subtask("edges", task=f"t{n}") for n in range(2)]
    estimates = Known(
        gpu_s={"edges": 0.5, "faces": 1e5},
        gpu_use={"edges": constant_use(0.2), "faces": constant_use(0.2)},
    )
    sharing = Recorded()
    many = [*ready, subtask("faces")]
    dispatched(node_view(many, estimates, gpus=[gpu(0)]), sharing)
    waiting = sharing.views[0].waiting
    assert waiting[0].profile is waiting[1].profile
    assert max(len(one.profile) for one in waiting) <= 4_096


def test_what_pairs_suffer_is_what_the_node_has_seen() -> None:
    known = Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000})
    rows = [Row(kind, 1, "P4") for kind in ("edges", "faces")]
    for row in rows:
        known.observe_run(row, Device.GPU, 4.0)
        known.observe_gpu_use(row, constant_use(0.3))
    for _ in range(20):
        known.observe_run(rows[0], Device.GPU, 12.0, co_runners=(rows[1],))
    sharing = Recorded()
    view = replace(
        node_view([subtask("edges"), subtask("faces")], Known(), gpus=[gpu(0, running=["faces"])]),
        estimates=known,
    )
    dispatched(view, sharing)
    pace = sharing.views[0].pace
    assert pace is not None and pace.shape == (2, 3)
    assert pace[0, 0] < 0.5, "edges suffer next to faces"
    assert pace[1, 0] > pace[0, 0] + 0.2
    assert np.all(pace[:, 2] <= 2.0 + 1e-9)
    pairs = sharing.views[0].pairs
    assert pairs is not None
    kinds = [*pairs.running, *pairs.waiting]
    assert pairs.slowdowns.together(kinds) == pytest.approx(
        speeds([rows[1], rows[0], rows[1]], known)
    )


def test_a_policy_may_imagine_what_the_node_allows_and_where_runs_stand() -> None:
    running = replace(gpu(0, running=["edges"]), elapsed_s=(1.3,))
    estimates = Known(
        gpu_s={"edges": 4.0, "faces": 4.0},
        gpu_use={"edges": constant_use(0.2), "faces": constant_use(0.2)},
    )
    sharing = Recorded()
    dispatched(node_view([subtask("faces")], estimates, gpus=[running]), sharing)
    view = sharing.views[0]
    assert view.together_max == CAPS.co_runners_max
    assert view.progress == pytest.approx([1.3 / 0.5]) and view.running[0][1] == 2


def test_by_default_it_looks_ahead() -> None:
    """Two fit next to edges; one of them slows both down, as was seen, and waits."""
    known = Stdm(memory_mib=32_000, gpu_memory_mib={"P4": 8000})
    rows = {kind: Row(kind, 1, "P4") for kind in ("edges", "faces", "batch")}
    for row in rows.values():
        known.observe_run(row, Device.GPU, 4.0)
        known.observe_gpu_use(row, constant_use(0.45))
    for _ in range(30):
        for victim, partner, took_s in (
            ("edges", "batch", 12.0), ("batch", "edges", 12.0), ("edges", "faces", 4.0),
            ("faces", "edges", 4.0), ("batch", "faces", 8.0), ("faces", "batch", 8.0),
        ):  # fmt: skip
            known.observe_run(rows[victim], Device.GPU, took_s, co_runners=(rows[partner],))
    running = replace(gpu(0, running=["edges"]), elapsed_s=(0.0,))
    ready = [subtask("batch"), subtask("faces")]
    view = replace(node_view(ready, Known(), gpus=[running]), estimates=known)
    starts = load("dqngpu", rng=RNG).dispatch(view)
    assert on_gpus(starts) == ["faces"]


def test_a_setting_names_it_with_the_policy_that_chooses() -> None:
    assert parse("dqngpu") == ("dqngpu", {})
    assert parse("dqngpu:tetris") == ("dqngpu", {"sharing": "tetris"})
    for spec, said in (
        ("dqngpu:foo", r"dqngpu has no 'foo'; .* one of best-fit-memory"),
        ("dqngpu:", r"dqngpu has no ''; .* one of best-fit-memory"),
        ("dqngpu:tetris:tetris", "one sharing too many"),
        ("mct:guarded", "write mct alone"),
        ("iawp:guarded:guarded", "one guarded too many"),
        ("iawp:cosine:overload", "one score too many"),
        ("iawp:gain=0.1:gain=0.2", "one gain too many"),
        ("iawp:nonsense", "cosine, learned, overload, sensitivity"),
        ("nonsense:guarded", "choose one of dqngpu, iawp"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            parse(spec)
    with pytest.raises(InvalidConfig, match=r"'guarded'; choose one of best-fit-memory"):
        load("dqngpu", rng=RNG, sharing="guarded")


@pytest.mark.parametrize(("spec", "said"), [("dqngpu", "look-ahead"), ("dqngpu:tetris", "tetris")])
def test_an_agent_has_it_under_a_guard(spec: str, said: str) -> None:
    more: dict[str, Any] = {"sampled_at_s": lambda: 0.0, "estimates": Stdm(memory_mib=1000.0)}
    policy = load_guarded(spec, rng=RNG, node="n1", **more)
    assert isinstance(policy, GuardedNodePolicy)
    assert (policy.name, policy.guard.model) == ("dqngpu", f"{said} over recorded profiles")
