"""The paper's GPU sharing (table 1, figure 12) against the model of GPU stages.

    python -m benchmarks.paper.gpu_sharing [--json FILE]

The model (``benchmarks.simulation.gpu_stages``) gets two published numbers of *one* executor on a
GPU, its time and how busy the GPU is, one of a CPU job alone, and a third of the printed memory of
three executors; everything else published is predicted and compared with the print. A second column
adds one more number, the time of two executors, as a common stretch of all stages. All of it is
computed in virtual time: no GPU is needed.

Source: HRM paper, sections 6.2.4 (table 1) and 6.2.5 (figure 12). Row 2 of table 1 survives only as
"32 % better", which may speak of time or of speed; both readings are shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.simulation.gpu_stages import (
    CpuWork,
    GpuWork,
    Machine,
    Stages,
    Usage,
    simulate,
    throughput_bound,
)

__all__ = ["Row", "figure_12", "main", "table_1"]

IMAGES = 720
ALONE_S = 151.3
ALONE_BUSY = 0.24
TWO_S_IF_TIME = ALONE_S * (1 - 0.32)
TWO_S_IF_SPEED = ALONE_S / 1.32
THREE_S = 69.0
THREE_BUSY = 0.73
THREE_MIB = 8_575
GPU_MIB = 11_264
"""An RTX 2080 Ti has 11 GiB; the paper gives the use of three executors, not that of one."""
EXECUTOR_MIB = THREE_MIB // 3

COPY_IN_S = 608 * 608 * 3 * 4 / 6e9
COPY_OUT_S = (19 * 19 + 38 * 38 + 76 * 76) * 255 * 4 / 6e9
"""A YOLOv3 input and its three outputs over PCIe 3 from pageable memory, some 6 GB/s. Not in the
paper; at a hundredth of the cycle their effect is negligible."""

NODE = Machine(cores=16, gpus=2, device_mib=GPU_MIB)
FIGURE_12_S = 230.0
WORDCOUNT_ALONE = 0.78
WORDCOUNT_SLOTS = 16
_BURST_S = 0.1
ROUGH_BUSY = "3: GPU busy, %, stages as irregular as can be"
_SEEDS = 7


@dataclass(frozen=True, slots=True)
class Row:
    """One published value. ``use``: to calibrate or to check."""

    what: str
    published: float | None
    model: float
    use: str
    stretched: float | None = None

    def cells(self) -> list[object]:
        miss = None
        if self.published is not None and self.use != "calibrates":
            miss = f"{100 * (self.model / self.published - 1):+.0f} %"
        return [
            self.what,
            _shown(self.published),
            _shown(self.model),
            miss,
            _shown(self.stretched),
            self.use,
        ]


def _shown(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _run(stages: Stages, executors: int, *, variation: float = 0.0) -> Usage:
    """``IMAGES`` images by ``executors`` on one GPU, divided evenly."""
    work = [
        GpuWork(
            stages=stages,
            cycles=IMAGES // executors + (index < IMAGES % executors),
            device_mib=EXECUTOR_MIB,
        )
        for index in range(executors)
    ]
    return simulate(replace(NODE, gpus=1), work, variation=variation)


def table_1() -> list[Row]:
    """Time, GPU use and device memory at 1, 2 and 3 executors per GPU; and predictions for 4."""
    stages = Stages.measured(ALONE_S / IMAGES, ALONE_BUSY, COPY_IN_S, COPY_OUT_S)
    factor = TWO_S_IF_TIME / _run(stages, 2).elapsed_s
    slow = stages.stretched(factor)
    one, two, three, four = (_run(stages, count) for count in (1, 2, 3, 4))
    rough = _run(stages, 3, variation=1.0)
    slow_two, slow_three = _run(slow, 2), _run(slow, 3)
    busy = 100 * THREE_BUSY
    return [
        Row("1 executor: time, s", ALONE_S, one.elapsed_s, "calibrates"),
        Row("1: GPU busy, %", 24.0, 100 * one.kernels, "calibrates"),
        Row(
            "2: time, s, if 32 % is of time",
            TWO_S_IF_TIME,
            two.elapsed_s,
            "checks; gives the stretch",
            slow_two.elapsed_s,
        ),
        Row("2: time, s, if 32 % is of speed", TWO_S_IF_SPEED, two.elapsed_s, "checks"),
        Row("2: GPU busy, %", None, 100 * two.kernels, "lost in print", 100 * slow_two.kernels),
        Row("3: time, s", THREE_S, three.elapsed_s, "checks", slow_three.elapsed_s),
        Row("3: GPU busy, %", busy, 100 * three.kernels, "checks", 100 * slow_three.kernels),
        Row("3: time, s, stages as irregular as can be", THREE_S, rough.elapsed_s, "checks"),
        Row(ROUGH_BUSY, busy, 100 * rough.kernels, "checks"),
        Row(
            "3: device memory, MiB",
            float(THREE_MIB),
            float(three.device_mib_max),
            "gives the memory of one",
        ),
        Row("4: time, s (a fourth waits for memory)", None, four.elapsed_s, "not in print"),
    ]


def _detection(stages: Stages, *, spins: bool) -> list[GpuWork]:
    work = GpuWork(stages=stages, cycles=10**9, device_mib=EXECUTOR_MIB, spins=spins)
    return [replace(work, gpu=gpu) for gpu in range(NODE.gpus) for _ in range(3)]


def _mean(gpu: Sequence[GpuWork], cpu: Sequence[CpuWork], seeds: int) -> tuple[float, float]:
    """GPU and CPU use in percent, over several seeds: CPU work comes in bursts of any length."""
    runs = [
        simulate(NODE, gpu, cpu, variation=0.5, seed=seed, until_s=FIGURE_12_S)
        for seed in range(seeds)
    ]
    return (
        100 * sum(run.kernels for run in runs) / seeds,
        100 * sum(run.cores for run in runs) / seeds,
    )


def figure_12(seeds: int = _SEEDS) -> list[Row]:
    """GPU and CPU use of detection, of wordcount, and of both, with three executors on each GPU."""
    stages = Stages.measured(ALONE_S / IMAGES, ALONE_BUSY, COPY_IN_S, COPY_OUT_S)
    slot = CpuWork(cpu_s=_BURST_S, other_s=_BURST_S * (1 / WORDCOUNT_ALONE - 1), cycles=10**9)
    words = [slot] * WORDCOUNT_SLOTS
    rows = []
    _, words_cpu = _mean([], words, seeds)
    rows.append(Row("wordcount: CPU, %", 78.0, words_cpu, "calibrates"))
    for how, spins in (("executors poll the GPU", True), ("executors sleep", False)):
        alone = _detection(stages, spins=spins)
        gpu, cpu = _mean(alone, [], seeds)
        gpu_both, cpu_both = _mean(alone, words, seeds)
        rows += [
            Row(f"detection, {how}: GPU, %", 67.0, gpu, "checks"),
            Row(f"detection, {how}: CPU, %", 35.0, cpu, "checks"),
            Row(f"both, {how}: GPU, %", 67.0, gpu_both, "checks"),
            Row(f"both, {how}: CPU, %", 93.0, cpu_both, "checks"),
        ]
    return rows


_HEADER = ("", "published", "model", "miss", "with the stretch of row 2", "use")

_ABOUT = """\
The model is told the first two rows of table 1, the CPU use of wordcount alone, and a third of the
printed memory of three executors as that of one: its memory at three is its own input, and checks
nothing. Its GPU use at three is close to three times the 24 % that it is told, as nobody waits for
long. Its stages: {stages}.
No schedule is faster than {bound:.1f} s with three executors on a GPU. Figure 12 has stages that
vary by half of their mean; {seeds} seeds.

