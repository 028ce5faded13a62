"""No kernel limits: plain processes, whose memory the tracker observes.

For machines where the agent may not make cgroups (no root, a locked-down container). CPU is not
limited; memory is, but only once per sampling interval, so a fast allocation can pass for that
long.
"""

from __future__ import annotations

from pathlib import Path

from hrm.agent.isolation.base import Isolation, Limits

__all__ = ["NoIsolation"]


class NoIsolation(Isolation):
    name = "none"
    enforces_memory = False
    pins_cpus = False
    restricts_devices = False
    kills_at_once = False

    def check(self) -> None:
        """Always works."""

    def create(self, container_id: str, limits: Limits) -> tuple[Path, ...]:
        return ()

    def join_files(self, container_id: str) -> tuple[Path, ...]:
        return ()

    def members(self, container_id: str) -> frozenset[int]:
        return frozenset()

    def memory_used_mib(self, container_id: str) -> int | None:
        return None

    def memory_kills(self, container_id: str) -> int:
        return 0

    def remove(self, container_id: str) -> bool:
        return True

    def existing(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        """Made nothing."""
