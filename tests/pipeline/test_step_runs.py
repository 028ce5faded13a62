"""A worker's handling of functions, good or bad, and its reports of them."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hrm.pipelines.worker.step_process import run_job
from hrm.v1 import pipeline_pb2 as pb

SAMPLES = "pipeline_samples.sample_steps"


def job(directory: Path, what: str, value: Any, **more: Any) -> dict[str, Any]:
    pipeline, _, subtask = what.partition(".")
    given = directory / "input"
    given.write_bytes(pickle.dumps(value))
    return {
        "run": 1,
        "reference": f"{SAMPLES}:{pipeline}",
        "subtask": subtask,
        "device": "cpu",
        "inputs": [str(given)],
        "output": str(directory / "output"),
        "memory_limit_mib": 0,
        "node": "n1",
        **more,
    }


def test_a_function_gets_its_inputs_and_its_result_is_kept(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(pickle.dumps(9))
    two.write_bytes(pickle.dumps(-3))
    done = run_job(job(tmp_path, "arithmetic.add", 0, inputs=[str(one), str(two)]))
    assert done["outcome"] == "DONE"
    assert pickle.loads((tmp_path / "output").read_bytes()) == 6
    assert done["ran_s"] < 1.0
    assert done["memory_mib"] > 1.0


def test_bytes_may_be_handed_over_as_they_are(tmp_path: Path) -> None:
    wanted = job(tmp_path, "arithmetic.double", None, raw=True)
    (tmp_path / "input").write_bytes(b"ab")
    assert run_job(wanted)["outcome"] == "DONE"
    assert pickle.loads((tmp_path / "output").read_bytes()) == b"abab"


@pytest.mark.parametrize(
    ("what", "more", "outcome", "words"),
    [
        ("raising.divide", {}, "RAISED", ["ZeroDivisionError", "line", "sample_steps.py"]),
        ("unpicklable.make", {}, "RAISED", ["does not pickle"]),
        ("arithmetic.nobody", {}, "NOT_IMPORTABLE", ["double, square"]),
        ("arithmetic.double", {"device": "gpu"}, "NOT_IMPORTABLE", ["without a gpu version"]),
        ("not_a_pipeline.x", {}, "NOT_IMPORTABLE", ["is a int, not a Pipeline"]),
        ("x.x", {"reference": "no_such_module:p"}, "NOT_IMPORTABLE", ["pipeline_path"]),
    ],
)
def test_what_goes_wrong_has_a_name(
    tmp_path: Path, what: str, more: dict[str, Any], outcome: str, words: list[str]
) -> None:
    done = run_job(job(tmp_path, what, 1, **more))
    assert done["outcome"] == outcome
    for word in words:
        assert word in done["message"]
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [("unpicklable.make", "pickle", "does not pickle"), ("slow.emit", "json", "is tuple")],
)
def test_a_result_that_cannot_be_written_leaves_nothing_in_its_directory(
    tmp_path: Path, what: str, kind: str, words: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    more = {"result_format": kind, "result_key": "", "task_id": "t", "placement": 1}
    done = run_job(job(tmp_path, what, 1, result_dir=str(shared), **more))
    assert done["outcome"] == "RAISED" and words in done["message"]
    assert [*shared.iterdir()] == []


def test_where_a_result_stays_must_be_a_directory(tmp_path: Path) -> None:
    more = {"result_format": "json", "result_key": "", "task_id": "t", "placement": 1}
    (tmp_path / "file").write_text("")
    done = run_job(job(tmp_path, "numbers.count", 3, result_dir=str(tmp_path / "file"), **more))
    assert done["outcome"] == "RAISED"
    assert f"result_dir {tmp_path}/file: Not a directory; share the directory" in done["message"]
    assert "or leave result_dir out" in done["message"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_full_disk_is_reported_with_path_reason_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    def fill_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hrm.pipelines.worker.step_process.encode", fill_disk)
    more = {"result_format": "json", "result_key": "", "task_id": "t", "placement": 1}
    more["result_dir"] = str(tmp_path) if shared else ""
    done = run_job(job(tmp_path, "numbers.count", 3, **more))
    assert done["outcome"] == "RAISED"
    wanted = (
        f"result_dir {tmp_path}: No space left on device; free some space there"
        if shared
        else f"{tmp_path}/output: No space left on device; free some space on n1"
    )
    assert wanted in done["message"]
    assert not [*tmp_path.glob("*.part")]


def test_a_worker_limits_memory_and_goes_on_to_the_next_run(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "greedy.fill", 32, memory_limit_mib=64),
        job(tmp_path, "greedy.fill", 256, memory_limit_mib=64, inputs=[str(tmp_path / "much")]),
        job(tmp_path, "crashing.crash", 1),
    ]
    (tmp_path / "much").write_bytes(pickle.dumps(256))
    (tmp_path / "input").write_bytes(pickle.dumps(32))
    done = subprocess.run(
        [sys.executable, "-m", "hrm.pipelines.worker.step_process", str(os.getpid())],
        input="".join(json.dumps(one) + "\n" for one in jobs),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["outcome"], second["outcome"]) == ("DONE", "OUT_OF_MEMORY")
    assert (first["run"], second["run"]) == (1, 1)
    assert "memory_mib of 64 MiB" in second["message"]
    assert first["memory_mib"] > 32
    assert done.returncode == 3


def test_what_is_no_unicode_can_be_reported_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads(_value: Any) -> None:
        raise FileNotFoundError("no file b\udcff")

    monkeypatch.setattr("hrm.pipelines.worker.step_process._function", lambda _job: reads)
    reply = run_job(job(tmp_path, "arithmetic.double", 1))
    assert reply["outcome"] == "RAISED" and "no file b\\udcff" in reply["message"]
    assert pb.SubtaskTiming(message=reply["message"]).message == reply["message"]


def test_a_process_whose_worker_is_gone_before_it_could_notice_runs_nothing(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hrm.pipelines.worker.step_process", "-1"],
        input=json.dumps(job(tmp_path, "arithmetic.double", 1)) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert not (tmp_path / "output").exists()


ON_A_GPU = """
import os, sys, types
from pathlib import Path
import pynvml

