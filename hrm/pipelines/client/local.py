"""The device memory of this container, for steps of pipelines in Spark's executors.

An executor that was requested with device memory (``spark.hrm.executor.gpu.memory``) has its part
of a GPU for as long as it lives, as a worker of pipelines has. Its Python processes share that
part: it is divided into quarters, and a step holds as many as its memory needs while it runs, so
that no more than four run there at a time, and never more than fit. Quarters are locked files,
so a process that dies gives back what it held.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hrm import errors
from hrm.pipelines.core.feasibility import CAPS

__all__ = ["MEMORY_VARIABLE", "LocalGpus"]

MEMORY_VARIABLE = "HRM_GPU_MEMORY_MIB"
"""The container's part of all its GPUs, as ``hrm.spark.launch`` sets it."""
QUARTERS = CAPS.co_runners_max
_PAUSE_S = 0.02


class LocalGpus:
    """``directory``: where the quarters are; None: of the container, in which processes stand."""

    def __init__(self, directory: Path | None = None, memory_mib: int | None = None) -> None:
        """``memory_mib`` None: from the environment; 0 or nothing there: it has no GPU."""
        if memory_mib is None:
            given = os.environ.get(MEMORY_VARIABLE, "")
            memory_mib = int(given) if given.isdecimal() else 0
        self.memory_mib = memory_mib
        self._directory = directory

    @property
    def there(self) -> bool:
        return self.memory_mib > 0

    @contextmanager
    def share(self, kind: str, *, gpu_memory_mib: int = 0, wait_s: float = 600.0) -> Iterator[None]:
        """Hold so much of it for the length of a ``with``; 0: all, for it is not known how much
        ``kind`` takes. Waits for at most ``wait_s``.

        Raises:
            Unavailable: the container has no GPU, or no part of it was free within ``wait_s``.
            Unsatisfiable: it is more than the container has.
        """
        if not self.there:
            raise errors.Unavailable(
                "this executor has no part of a GPU; request one: --conf "
                "spark.executor.resource.gpu.amount=1 --conf spark.hrm.executor.gpu.memory=4g, or "
                "give the step a CPU version"
            )
        if gpu_memory_mib > self.memory_mib:
            raise errors.Unsatisfiable(
                f"{kind} needs {gpu_memory_mib} MiB of a GPU, and this executor has "
                f"{self.memory_mib} MiB of one; request more (spark.hrm.executor.gpu.memory)"
            )
        need_mib = gpu_memory_mib or self.memory_mib
        wanted = min(QUARTERS, math.ceil(QUARTERS * need_mib / self.memory_mib))
        deadline = time.monotonic() + wait_s
        held = self._take(wanted)
        while not held:
            if time.monotonic() >= deadline:
                raise errors.Unavailable(
                    f"no part of this executor's GPU was free for {kind} within {wait_s:g} s; wait "
                    f"longer, or give the step a CPU version"
                )
            time.sleep(_PAUSE_S)
            held = self._take(wanted)
        try:
            yield
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _take(self, wanted: int) -> list[int]:
        """Lock so many quarters, or none."""
        directory = self._directory or _place()
        held: list[int] = []
        for number in range(QUARTERS):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(directory / f".hrm-gpu-{number}", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            held.append(descriptor)
            if len(held) == wanted:
                return held
        for descriptor in held:
            os.close(descriptor)
        return []


def _place() -> Path:
    """A directory of the container that its processes can write to."""
    here = Path.cwd()
    with contextlib.suppress(OSError):
        if os.access(here, os.W_OK):
            return here
    return Path(tempfile.gettempdir())
