"""What containers use of a GPU over their lives, by the name of their application.

A node samples what runs there. When a container has ended, its samples become ``USE_PARTS`` parts
of its life, and these go into the record of its kind (``ContainerKind``): whose application it was,
the application's name, what it was there, and the device memory that it requested. So the next run
of the same application is known before it starts. Unlike steps of pipelines, containers are
recorded in company, too, for they are rarely alone. Memory is measured by process and is right all
the same; shares are those that a container got.

Not recorded is a container of which fewer than two samples were taken, or none at first, as where
the driver reported nothing then; nor one that failed or was ended for others, whose life was
cut short. One that had more device memory than it held is recorded as far as it came: its greatest
use is what the next must not be without.

All is bounded: a container's samples (beyond ``SAMPLES_MAX`` two become one, their greatest use),
and the kinds (beyond ``KINDS_MAX`` the one observed longest ago is forgotten).

Source: DqnGPU (Oh and Kim, Cluster Computing 2020), table 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart, check_gpu_use
from hrm.core.vocabulary.model import ContainerEnd, ContainerId, ContainerSpec, EndCause
from hrm.errors import InvalidRequest
from hrm.policies.shared_gpu.recorded_use import RecordedUse, in_parts

__all__ = [
    "KINDS_MAX",
    "PARTS",
    "SAMPLES_MAX",
    "ContainerKind",
    "ContainerUses",
    "kind_of",
    "sample_fault",
]

KINDS_MAX = 1_000
SAMPLES_MAX = 256
PARTS = ("executor", "driver", "worker")
"""What a container may be in its application."""
_OVER = EndCause.GPU_MEMORY_LIMIT


class ContainerKind(NamedTuple):
    """Containers that are expected to use a GPU alike. ``part``: what it is in its application
    (one of ``PARTS``), ``profile`` its resource profile there. ``gpu_memory_mib``: as
    requested."""

    user: str
    name: str
    part: str
    profile: int
    gpu_memory_mib: int


def kind_of(spec: ContainerSpec) -> ContainerKind | None:
    """None: it uses no GPU, or belongs to an application without a name."""
    mib = spec.resources.gpu_memory_mib
    if not mib or not spec.application_name:
        return None
    part = "driver" if spec.launch.driver else "worker" if spec.launch.worker else "executor"
    return ContainerKind(spec.user, spec.application_name, part, spec.resource_profile_id, mib)


def sample_fault(sample: GpuUsePart) -> str:
    """Why a sample is of no use, in a line; empty: it is sound."""
    for name, value in zip(GpuUsePart._fields, sample, strict=True):
        if not math.isfinite(value):
            return f"{name} is {value}, no number"
        if value < 0.0:
            return f"{name} is {value:g}, less than nothing"
        if name != "memory_mib" and value > 1.0:
            return f"{name} is {value:g}, more than the whole"
    return ""


@dataclass(slots=True)
class _Life:
    """``samples``, each the greatest use of ``stride`` of them from ``at_s`` seconds after the
    start on; ``last_s``: when the last was taken, ``last_count``: how many are in the last one."""

    kind: ContainerKind
    began_s: float
    at_s: list[float] = field(default_factory=list)
    samples: list[GpuUsePart] = field(default_factory=list)
    stride: int = 1
    last_s: float = 0.0
    last_count: int = 0

    @property
    def period_s(self) -> float:
        """The mean time from one sample to the next, of two at least."""
        taken = self.stride * (len(self.samples) - 1) + self.last_count
        return (self.last_s - self.at_s[0]) / (taken - 1)

    def add(self, at_s: float, sample: GpuUsePart) -> None:
        self.last_s = at_s
        if self.samples and self.last_count < self.stride:
            self.samples[-1] = _greatest(self.samples[-1], sample)
            self.last_count += 1
            return
        if len(self.samples) == SAMPLES_MAX:
            pairs = zip(self.samples[::2], self.samples[1::2], strict=True)
            self.samples = [_greatest(one, other) for one, other in pairs]
            self.at_s = self.at_s[::2]
            self.stride *= 2
        self.at_s.append(at_s)
        self.samples.append(sample)
        self.last_count = 1


class ContainerUses:
    """What one node has recorded. Times are those of any one clock."""

    def __init__(self, known: Iterable[tuple[ContainerKind, RecordedUse]] = ()) -> None:
        """``known``: from an earlier life of the node, the one observed longest ago first.

        Raises:
            InvalidRequest: a use in it is no profile.
        """
        self._known: dict[ContainerKind, RecordedUse] = {}
        self._lives: dict[ContainerId, _Life] = {}
        for kind, use in known:
            check_gpu_use(use.parts)
            if not use.parts or use.runs < 1:
                raise InvalidRequest(f"a profile of {kind.name} is of no run; remove it")
            self._keep(kind, use)

    def get(self, spec: ContainerSpec) -> tuple[GpuUsePart, ...]:
        """The use of containers like this one; empty: none has been recorded."""
        kind = kind_of(spec)
        use = self._known.get(kind) if kind is not None else None
        return () if use is None else use.parts

    def __iter__(self) -> Iterator[tuple[ContainerKind, RecordedUse]]:
        """All kinds, the one observed longest ago first."""
        return iter(self._known.items())

    def began(self, spec: ContainerSpec, now: float) -> None:
        """A container runs since ``now``; samples of it may follow."""
        kind = kind_of(spec)
        if kind is not None:
            self._lives[spec.container_id] = _Life(kind, now)

    def sampled(self, container_id: ContainerId, sample: GpuUsePart, now: float) -> str:
        """Take in what a container uses at this moment; returns why it was not taken, in a line.

        A container that is not known to run is left out without a word: it has just ended.
        """
        life = self._lives.get(container_id)
        if life is None:
            return ""
        fault = sample_fault(sample)
        if not fault and now - life.began_s < life.last_s:
            fault = "its time is before that of the one before it"
        if not fault:
            life.add(now - life.began_s, sample)
        return fault

    def ended(self, container_id: ContainerId, end: ContainerEnd, now: float) -> str:
        """A container runs no more. Returns why it leaves no record, in a line; empty: it does, or
        it uses no GPU."""
        life = self._lives.pop(container_id, None)
        if life is None:
            return ""
        ran_s = now - life.began_s
        whole = end.cause is EndCause.RELEASED or (
            end.cause is EndCause.EXITED and end.exit_code == 0
        )
        if not whole and end.cause is not _OVER:
            return f"its life was cut short: {end.cause.value}"
        parts = in_parts(life.at_s, life.samples, ran_s)
        if not parts:
            return "fewer than two samples were taken of it"
        if life.at_s[0] > max(ran_s / USE_PARTS, 2.0 * life.period_s):
            return "its first samples are missing"
        before = self._known.get(life.kind)
        self._keep(life.kind, RecordedUse(parts) if before is None else before.observed(parts))
        return ""

    def forget(self, container_id: ContainerId) -> None:
        """Leave out one that runs: what is known of it is no whole life."""
        self._lives.pop(container_id, None)

    def _keep(self, kind: ContainerKind, use: RecordedUse) -> None:
        self._known.pop(kind, None)
        self._known[kind] = use
        while len(self._known) > KINDS_MAX:
            del self._known[next(iter(self._known))]


def _greatest(one: GpuUsePart, other: GpuUsePart) -> GpuUsePart:
    return GpuUsePart(*map(max, one, other))
