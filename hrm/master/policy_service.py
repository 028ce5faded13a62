"""PolicyService: what the learned policies of this cluster do, and how far they are trusted.

A mode is intent, so it outlives the master, in ``policy-modes.json`` in the state directory, next
to ``policy-draw.key``, the secret of the hash that draws who decides: it is made once, so that what
a canary has begun stays on its side over a restart, and nobody who names a task chooses its side.
Counters are observation and restart from zero. Policies of nodes run in workers of pipelines and in
agents (``node_policies``): their modes are sent there, their counters are reported from there. What
is said of a single task or application is for its user, and for operators.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from hrm.config.master import MasterSettings
from hrm.core.vocabulary.history import PolicyRecord
from hrm.core.vocabulary.model import ContainerId, application_of
from hrm.durable import write_durably
from hrm.errors import InvalidConfig, NotFound
from hrm.identity.caller import is_own
from hrm.master.journal import Journal
from hrm.master.node_policies import NodePolicies
from hrm.master.owners import Owners
from hrm.pipelines.core.model import ClusterPolicy
from hrm.pipelines.policies import cluster
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy
from hrm.policies import model_files
from hrm.policies.guard import GuardMode, GuardRegistry, GuardStatus, mode_of
from hrm.v1 import policy_pb2 as pb
from hrm.v1 import policy_pb2_grpc
from hrm.wire import codec
from hrm.wire import policies as policy_wire

__all__ = [
    "DRAW_KEY_FILE",
    "MODELS_DIR",
    "MODES_FILE",
    "PolicyService",
    "cluster_policy",
    "load_draw_key",
    "load_modes",
    "report_roll_back",
    "save_modes",
]

MODES_FILE = "policy-modes.json"
DRAW_KEY_FILE = "policy-draw.key"
MODELS_DIR = "models"
_KEY_BYTES = 32
_HEURISTICS = ("placement_policy", "pipeline_policy", "pipeline_resize_policy")
"""Settings that name a policy in force."""

log = structlog.get_logger("master.policies")


def load_modes(state_dir: Path) -> dict[str, GuardMode]:
    """The modes that were set in earlier lives, by policy.

    Raises:
        InvalidConfig: the file is damaged.
    """
    path = state_dir / MODES_FILE
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise ValueError("it is no regular file")
        held = json.loads(path.read_text())
        return {str(name): GuardMode(mode) for name, mode in held.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidConfig(
            f"{path} is damaged ({error}); remove it: learned policies then begin in their shadow"
        ) from error


def load_draw_key(state_dir: Path) -> bytes:
    """The secret by which this cluster draws who decides; made where there is none. One that cannot
    be kept is logged, and serves until the master ends.

    Raises:
        InvalidConfig: the file is damaged.
    """
    path = state_dir / DRAW_KEY_FILE
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise ValueError("it is no regular file")
        with path.open("rb") as file:
            key = bytes.fromhex(file.read(4 * _KEY_BYTES).decode().strip())
        if len(key) != _KEY_BYTES:
            raise ValueError(f"it has {len(key)} bytes of {_KEY_BYTES}")
        return key
    except FileNotFoundError:
        key = secrets.token_bytes(_KEY_BYTES)
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"{path} is damaged ({error}); remove it: the master makes another one, and draws "
            f"again which tasks learned policies decide"
        ) from error
    try:
        write_durably(path, (key.hex() + "\n").encode(), mode=0o600)
    except OSError as error:
        log.warning(
            "cannot keep the key by which learned policies' shares are drawn: they are drawn again "
            "after a restart; free some space",
            path=str(path), why=str(error),
        )  # fmt: skip
    return key


def report_roll_back(journal: Journal, status: GuardStatus) -> None:
    """A policy of the master has fallen back to its shadow: log it, and record an event once what
    happens now is over, which may be an event of the core."""
    command = f"hrm policy set {status.policy} {GuardMode.CANARY_1.value}"
    log.warning(
        "a learned policy was worse than its heuristic and fell back to shadow mode",
        policy=status.policy, why=status.rolled_back_why, to_try_it_again=command,
    )  # fmt: skip
    why = f"{status.policy}: {status.rolled_back_why}; {command} tries it again"
    record = partial(journal.record_service, PolicyRecord.ROLLED_BACK, time.time(), why)
    asyncio.get_running_loop().call_soon(record)


def save_modes(state_dir: Path, modes: dict[str, GuardMode]) -> None:
    """Keep ``modes`` across restarts, atomically. A failed write is logged, and the modes are in
    force regardless."""
    path = state_dir / MODES_FILE
    held = {name: mode.value for name, mode in modes.items()}
    try:
        write_durably(path, (json.dumps(held) + "\n").encode())
    except OSError as error:
        log.warning(
            "cannot keep the modes of policies: they hold until the master ends; free some "
            "space, and set them again",
            path=str(path), why=str(error),
        )  # fmt: skip


def cluster_policy(
    name: str, *, guards: GuardRegistry, state_dir: Path, heartbeat_s: float, seed: int
) -> ClusterPolicy:
    """The policy that places the pipeline tasks of a master; a learned one is known to ``guards``.

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
    if isinstance(policy, GuardedClusterPolicy):
        guards.add(policy.guard)
    return policy


