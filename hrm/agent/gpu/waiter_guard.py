"""How far this agent's learned policy of what waits for a shared GPU is trusted.

It begins in the mode of the agent's settings. Operators set another one at the master (``hrm policy
set``), which keeps it and passes it on as a numbered order; a policy that was worse than what it
replaces falls back to shadow mode by itself. Both outlive the agent, in ``gpu-waiters-mode.json``
of its work directory, until somebody orders another mode or writes another one into the settings:
only people move a mode up, not a restart.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import NamedTuple

import structlog

from hrm.agent.containers import shim
from hrm.policies.guard import GuardMode, GuardRegistry, GuardStatus
from hrm.policies.shared_gpu.guarded import GuardedGpuSharing
from hrm.v1 import policy_pb2 as pb
from hrm.wire.guard_reports import GuardReports

__all__ = ["FILE", "WaiterGuard"]

FILE = "gpu-waiters-mode.json"
_log = structlog.get_logger("hrm.agent.gpu")


class _Kept(NamedTuple):
    """``setting``: the mode of the settings when ``mode`` came to be; ``order``: the latest that
    was followed, 0: none."""

    setting: GuardMode
    mode: GuardMode
    order: int


class WaiterGuard:
    """Reports the guard of ``sharing`` and sets its mode. One event loop."""

    def __init__(self, sharing: GuardedGpuSharing, path: Path) -> None:
        self._name = sharing.guard.policy
        self._guard = sharing.guard
        self._path = path
        self._setting = sharing.guard.mode
        kept = _read(path, self._setting)
        modes = {self._name: kept.mode} if kept.setting is self._setting else {}
        draw_key = secrets.token_bytes(32)  # slices of time are this agent's own to draw
        guards = GuardRegistry(modes, keep=lambda _: self._keep(), draw_key=draw_key)
        guards.on_roll_back = _fell_back
        guards.add(sharing.guard)
        self._reports = GuardReports(guards, {self._name: kept.order} if kept.order else {})

    def follow(self, order: pb.PolicyOrder) -> None:
        """Carry out the master's order, once.

        Raises:
            InvalidRequest: no such mode.
        """
        if self._reports.follow(order):
            _log.info("mode set", policy=order.policy, mode=order.mode)
            self._keep()

    def connected(self) -> None:
        """The master on a new stream knows nothing."""
        self._reports.forget()

    def changed(self, now: float) -> list[pb.LearnedPolicy]:
        """What has changed since the last call. ``now``: wall-clock time, seconds."""
        return self._reports.changed(now)

    def _keep(self) -> None:
        held = {
            "setting": self._setting.value,
            "mode": self._guard.mode.value,
            "order": self._reports.orders.get(self._name, 0),
        }
        try:
            shim.write_json(self._path, held)
        except OSError as error:
            _log.warning(
                "cannot keep the mode of a learned policy: it holds until the agent ends; free "
                "some space, and set it again",
                policy=self._name, file=str(self._path), why=str(error),
            )  # fmt: skip


def _fell_back(status: GuardStatus) -> None:
    _log.warning(
        "a learned policy was worse than its heuristic and fell back to shadow mode",
        policy=status.policy, why=status.rolled_back_why,
        to_try_it_again=f"hrm policy set {status.policy} {GuardMode.CANARY_1.value}",
    )  # fmt: skip


def _read(path: Path, setting: GuardMode) -> _Kept:
    """What an earlier agent kept, if any did; of a damaged file nothing but that it is not to be
    trusted: shadow mode."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no regular file")
        held = json.loads(path.read_text())
        return _Kept(GuardMode(held["setting"]), GuardMode(held["mode"]), int(held["order"]))
    except FileNotFoundError:
        return _Kept(setting, setting, 0)
    except (OSError, ValueError, KeyError, TypeError) as error:
        safe = GuardMode.OFF if setting is GuardMode.OFF else GuardMode.SHADOW
        _log.warning(
            "the kept mode of a learned policy is unreadable, and it begins in its shadow",
            file=str(path), why=f"{type(error).__name__}: {error}",
        )  # fmt: skip
        return _Kept(setting, safe, 0)
