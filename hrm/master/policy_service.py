"""PolicyService: what the learned policies of this master do, and how far they are trusted.

The mode that somebody sets is intent, so it outlives the master: it is kept in
``policy-modes.json`` in the state directory. Counters are observation and begin anew.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from hrm import rpc, wire
from hrm.core.pipeline.model import ClusterPolicy
from hrm.errors import HrmError, InvalidConfig, NotFound
from hrm.policies import cluster, models
from hrm.policies.cluster.hosted import HostedPolicy
from hrm.policies.host import Hosts, HostStatus, Mode, mode_of
from hrm.v1 import policy_pb2 as pb
from hrm.v1 import policy_pb2_grpc

__all__ = [
    "MODELS_DIR",
    "MODES_FILE",
    "PolicyService",
    "cluster_policy",
    "load_modes",
    "save_modes",
]

MODES_FILE = "policy-modes.json"
MODELS_DIR = "models"

log = structlog.get_logger("master.policies")


def load_modes(state_dir: Path) -> dict[str, Mode]:
    """The modes that were set in earlier lives, by policy.

    Raises:
        InvalidConfig: the file is damaged.
    """
    path = state_dir / MODES_FILE
    try:
        held = json.loads(path.read_text())
        return {str(name): Mode(mode) for name, mode in held.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidConfig(
            f"{path} is damaged ({error}); remove it: learned policies then begin in their shadow"
        ) from error


def save_modes(state_dir: Path, modes: dict[str, Mode]) -> None:
    """Keep ``modes`` for later lives, whole or not at all."""
    path = state_dir / MODES_FILE
    unfinished = path.with_name(f".{MODES_FILE}.{os.getpid()}")
    unfinished.write_text(json.dumps({name: mode.value for name, mode in modes.items()}) + "\n")
    unfinished.replace(path)


def cluster_policy(
    name: str, *, hosts: Hosts, state_dir: Path, heartbeat_s: float, seed: int
) -> ClusterPolicy:
    """The policy that places the pipeline tasks of a master; a learned one is known to ``hosts``.

    Raises:
        InvalidConfig: no policy is called ``name``, or its model is damaged.
        NotFound: it is a learned one and has no model.
    """
    policy = cluster.load(
        name,
        rng=np.random.default_rng(seed),
        state_dir=state_dir / MODELS_DIR,
        heartbeat_s=heartbeat_s,
    )
    if isinstance(policy, HostedPolicy):
        hosts.add(policy.host)
    return policy


class PolicyService(policy_pb2_grpc.PolicyServiceServicer):
    """Shows ``hosts`` and sets their modes."""

    def __init__(self, hosts: Hosts, state_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._hosts = hosts
        self._state_dir = state_dir
        self._now = now

    async def ShowPolicies(  # noqa: N802
        self, request: pb.ShowPoliciesRequest, context: Any
    ) -> pb.ShowPoliciesResponse:
        now = self._now()
        statuses = self._hosts.statuses(now)
        files = models.listed(state_dir=self._state_dir / MODELS_DIR)
        try:
            if request.policy:
                name = wire.to_name(request.policy, "policy")
                statuses = [status for status in statuses if status.policy == name]
                files = [file for file in files if file.kind == name]
                if not statuses and not files:
                    raise NotFound(
                        f"no learned policy {name!r} is in use, and it has no model; hrm policy "
                        f"show lists those that there are"
                    )
        except HrmError as error:
            await rpc.abort(context, error)
        return pb.ShowPoliciesResponse(
            policies=[_policy_of(status, now, records=request.records) for status in statuses],
            models=[pb.ModelFile(kind=f.kind, version=f.version, path=str(f.path)) for f in files],
        )

    async def SetPolicyMode(  # noqa: N802
        self, request: pb.SetPolicyModeRequest, context: Any
    ) -> pb.LearnedPolicy:
        try:
            policy = wire.to_name(request.policy, "policy")
            mode = mode_of(wire.to_text(request.mode, "mode"))
            self._hosts.set_mode(policy, mode)
            save_modes(self._state_dir, self._hosts.modes)
        except HrmError as error:
            await rpc.abort(context, error)
        log.info("mode set", policy=policy, mode=mode.value)
        now = self._now()
        (status,) = (each for each in self._hosts.statuses(now) if each.policy == policy)
        return _policy_of(status, now, records=False)


def _policy_of(status: HostStatus, now: float, *, records: bool) -> pb.LearnedPolicy:
    held = pb.LearnedPolicy(
        policy=status.policy,
        kind=status.kind,
        heuristic=status.heuristic,
        model=status.model,
        schema=status.schema,
        mode=status.mode.value,
        asked=status.asked,
        learned=status.learned,
        shadowed=status.shadowed,
        agreed=status.agreed,
        fallbacks=status.fallbacks,
        last=status.last,
    )
    for name in ("seconds_p50", "seconds_p99", "ratio_p95", "reference_p95"):
        value = getattr(status, name)
        if not math.isnan(value):
            setattr(held, name, value)
    if status.breaker_until is not None:
        held.breaker_s = max(0.0, status.breaker_until - now)
    if status.rolled_back_at is not None:
        held.rolled_back_at_s = status.rolled_back_at
    for record in status.records if records else ():
        held.records.add(
            at_s=record.now,
            key=record.key,
            heuristic=record.heuristic,
            learned=record.learned,
            same=record.same,
            reason=record.reason,
            seconds=record.seconds,
        )
    return held
