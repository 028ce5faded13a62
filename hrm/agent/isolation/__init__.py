"""How a node limits containers to their grants: drivers behind one interface.

``cgroup2`` and ``cgroup1`` let the kernel enforce memory and CPU; ``none`` starts plain processes
and leaves the memory limit to the tracker's observation. ``detect`` tests them on this machine,
best first, and logs why each better one was passed over.
"""

from hrm.agent.isolation.base import Device, GroupIsolation, Isolation, IsolationError, Limits
from hrm.agent.isolation.cgroup1 import Cgroup1
from hrm.agent.isolation.cgroup2 import Cgroup2
from hrm.agent.isolation.detect import DRIVERS, Detection, detect, sweep

__all__ = [
    "DRIVERS",
    "Cgroup1",
    "Cgroup2",
    "Detection",
    "Device",
    "GroupIsolation",
    "Isolation",
    "IsolationError",
    "Limits",
    "detect",
    "sweep",
]