class PolicyService(policy_pb2_grpc.PolicyServiceServicer):
    """Shows ``guards`` and the policies of ``nodes``, and sets their modes. The first of ``nodes``
    that has a policy gets its mode: what workers report is their users' word, so these come last.
    """

    def __init__(
        self,
        guards: GuardRegistry,
        nodes: Sequence[NodePolicies],
        owners: Owners,
        settings: MasterSettings,
    ) -> None:
        self._guards = guards
        self._nodes = nodes
        self._owners = owners
        self._settings = settings
        self._state_dir = settings.state_dir

    async def ShowPolicies(  # noqa: N802
        self, request: pb.ShowPoliciesRequest, context: Any
    ) -> pb.ShowPoliciesResponse:
        now = time.time()
        statuses = self._guards.statuses(now)
        reports = [one for nodes in self._nodes for one in (*nodes.all(), *nodes.summaries())]
        files = model_files.listed(state_dir=self._state_dir / MODELS_DIR)
        if request.policy:
            name = codec.to_name(request.policy, "policy")
            statuses = [status for status in statuses if status.policy == name]
            reports = [report for report in reports if report.policy == name]
            if not reports:
                found = (nodes.summary(name) for nodes in self._nodes)
                reports = [one for one in found if one is not None]
            files = [file for file in files if file.kind == name]
            if not statuses and not reports and not files:
                raise NotFound(
                    f"{self._in_force(name)}no learned policy {name!r} is in use, and it has no "
                    f"model; hrm policy show lists those that there are"
                )
        own = [
            policy_wire.from_status(one, now, records=request.records, sees=is_own)
            for one in statuses
        ]
        return pb.ShowPoliciesResponse(
            policies=[*own, *(self._as_seen(one) for one in reports)],
            models=[policy_wire.from_file(file) for file in files],
        )

    def _in_force(self, name: str) -> str:
        """What else is called so: a policy in force, which has no mode."""
        found = [x for x in _HEURISTICS if getattr(self._settings, x) == name]
        if not found:
            return ""
        return f"{name} is in force as {' and '.join(found)}, and decides everything there: "

    def _as_seen(self, report: pb.LearnedPolicy) -> pb.LearnedPolicy:
        """The report of a worker or an agent; a worker's last fallback is for the user of its
        application, an agent's for operators."""
        if not report.node or self._owners.is_own(application_of(ContainerId(report.node))):
            return report
        seen = pb.LearnedPolicy()
        seen.CopyFrom(report)
        seen.ClearField("last")
        return seen

    async def SetPolicyMode(  # noqa: N802
        self, request: pb.SetPolicyModeRequest, context: Any
    ) -> pb.LearnedPolicy:
        policy = codec.to_name(request.policy, "policy")
        mode = mode_of(codec.to_text(request.mode, "mode"))
        shown = self._set_mode(policy, mode)
        log.info("mode set", policy=policy, mode=mode.value)
        return shown

    def _set_mode(self, policy: str, mode: GuardMode) -> pb.LearnedPolicy:
        now = time.time()
        own = [each.policy for each in self._guards.statuses(now)]
        if policy in own:
            self._guards.set_mode(policy, mode)
            save_modes(self._state_dir, self._guards.modes)
            (status,) = (each for each in self._guards.statuses(now) if each.policy == policy)
            return policy_wire.from_status(status, now)
        for nodes in self._nodes:
            one = next((report for report in nodes.all() if report.policy == policy), None)
            if one is not None:
                return policy_wire.report_of(one, mode, nodes.set_mode(policy, mode))
            if nodes.summary(policy) is not None:
                nodes.set_mode(policy, mode)
                summary = nodes.summary(policy)
                assert summary is not None, "HRM has it"
                return summary
        used = {*own, *(report.policy for nodes in self._nodes for report in nodes.all())}
        raise NotFound(
            f"no learned policy {policy!r} is in use; in use: {', '.join(sorted(used)) or 'none'}. "
            f"Which one places pipeline tasks, and which one their steps, is set in hrm.toml: "
            f"pipeline_policy of the master and of the agents; which one orders what waits for a "
            f"shared GPU: gpu_waiters of the agents; which one is tried out for containers: "
            f"placement_candidate of the master, and for the number of workers: "
            f"pipeline_resize_candidate"
        )