MIB = 1 << 20
reserved = [300 * MIB]

def empty_cache():
    reserved[0] = 0
    Path("given-back").touch()

sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(
    is_initialized=lambda: True,
    reset_peak_memory_stats=lambda: None,
    max_memory_reserved=lambda: 700 * MIB,
    memory_reserved=lambda: reserved[0],
    empty_cache=empty_cache,
))
used = [types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=800 * MIB),
        types.SimpleNamespace(pid=1, usedGpuMemory=9000 * MIB)]
pynvml.nvmlInit = pynvml.nvmlShutdown = lambda: None
pynvml.nvmlDeviceGetCount = lambda: 1
pynvml.nvmlDeviceGetHandleByIndex = lambda index: index
pynvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: used
pynvml.nvmlDeviceGetMPSComputeRunningProcesses = lambda handle: []
pynvml.nvmlDeviceGetGraphicsRunningProcesses = lambda handle: []

from hrm.pipelines.worker.step_process import main
main()
"""


def test_device_memory_is_counted_with_its_context_and_given_back_before_the_reply(
    tmp_path: Path,
) -> None:
    """torch and NVML are fakes: 500 MiB of the process are no tensors, but context and kernels."""
    with subprocess.Popen(
        [sys.executable, "-c", ON_A_GPU, str(os.getpid())],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps(job(tmp_path, "arithmetic.double", 1)) + "\n")
        worker.stdin.flush()
        reply = json.loads(worker.stdout.readline())
        assert (tmp_path / "given-back").exists(), "the next run may start elsewhere at once"
    assert (reply["outcome"], reply["gpu_memory_mib"]) == ("DONE", 1200)
