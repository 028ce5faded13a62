"""A table of profiles made out of formulas: its numbers mean nothing."""

from __future__ import annotations

from typing import Any

from hrm.pipelines.sim.profiles import FIELDS, MeasuredPipelines, parse

__all__ = ["sample", "sample_document"]

_SAMPLE_SIZES_MB = (10.0, 20.0, 60.0, 120.0, 200.0, 400.0)
_SAMPLE_APPLICATIONS = {
    "intrusion-detection": (
        "gmm-background", "frame-differencing", "gaussian-pyramid", "dog-pyramid",
        "scale-space-extrema", "tracking",
    ),
    "video-synopsis": (
        "gmm-background", "frame-differencing", "tube-extraction", "tube-optimisation",
        "stitching",
    ),
    "face-recognition": (
        "load-image", "face-locations", "batch-face-locations", "face-landmarks",
        "face-encodings", "face-distance", "compare-faces",
    ),
}  # fmt: skip
_SAMPLE_CPU_ONLY = {"tracking", "tube-optimisation", "stitching", "load-image", "face-locations"}
_SAMPLE_GPU_ONLY = {"batch-face-locations"}


def sample() -> MeasuredPipelines:
    """Sixteen kinds with invented times, of which eleven workers do 90 tasks a minute at most."""
    return parse(sample_document())


def sample_document() -> dict[str, Any]:
    """The sample as the JSON of a table."""
    rows: list[dict[str, Any]] = []
    applications: dict[str, Any] = {}
    for name, subtasks in _SAMPLE_APPLICATIONS.items():
        chain = []
        for position, kind in enumerate(subtasks):
            devices = [device for device, without in (("cpu", _SAMPLE_GPU_ONLY),
                       ("gpu", _SAMPLE_CPU_ONLY)) if kind not in without]  # fmt: skip
            after = [subtasks[position - 1]] if position else []
            chain.append({"subtask": kind, "kind": kind, "after": after, "devices": devices})
        applications[name] = chain
    for number, kind in enumerate(sorted({one for own in _SAMPLE_APPLICATIONS.values()
                                          for one in own})):  # fmt: skip
        cpu_only = kind in _SAMPLE_CPU_ONLY
        per_mb = 0.616 if cpu_only else 0.77 + 0.22 * (number * 5 % 7)
        speedup = 2.0 + 3.0 * (number * 3 % 7)
        for size in _SAMPLE_SIZES_MB:
            cpu_s = per_mb * size**0.9
            rows.append({
                "kind": kind,
                "size_mb": size,
                "cpu_s": None if kind in _SAMPLE_GPU_ONLY else [0.95 * cpu_s, cpu_s, 1.05 * cpu_s],
                "cpu_memory_mib": 60.0 + 1.5 * size,
                "gpu_s": None if cpu_only else [cpu_s / speedup],
                "gpu_memory_mib": None if cpu_only else 300.0 + 3.0 * size,
                "cpu_share": 0.95,
                "gpu_features": None if cpu_only else {
                    field: 0.1 + 0.1 * ((number * (place + 2) + place) % 8)
                    for place, field in enumerate(FIELDS)
                },
            })  # fmt: skip
    source = "invented numbers of the same form; they mean nothing"
    return {"gpu": {"measured": False, "source": source},
            "applications": applications, "rows": rows}  # fmt: skip
