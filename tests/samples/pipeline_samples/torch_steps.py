"""Steps whose GPU versions compute with PyTorch, for tests on a real GPU."""

from __future__ import annotations

import os
import time
from typing import Any

from hrm.pipelines import Pipeline

MIB = 1 << 20
HELD_MIB = 2_048
"""What each takes at most, unless it is asked for more."""


def _report(began_s: float) -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(0)
    return {
        "pid": os.getpid(),
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        "devices": torch.cuda.device_count(),
        "uuid": f"GPU-{found.uuid}",
        "began_s": began_s,
        "ended_s": time.time(),
    }


multiplying = Pipeline("multiplying")


@multiplying.subtask(gpu_only=True, gpu_memory_mib=HELD_MIB, timeout_s=120)
def multiply(seconds: float) -> dict[str, Any]:
    """Products of matrices for so long, each checked against the first."""
    import torch

    began_s = time.time()
    ends_s = time.monotonic() + seconds
    generator = torch.Generator(device="cuda").manual_seed(1)
    left, right = (torch.randn(4096, 4096, device="cuda", generator=generator) for _ in range(2))
    expected, products = left @ right, 0
    while time.monotonic() < ends_s:
        for _ in range(20):
            product = left @ right
        torch.cuda.synchronize()
        products += 20
    return {**_report(began_s), "same": bool(torch.equal(product, expected)), "products": products}


keeping = Pipeline("keeping")


@keeping.subtask(gpu_only=True, gpu_memory_mib=HELD_MIB, timeout_s=120)
def keep(seconds: float) -> dict[str, Any]:
    """Hold device memory for so long, and hardly compute."""
    import torch

    began_s = time.time()
    kept = torch.ones(1_024 * MIB, dtype=torch.uint8, device="cuda")
    time.sleep(seconds)
    return {**_report(began_s), "same": int(kept[-1].item()) == 1}


filling = Pipeline("filling")


@filling.subtask(gpu_only=True, gpu_memory_mib=HELD_MIB, timeout_s=120)
def fill(mib: int) -> dict[str, Any]:
    """Take so much device memory, for an instant."""
    import torch

    began_s = time.time()
    taken = torch.ones(mib * MIB, dtype=torch.uint8, device="cuda")
    right = int(taken[-1].item()) == 1
    return {**_report(began_s), "same": right}


grasping = Pipeline("grasping")


@grasping.subtask(gpu_memory_mib=HELD_MIB, timeout_s=120)
def grasp(mib: int) -> str:
    return f"{mib} MiB on a core"


@grasp.gpu
def _grasp_on_a_gpu(mib: int) -> str:
    """Fails where the GPU has not that much."""
    import torch

    torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
    return f"{mib} MiB on a GPU"