Where it misses, and why:

- Time at 2 and 3 executors is too short, although the GPU is as busy as printed. Busy for 73 % of
  69 s is 50 s for 720 images; 24 % of 151.3 s is 36 s. So each kernel takes 1.39 times as long
  beside others as alone, and the whole cycle, 3 x 69 s / 151.3 s, 1.37 times. The model knows no
  such slowing down (kernels of several processes take turns; CPU parts share caches and memory).
- Irregular stages alone do not explain it: they lengthen the time, but leave the GPU idle for it
  ({rough:.0f} % busy at three, 73 in print).
- The slowing down is there at two executors already and does not grow: 1.36, if 32 % is a saving
  of time (1.51 if it is a gain in speed). One stretch of all stages, from row 2, gives
  {three:.1f} s at three (69 in print). That speaks for reading 32 % as time, and for a cost of
  sharing at all, not of each further executor.
- Figure 12 does not say how many executors there were. Three on each of a node's two GPUs, as in
  table 1, keep the GPU busy for {rough:.0f} % (irregular stages) to {regular:.0f} % (regular ones);
  67 in print. Its times do not agree with table 1: 1,000 images in 230 s are 4.3 images a second,
  fewer than the 4.8 of one executor there; only shares are compared here.
- CPU use of detection lies between executors that poll for the GPU (a core each) and ones that
  sleep; nearer to polling, which is CUDA's default.
