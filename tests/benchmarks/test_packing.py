"""Packing: the protocol on lists made here, one node for a pod of several GPUs, and the report."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.packing import __main__ as packing
from benchmarks.packing import waits
from benchmarks.packing.churn import Churn, plans_at
from benchmarks.packing.filling import Site, fill
from benchmarks.packing.lists import GpuMachine, Pod, arrivals, read_machines, read_pods
from benchmarks.traces import load, load_jobs
from benchmarks.traces.replay_plan import Assumptions, offered_load
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.placing import Placement
from hrm.errors import InvalidRequest
from hrm.policies.best_fit import BestFit
from hrm.policies.fragmentation import Fragmentation
from hrm.policies.round_robin import RoundRobin
from tests.benchmarks.traces.samples import write

PEERS = "min-wait,best-fit"
"""Policies that are in the metadata of every installation that runs these tests."""

WHOLE = Pod(cpu_milli=2000, memory_mib=100, gpus=1, gpu_milli=1000)
HALF = Pod(cpu_milli=1000, memory_mib=100, gpus=1, gpu_milli=500)
CORES = Pod(cpu_milli=4000, memory_mib=100, gpus=0, gpu_milli=0)


def machine(name: str, gpus: int = 2, cores: int = 8, model: str = "T4") -> GpuMachine:
    return GpuMachine(name=name, cpu_milli=1000 * cores, memory_mib=4096, gpus=gpus, model=model)


class Recorded(Fragmentation):
    """The nodes of what was placed, by pod."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, list[str]] = {}

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        rows = super().place(view, placement, now)
        for entry, row in zip(placement.entries, rows, strict=True):
            if row is not None:
                pod = entry.container_id.rpartition("-")[0]
                node = view.unit_id(row).partition("/")[0]
                self.nodes.setdefault(pod, []).append(node)
        return rows


def test_pods_are_drawn_until_they_request_enough() -> None:
    drawn = arrivals([WHOLE, HALF, CORES], 20_000, 1)
    requested = sum(pod.gpu_milli_sum for pod in drawn)
    assert requested >= 20_000 > requested - drawn[-1].gpu_milli_sum
    assert drawn == arrivals([WHOLE, HALF, CORES], 20_000, 1)
    assert drawn != arrivals([WHOLE, HALF, CORES], 20_000, 2)


def test_what_fits_is_placed_and_the_rest_is_dropped() -> None:
    site = Site([machine("a"), machine("b")])
    found = fill(BestFit(), site, [HALF, WHOLE, HALF, WHOLE, WHOLE, WHOLE, HALF])
    assert (found.pods, found.placed, found.allocated) == (7, 5, 1.0)
    assert found.choice_s > 0


def test_cores_are_the_nodes_and_no_gpus_own() -> None:
    site = Site([machine("a", gpus=2, cores=6)])
    assert fill(BestFit(), site, [CORES, WHOLE, WHOLE]).allocated == 0.5


def test_a_pod_of_several_gpus_has_all_on_one_node() -> None:
    """Three GPUs are left for the third pod, of three nodes."""
    three = Pod(cpu_milli=3000, memory_mib=10, gpus=3, gpu_milli=1000)
    policy = Recorded()
    found = fill(policy, Site([machine("a", 4), machine("b", 4), machine("c", 1)]), [three] * 3)
    assert found.placed == 2 and len(policy.nodes) == 2
    assert sorted(map(Counter, policy.nodes.values()), key=str) == [{"a": 3}, {"b": 3}]


def test_a_pod_of_several_gpus_passes_over_nodes_that_lack_the_cores() -> None:
    several = Pod(cpu_milli=8000, memory_mib=10, gpus=2, gpu_milli=1000)
    site = Site([machine("a", 2, cores=7), machine("b", 2, cores=8)])
    found = fill(RoundRobin(), site, [several, several])
    assert (found.placed, found.allocated) == (1, 0.5)


def test_a_pod_runs_on_the_models_that_it_allows() -> None:
    site = Site([machine("a", model="T4"), machine("b", model="P100")])
    choosy = Pod(cpu_milli=1, memory_mib=1, gpus=1, gpu_milli=1000, models=frozenset({"P100"}))
    assert fill(BestFit(), site, [choosy] * 4).placed == 2


