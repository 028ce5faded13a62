"""``hrm app profile``: what steps were measured to take, and to use of a GPU."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable

from typer.testing import Result

from hrm.v1 import common_pb2
from hrm.v1 import pipeline_pb2 as pb
from tests.cli.conftest import FakeMaster

Run = Callable[..., Result]


def profile(kind: str, **fields: float) -> pb.PipelineProfile:
    row = pb.PipelineRow(kind=kind, bucket=1, gpu_model="P4")
    return pb.PipelineProfile(row=row, size_above_mb=20.0, size_at_most_mb=60.0, **fields)  # type: ignore[arg-type]


def measured() -> list[pb.PipelineProfile]:
    on_gpu = profile("video/detect", cpu_s=4.125, gpu_s=0.5, gpu_memory_mib=1480.0)
    on_gpu.gpu_use_runs = 7
    for number in range(16):
        memory_mib = 100.0 * number
        on_gpu.gpu_use.add(gpu=0.25, memory_mib=memory_mib, cores=0.25, pcie=0.02 * number)
    return [on_gpu, profile("video/[b]join", cpu_s=1.5, memory_mib=2048.0)]


def test_what_steps_take_and_use_of_a_gpu_is_shown(hrm: Run, master: FakeMaster) -> None:
    master.pipelines.profiles = measured()
    done = hrm("app", "profile", "video")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["video/detect", "20", "to", "60", "P4", "4.12", "0.50", "1,480"]
    assert lines[2].split() == ["video/[b]join", "20", "to", "60", "P4", "1.50", "2,048"]
    memory = next(line for line in lines if "memory, MiB" in line and "1,500" in line)
    assert memory.split()[-8:] == ["100", "300", "500", "700", "900", "1,100", "1,300", "1,500"]
    time = next(line for line in lines if "time, %" in line)
    assert time.split()[-8:] == ["25"] * 8 and time.split()[5] == "7"
    assert sum("join" in line for line in lines) == 1
    (asked,) = master.pipelines.requests
    assert (asked.name, asked.user, asked.asker) == ("video", "", getpass.getuser())


def test_quantiles_and_what_ran_out_of_device_memory_are_shown(
    hrm: Run, master: FakeMaster
) -> None:
    one = profile("video/detect", gpu_s=0.5, gpu_p90_s=0.75, gpu_p99_s=1.25, gpu_memory_mib=1480.0)
    one.gpu_memory_mean_mib, one.out_of_gpu_memory = 1310.0, 3
    master.pipelines.profiles = [one]
    header, line = hrm("app", "profile", "video").stdout.splitlines()[:2]
    assert header.split()[-8:] == ["GPU", "MiB", "GPU", "MiB", "mean", "GPU", "ran", "out"]
    assert [x for x in header.split("  ") if x.strip().endswith("P90")][-1].strip() == "GPU P90"
    assert line.split()[-6:] == ["0.50", "0.75", "1.25", "1,480", "1,310", "3"]


def test_without_a_profile_of_a_gpu_there_is_no_table_of_it(hrm: Run, master: FakeMaster) -> None:
    master.pipelines.profiles = [profile("video/join", cpu_s=1.5)]
    done = hrm("app", "profile", "video", "--user", "ada")
    assert "use of the GPU" not in done.stdout
    assert master.pipelines.requests[0].user == "ada"


def test_sizes_beyond_the_last_bound_have_none_above(hrm: Run, master: FakeMaster) -> None:
    one = profile("video/join", cpu_s=1.5)
    one.size_above_mb, one.size_at_most_mb = 400.0, 0.0
    master.pipelines.profiles = [one]
    assert "over 400" in hrm("app", "profile", "video").stdout


def test_json_has_every_part(hrm: Run, master: FakeMaster) -> None:
    master.pipelines.profiles = measured()
    found = json.loads(hrm("app", "profile", "video", "-o", "json").stdout)["profiles"]
    assert len(found[0]["gpu_use"]) == 16 and found[0]["gpu_use"][3]["memory_mib"] == 300.0
    assert found[1]["gpu_use"] == []


def test_what_was_never_measured_says_what_to_type(hrm: Run, master: FakeMaster) -> None:
    done = hrm("app", "profile", "vid[e]o")
    assert done.exit_code == 0 and done.stdout == ""
    assert "no step of vid[e]o was measured yet" in done.stderr.replace("\n", " ")
    assert "hrm pipeline list --all" in done.stderr


def test_what_containers_use_of_a_gpu_is_shown_by_node(hrm: Run, master: FakeMaster) -> None:
    one = common_pb2.ContainerGpuUse(
        user="ann", application_name="train", part="executor", resource_profile_id=1,
        gpu_memory_mib=4096, runs=12, node="node-1",
    )  # fmt: skip
    for number in range(16):
        one.use.add(gpu=0.5, memory_mib=100.0 * number, cores=0.5)
    master.pipelines.containers = [one]
    done = hrm("app", "profile", "train")
    assert done.exit_code == 0, done.stderr
    header, time, memory, *_ = done.stdout.splitlines()
    assert header.split()[:3] == ["application", "node", "part"]
    assert time.split()[:7] == ["train", "node-1", "executor,", "profile", "1", "4,096", "12"]
    assert time.split()[-8:] == ["50"] * 8
    eighths = "100 300 500 700 900 1,100 1,300 1,500"
    assert memory.split() == ["memory,", "MiB", *eighths.split()]
    document = json.loads(hrm("app", "profile", "train", "--output", "json").stdout)
    assert document["containers"][0]["application_name"] == "train"
    assert len(document["containers"][0]["use"]) == 16


def test_without_any_record_the_commands_that_list_names_are_named(
    hrm: Run, master: FakeMaster
) -> None:
    master.pipelines.profiles = []
    shown = hrm("app", "profile", "nothing")
    assert shown.exit_code == 0
    assert "hrm pipeline list --all" in shown.output and "hrm apps --all" in shown.output
