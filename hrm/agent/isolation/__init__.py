"""How a node limits containers to their grants: drivers behind one interface.

``cgroup2`` and ``cgroup1`` let the kernel enforce memory and CPU; ``none`` starts plain processes
and leaves the memory limit to the tracker's observation. ``detect`` tries them on this machine,
best first, and says why each better one was passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hrm.agent.isolation.base import (
    ContainerLimits,
    CpuLimit,
    DeviceNumbers,
    GroupIsolation,
    Isolation,
    IsolationError,
)
from hrm.agent.isolation.cgroup1 import Cgroup1
from hrm.agent.isolation.cgroup2 import Cgroup2
from hrm.errors import InvalidConfig

__all__ = [
    "DRIVERS",
    "Cgroup1",
    "Cgroup2",
    "ContainerLimits",
    "Detection",
    "DeviceNumbers",
    "GroupIsolation",
    "Isolation",
    "IsolationError",
    "detect",
    "sweep",
]

DRIVERS: dict[str, Callable[[str, int, CpuLimit], Isolation]] = {
    "cgroup2": Cgroup2,
    "cgroup1": Cgroup1,
    "none": lambda _identity, _vcores, _cpu_limit: Isolation(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The driver to use, and why the better ones were passed over."""

    driver: Isolation
    passed_over: dict[str, str]

    @property
    def explanation(self) -> str:
        reasons = "; ".join(f"not {name}: {reason}" for name, reason in self.passed_over.items())
        return f"{self.driver.name} ({reasons})" if reasons else self.driver.name


def detect(wanted: str, identity: str, *, vcores: int, cpu_limit: CpuLimit = "shares") -> Detection:
    """The driver named ``wanted``, or with ``auto`` the best that works here.

    Raises:
        InvalidConfig: ``wanted`` names an unknown driver, or one that does not work here.
    """
    if wanted != "auto" and wanted not in DRIVERS:
        raise InvalidConfig(f"no isolation driver {wanted!r}; choose auto, {', '.join(DRIVERS)}")
    passed_over: dict[str, str] = {}
    for name, make in DRIVERS.items():
        if wanted not in ("auto", name):
            continue
        try:
            driver = make(identity, vcores, cpu_limit)
            driver.check()
        except (IsolationError, OSError) as error:
            if wanted == name:
                raise InvalidConfig(
                    f"isolation {name} does not work on this machine: {error}; choose another "
                    f"with --isolation auto, {', '.join(n for n in DRIVERS if n != name)}"
                ) from error
            passed_over[name] = str(error)
        else:
            return Detection(driver=driver, passed_over=passed_over)
    raise AssertionError("the driver 'none' always works")


def sweep(identity: str) -> tuple[str, ...]:
    """End and remove every group of an agent that will not return; returns the containers' ids.

    An agent that restarts on its work directory does this itself; this is for killed agents whose
    cluster is being taken down.
    """
    removed: list[str] = []
    for make in DRIVERS.values():
        driver = make(identity, 1, "shares")
        removed += [name for name in driver.existing() if driver.remove(name)]
        driver.close()
    return tuple(removed)