- CPU use of both together is higher than printed: in the model no core is idle while a slot of
  wordcount is ready. Bursts of {burst:.0f} ms are assumed, since no length is printed.
"""


def report(seeds: int = _SEEDS) -> tuple[dict[str, Any], str]:
    """The document of numbers and the text."""
    provenance = common.provenance("benchmarks.paper.gpu_sharing", ["numpy"])
    stages = Stages.measured(ALONE_S / IMAGES, ALONE_BUSY, COPY_IN_S, COPY_OUT_S)
    table, figure = table_1(), figure_12(seeds)
    work = GpuWork(stages=stages, cycles=IMAGES, device_mib=EXECUTOR_MIB)
    rate = throughput_bound(stages, 3, replace(NODE, gpus=1), work)
    three = next(row for row in table if row.what == "3: time, s")
    rough = next(row for row in table if row.what == ROUGH_BUSY)
    busy = next(row for row in table if row.what == "3: GPU busy, %")
    shown = ", ".join(
        f"{name} {1000 * value:.1f} ms"
        for name, value in (
            ("copy in", stages.copy_in_s),
            ("kernel", stages.kernel_s),
            ("copy out", stages.copy_out_s),
            ("CPU", stages.cpu_s),
        )
    )
    assert three.stretched is not None
    about = _ABOUT.format(
        stages=shown,
        bound=IMAGES / rate,
        three=three.stretched,
        burst=1000 * _BURST_S,
        rough=rough.model,
        regular=busy.model,
        seeds=seeds,
    )
    document = {
        "benchmark": "gpu_sharing",
        "provenance": provenance,
        "table_1": [_json(row) for row in table],
        "figure_12": [_json(row) for row in figure],
    }
    parts = [
        "## Table 1: executors on one GPU",
        common.table(_HEADER, [row.cells() for row in table]),
        "## Figure 12: detection and wordcount on one node",
        common.table(_HEADER, [row.cells() for row in figure]),
        about,
    ]
    return document, "\n\n".join(parts)


def _json(row: Row) -> dict[str, Any]:
    return {
        "what": row.what,
        "published": row.published,
        "model": row.model,
        "with_stretch": row.stretched,
        "use": row.use,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, print and write; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.gpu_sharing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    given = parser.parse_args(arguments)
    document, body = report(1 if given.quick else _SEEDS)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not given.quick:
        title = "GPU sharing: the paper's table 1 and figure 12 beside the model"
        for path in common.write_results("paper-gpu-sharing", title, document, body):
            CONSOLE.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
