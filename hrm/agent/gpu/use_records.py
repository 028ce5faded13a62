"""What this node's containers have used of GPUs: samples in, a file that outlives the agent.

The tracker's samples go into ``ContainerUses``, and what that records is written to the work
directory, at most every ``SAVE_S`` and when the agent ends. The master gets what is new with each
heartbeat, some at a time, and all of it again on a new stream: it keeps no file of that.

A sample of which a part is missing or makes no sense is left out, with one line in the log for each
reason and container. A container that an earlier agent started leaves no record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog

from hrm.agent.containers import shim
from hrm.agent.gpu.waiter_guard import WaiterGuard
from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.core.vocabulary.model import ContainerEnd, ContainerId, ContainerSpec, EndCause
from hrm.errors import HrmError
from hrm.policies.shared_gpu.container_uses import ContainerKind, ContainerUses
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.policies.shared_gpu.waiters import ProfiledWaiters
from hrm.request_bounds import GPU_USES
from hrm.v1 import common_pb2
from hrm.wire.container_uses import from_container_use

__all__ = ["FILE", "SAVE_S", "GpuUseRecords"]

FILE = "gpu-uses.json"
SAVE_S = 30.0
_VERSION = 1
_log = structlog.get_logger("hrm.agent.gpu")


class GpuUseRecords:
    """One event loop. ``policy``: what orders containers by the records, if there is any; it gets
    their ends. ``guard``: around it, where it is a learned one."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock_s = clock_s
        self.uses = _read(path)
        self.policy: ProfiledWaiters | None = None
        self.guard: WaiterGuard | None = None
        self._began_s: dict[ContainerId, float] = {}
        self._refused: dict[ContainerId, str] = {}
        self._saved_s = clock_s()
        self._changed = False
        self._sent: dict[ContainerKind, RecordedUse] = {}

    def began(self, spec: ContainerSpec) -> None:
        """A container has started."""
        now = self._clock_s()
        self._began_s[spec.container_id] = now
        self.uses.began(spec, now)

    def sampled(self, samples: Mapping[str, GpuUsePart]) -> None:
        """The tracker has sampled; NaN: not reported."""
        now = self._clock_s()
        for name, sample in samples.items():
            container_id = ContainerId(name)
            fault = self.uses.sampled(container_id, sample, now)
            if fault and self._refused.get(container_id) != fault:
                self._refused[container_id] = fault
                _log.warning("a sample of GPU use is left out", container=name, why=fault)
        if self._changed and now - self._saved_s >= SAVE_S:
            self.save()

    def ended(self, container_id: ContainerId, end: ContainerEnd) -> None:
        """A container has ended, or could not be started."""
        now = self._clock_s()
        began_s = self._began_s.pop(container_id, None)
        self._refused.pop(container_id, None)
        if began_s is None:
            return
        why = self.uses.ended(container_id, end, now)
        if why:
            _log.info("no record of GPU use", container=container_id, why=why)
        self._changed = self._changed or not why
        if self.policy is not None:
            ok = end.cause is not EndCause.GPU_MEMORY_LIMIT
            # A guard keeps times for people, as those of the node's events are.
            self.policy.ended(container_id, now=time.time(), ran_s=now - began_s, ok=ok)

    def connected(self) -> None:
        """The master on a new stream knows nothing."""
        self._sent.clear()
        if self.guard is not None:
            self.guard.connected()

    def news(self) -> list[common_pb2.ContainerGpuUse]:
        """What the master has not had yet, ``GPU_USES`` at most."""
        new = [(kind, use) for kind, use in self.uses if self._sent.get(kind) is not use][:GPU_USES]
        self._sent.update(new)
        known = {kind for kind, _ in self.uses}
        for kind in self._sent.keys() - known:
            del self._sent[kind]
        return [from_container_use(kind, use) for kind, use in new]

    def save(self) -> None:
        """Write what has changed. A disk that is full loses records, no containers."""
        if not self._changed:
            return
        kinds = [
            {"kind": list(kind), "runs": use.runs, "parts": [list(part) for part in use.parts]}
            for kind, use in self.uses
        ]
        self._saved_s = self._clock_s()
        try:
            shim.write_json(self._path, {"version": _VERSION, "kinds": kinds})
        except OSError as error:
            _log.warning("recorded uses of GPUs are not saved", why=str(error))
            return
        self._changed = False


def _read(path: Path) -> ContainerUses:
    """What an earlier agent wrote; nothing, if that is no such file."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no regular file")
        document = json.loads(path.read_text())
        if document["version"] != _VERSION:
            raise ValueError(f"it has version {document['version']!r}, not {_VERSION}")
        return ContainerUses(_known(document["kinds"]))
    except FileNotFoundError:
        return ContainerUses()
    except (HrmError, OSError, ValueError, KeyError, TypeError) as error:
        _log.warning(
            "recorded uses of GPUs are unreadable, and recorded again", file=str(path),
            why=f"{type(error).__name__}: {error}",
        )  # fmt: skip
        return ContainerUses()


def _known(kinds: Iterable[Mapping[str, Any]]) -> Iterable[tuple[ContainerKind, RecordedUse]]:
    for one in kinds:
        user, name, part, profile, mib = one["kind"]
        kind = ContainerKind(str(user), str(name), str(part), int(profile), int(mib))
        parts = tuple(GpuUsePart(*map(float, held)) for held in one["parts"])
        yield kind, RecordedUse(parts, int(one["runs"]))