def test_the_lists_are_read_whole(tmp_path: Path) -> None:
    pods = read_pods(write(tmp_path, "alibaba-gpu-v2023").parent)
    assert [(pod.cpu_milli, pod.gpus, pod.gpu_milli) for pod in pods] == [
        (3152, 1, 470), (8000, 8, 1000), (4000, 0, 0), (4000, 1, 1000),
    ]  # fmt: skip
    assert pods[1].models == {"V100M16", "V100M32"}
    machines = read_machines(write(tmp_path, "alibaba-gpu-v2023-nodes").parent)
    assert [(each.name, each.cpu_milli, each.gpus) for each in machines] == [
        ("n-0", 64000, 2), ("n-1", 96000, 8),
    ]  # fmt: skip


def test_a_list_with_a_bad_row_is_refused(tmp_path: Path) -> None:
    row = "pod-9,1000,64,1,1470,,BE,Running,1,2,1"
    path = write(tmp_path, "alibaba-gpu-v2023", extra=[row])
    with pytest.raises(InvalidRequest, match=r"1 of 5 rows .*gpu_milli is not within 1 and 1000"):
        read_pods(path)


def test_arrivals_come_at_the_load_that_is_wanted(tmp_path: Path) -> None:
    jobs, _ = load_jobs("alibaba-gpu-v2023", write(tmp_path, "alibaba-gpu-v2023"))
    nodes, _ = load("alibaba-gpu-v2023-nodes", write(tmp_path, "alibaba-gpu-v2023-nodes"))
    plans = plans_at(jobs, nodes, Churn(jobs=50), 0.8, seed=1)  # type: ignore[arg-type]
    offered = offered_load(plans, nodes, Assumptions().gpu_memory_mib)  # type: ignore[arg-type]
    assert len(plans) == 50 and offered == pytest.approx(0.8, rel=1e-3)


def test_other_lists_are_measured_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = write(tmp_path, "alibaba-gpu-v2023", packed=False).rename(tmp_path / "mine.csv")
    nodes = write(tmp_path, "alibaba-gpu-v2023-nodes")
    out = tmp_path / "out.json"
    words = ["--pods", str(pods), "--nodes", str(nodes), "--seeds", "2", "--policies", PEERS]
    assert packing.main([*words, "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert {title: set(runs) for title, runs in document["filling"].items()} == {
        "mine": {"min-wait", "best-fit"}
    }
    runs = document["filling"]["mine"]["best-fit"]
    assert len(runs) == 2 and all(0 < run["allocated"] <= 1 for run in runs)
    assert document["default_allocated_percent"] is None and document["gpus"] == 10
    printed = capsys.readouterr().out
    assert (
        set(document["orders"]) == set(packing.ORDERS) and "| in order of their GPUs |" in printed
    )
    assert all(len(runs["best-fit"]) == 2 for runs in document["orders"].values())
    assert "## mine" in printed and "| best-fit |" in printed


def test_waits_are_measured_at_each_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = write(tmp_path, "alibaba-gpu-v2023", packed=False).rename(tmp_path / "mine.csv")
    nodes = write(tmp_path, "alibaba-gpu-v2023-nodes")
    monkeypatch.setattr(waits, "CHURNING", (waits.OURS, waits.CENTRAL))
    sizes = waits.ChurnSizes(Churn(nodes=2, jobs=8, schedulers=2), (0.5, 0.9))
    monkeypatch.setattr(packing, "QUICK_CHURN", sizes)
    out = tmp_path / "out.json"
    words = ["--churn", "--quick", "--pods", str(pods), "--nodes", str(nodes)]
    assert packing.main([*words, "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert set(document["waits_s"]) == {"0.5", "0.9"} == set(document["churn_wait_ratio"])
    assert all(len(x[waits.OURS]) == 1 for x in document["waits_s"].values())
    assert "| 0.9 | fragmentation |" in capsys.readouterr().out


def test_policies_are_of_what_fills(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        packing.main(["--churn", "--policies", PEERS])
    assert "--churn has its own" in capsys.readouterr().err


def test_missing_lists_are_named_with_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert packing.main(["--data", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "openb_pod_list_default.csv" in said and "name the trace file itself" in said
