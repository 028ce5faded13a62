"""A small sample of every trace format, generated here: same columns and oddities, no real row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["SAMPLES", "write"]


def write(folder: Path, name: str, *, packed: bool = True, extra: Sequence[str] = ()) -> Path:
    """The sample of format ``name`` as a file, with ``extra`` lines at its end."""
    file_name, make, _ = SAMPLES[name]
    text = make() + "".join(f"{line}\n" for line in extra)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (file_name + ".gz" * packed)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def _csv(header: str, rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    if header:
        out.write(header + "\n")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _pods() -> str:
    header = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
        "deletion_time,scheduled_time"
    )
    rows = [
        ["pod-0", 3152, 4096, 1, 470, "", "LS", "Running", 100, 700, 130],
        ["pod-1", 8000, 8192, 8, 1000, "V100M16|V100M32", "BE", "Running", 200, 260, 200],
        ["pod-2", 4000, 2048, 0, 0, "", "BE", "Failed", 300, 400, 300],
        ["pod-3", 4000, 2048, 1, 1000, "", "BE", "Pending", 400, 900, ""],
    ]
    return _csv(header, rows)


def _nodes() -> str:
    rows = [["n-0", 64000, 262144, 2, "P100"], ["n-1", 96000, 393216, 8, "G2"]]
    return _csv("sn,cpu_milli,memory_mib,gpu,model", rows)


def _batch() -> str:
    rows: list[list[Any]] = [
        [0, "j_1", "J3_1_2", 5, 100.0, 0.5, 1],
        [0, "j_1", "M1", 10, 50.0, 0.25, 4],
        [0, "j_1", "R2_1", 7, 50.0, 0.25, 2],
        [3, "j_2", "task_AbC1Zg==", 20, 200.0, 1.0, 1],
        [4, "j_3", "M1", 0, 100.0, 0.1, 1],
    ]
    return _csv("", rows)


def _google() -> str:
    rows: list[list[Any]] = [
        [4.0, 1.5, 69.7, 4, 1, 0],
        [12.1, 1.5, 48.6, 5, 0, 1],
        [13.0, "", "", "", 2, 1],
        [14.0, 0.5, 0, 4, 2, 1],
    ]
    return _csv("submit_s,wait_s,run_s,end_event,sched_class,user", rows)


def _philly() -> str:
    rows = [
        ["2020-01-01 00:00:30", 66.0, 1, 66.0, "aaa"],
        ["2020-01-01 00:00:10", 100.0, 4, 400.0, "bbb"],
        ["2020-01-01 00:01:00", 0.0, 1, 0.0, "bbb"],
    ]
    return _csv("timestamp,duration,num_gpus,gpu_time,cluster", rows)


def _muri() -> str:
    header = (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,"
        "iteration_time,resource_time_0,resource_time_1,resource_time_2,priority"
    )
    rows = [[j, 2**j, 500 * j, 10, "net", 8, 4000, 500, 400, 1, 2, 0.5, 1] for j in range(3)]
    return _csv(header, rows)


def _muri_results() -> str:
    header = (
        "time,job_id,num_gpu,submit_time,start_time,end_time,executed_time,real_executed_time,"
        "JCT,duration,pending_time,job_counter,promote"
    )
    return _csv(header, [[9.5, 0, 8, 1.0, 2.0, 9.5, 7.5, 7.5, 8.5, 7, 1.0, 1, 0]])


def _gavel() -> str:
    rows = [["Net (batch size 8)", 100, 0, 1], ["Net (batch size 8)", 100, 5, 2],
            ["Other (batch size 1)", 100, 7, 1]]  # fmt: skip
    return _csv("job_type,total_steps,arrival_s,num_gpus", rows)


def _pairs() -> str:
    one, two = "('Net (batch size 8)', 1)", "('Net (batch size 8)', 2)"
    gpu = {one: {"null": 10.0, one: [6.0, 6.0]}, two: {"null": 5.0}}
    return json.dumps({"p100": gpu, "k80": {one: {"null": 2.0, one: [0.0, 0.0]}}})


def _tpch() -> str:
    waves = {"first_wave": {"2": [9, 9]}, "fresh_durations": {"2": [9]}, "rest_wave": {"2": []}}
    full = {**waves, "rest_wave": {"2": [1000, 3000], "5": [900, 900]}}
    query = {
        "num_stages": 2,
        "edges": [[1, 0]],
        "stage_id_to_node": {"0": 0, "1": 1},
        "task_durations_ms": {"0": full, "1": waves},
    }
    return json.dumps({"1": query})


def _pollux() -> str:
    return _csv("name,time,application,num_replicas,batch_size", [["a-0", 7, "net", 6, 2048]])


def _placements() -> str:
    return _csv("placement,local_bsz,step_time,sync_time", [["121", 32, 0.1, 0.01]])


def _scalability() -> str:
    header = "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    return _csv(header, [[2, 6, 32, 0.1, 0.01]])


def _validation() -> str:
    return _csv("progress,iteration,metric,grad_sqr,grad_var", [[391.5, 390, 0.4, 9.0, 5.0]])


def _deeprm() -> str:
    bimodal = {
        "small_job_chance": 0.8,
        "small_len_uniform_int_inclusive": [1, 3],
        "big_len_uniform_int_inclusive": [10, 15],
        "dominant_size_uniform_int_inclusive": [5, 10],
        "other_size_uniform_int_inclusive": [1, 2],
    }
    result = {
        "num_resources": 2, "res_slots_per_resource": 10, "num_visible_jobs": 5,
        "backlog_size": 60, "new_job_rate_bernoulli_per_step": 0.7, "bimodal_distribution": bimodal,
    }  # fmt: skip
    return json.dumps(result)


def _traffic() -> str:
    chance = random.Random(7)
    rows = [[f"2005-06-07 {hour:02d}:00:00", chance.randrange(10**9)] for hour in range(24)]
    return _csv("time,bits", rows)


def _igniter() -> str:
    lines = [
        {"net": {"latency": {"1": {"20": 2.0, "50": 1.0}, "2": {"20": 3.0}}}},
        {"interference": {"latency": [["net", "other", 2, 7, 10, 9.0, 11.0]], "std": [[1]]}},
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def _kernels() -> str:
    rows = [["Conv", 1, 0, 49, 26688], ["Batch, norm", 0, 0, 32, 23328], ["x", -1, 0, 1, 7]]
    return _csv("Name,Profile,Memory_footprint,SM_usage,Duration", rows)


SAMPLES: dict[str, tuple[str, Callable[[], str], int]] = {
    "alibaba-gpu-v2023": ("openb_pod_list_default.csv", _pods, 3),
    "alibaba-gpu-v2023-nodes": ("openb_node_list_gpu_node.csv", _nodes, 2),
    "alibaba-v2018-dag": ("sample_tasks.csv", _batch, 3),
    "google-2011-jobs": ("jobs.csv", _google, 2),
    "philly": ("philly.csv", _philly, 2),
    "muri": ("testbed_trace.csv", _muri, 3),
    "muri-results": ("Muri-S_job.csv", _muri_results, 1),
    "gavel": ("minimize_makespan.csv", _gavel, 2),
    "gavel-pairs": ("simulation_throughputs.json", _pairs, 5),
    "decima-tpch": ("tpch_2g.json", _tpch, 1),
    "pollux": ("workload-1.csv", _pollux, 1),
    "pollux-placements": ("placements.csv", _placements, 1),
    "pollux-scalability": ("scalability.csv", _scalability, 1),
    "pollux-validation": ("validation-8.csv", _validation, 1),
    "deeprm": ("params.json", _deeprm, 1),
    "internet-traffic": ("isp_eu_hourly.csv", _traffic, 24),
    "igniter": ("v100_profile_and_interference.jsonl", _igniter, 3),
    "igniter-pairs": ("v100_profile_and_interference.jsonl", _igniter, 1),
    "orion-kernels": ("net_8_fwd.csv", _kernels, 3),
    "orion-gaps": ("inter_arrival_times.json", lambda: "[0.031, 0.5]\n", 2),
}
"""Format: file name, its text, and how many records it holds."""
