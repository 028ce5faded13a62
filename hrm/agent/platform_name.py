"""The name of a machine's platform, from its hardware: nodes that are alike have one name."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["NAME_MAX", "platform_name"]

NAME_MAX = 64
_CPUINFO = Path("/proc/cpuinfo")
_MODEL = re.compile(r"^(?:model name|cpu model|hardware)\s*:\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_NOISE = re.compile(r"\((?:r|tm)\)|\b(?:cpu|processor)\b|@", re.IGNORECASE)
_OTHER = re.compile(r"[^a-z0-9.]+")


def platform_name(gpu_models: Iterable[str], cpuinfo: Path = _CPUINFO) -> str:
    """The model of the processor and, with a ``+`` before each, those of GPUs, as far as they are
    known, each once: "intel-xeon-gold-6230-2.10ghz+nvidia-a100-sxm4-80gb"."""
    try:
        found = _MODEL.search(cpuinfo.read_text(errors="replace"))
    except OSError:
        found = None
    models = [found.group(1) if found else platform.machine()]
    models += sorted({model for model in gpu_models if model})
    names = (_OTHER.sub("-", _NOISE.sub(" ", model).lower()).strip("-.") for model in models)
    return "+".join(name for name in names if name)[:NAME_MAX] or "unknown"
