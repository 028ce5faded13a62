"""Shares of a node's GPUs for programs on its machine: who holds one, and who waits.

The node's core for pipelines decides, by its policy and what is measured, which claims a GPU holds
at a time. A claim is the caller's until it releases it.
"""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import structlog

from hrm import clock
from hrm.errors import HrmError, LimitReached, Unavailable, Unsatisfiable
from hrm.pipelines.agent.share import SetAsideGpus
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.node import PipelineNode
from hrm.pipelines.policies import corun
from hrm.pipelines.policies.corun.subtask_estimates import Stdm
from hrm.pipelines.telemetry import Sampler

__all__ = ["GpuClaims"]

_PERIOD_S = 1.0
_log = structlog.get_logger("hrm.agent.pipelines")


class GpuClaims:
    """From ``start`` to ``close``."""

    def __init__(self, share: SetAsideGpus, policy: str) -> None:
        self.share = share
        capacity = share.capacity
        models = {gpu.model: gpu.memory_mib for gpu in capacity.gpus}
        estimates = Stdm(memory_mib=capacity.memory_mib, gpu_memory_mib=models)
        self.core = PipelineNode(
            capacity,
            corun.load_guarded(
                policy,
                rng=np.random.default_rng(),
                node=capacity.name,
                estimates=estimates,
                sampled_at_s=self._sampled_at_s,
            ),
            estimates,
        )
        self._sampler = Sampler([x.index for x in share.gpus.values() if not x.declared])
        self._claims: dict[str, asyncio.Future[int]] = {}
        self._broken = False
        self._sampling: asyncio.Task[None] | None = None

    def _sampled_at_s(self) -> float | None:
        sample = self.core.resources.sample
        return None if sample is None else sample.now

    async def start(self) -> None:
        self._sampling = asyncio.create_task(self._sample())

    async def close(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    async def _sample(self) -> None:
        while True:
            try:
                self._deliver(self._sampler.sample(clock.now()))
            except Exception:
                _log.exception("the machine cannot be sampled")
            await asyncio.sleep(_PERIOD_S)

    def _deliver(self, event: m.NodeEvent) -> None:
        if self._broken:
            return
        try:
            commands = self.core.handle(event)
        except Exception:
            name = type(event).__name__
            _log.critical("shares of GPUs failed; restart this agent", input=name, exc_info=True)
            self._broken = True
            for claim in self._claims.values():
                if not claim.done():
                    claim.set_exception(_unavailable())
            return
        for command in commands:
            match command:
                case m.GrantGpu():
                    self._complete(command.holder, command.number)
                case m.RefuseGpu():
                    refusal = Unsatisfiable if command.never else LimitReached
                    self._complete(command.holder, refusal(command.why))

    async def acquire(self, asked: m.GpuAsked) -> int:
        """Wait for a share of a GPU; returns its number. ``release`` it in any case.

        Raises:
            Unsatisfiable: no GPU of this node can ever hold the share.
            LimitReached: too many wait.
            Unavailable: shares of GPUs have failed on this node.
        """
        if self._broken:
            raise _unavailable()
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._claims[asked.holder] = granted
        self._deliver(asked)
        return await granted

    def _complete(self, holder: str, result: int | HrmError) -> None:
        """No call is waiting if the holder just disconnected; ``release`` follows."""
        claim = self._claims.get(holder)
        if claim is None or claim.done():
            return
        if isinstance(result, HrmError):
            claim.set_exception(result)
        else:
            claim.set_result(result)

    def release(self, holder: str) -> None:
        """The holder is done, or gone; does nothing if it neither holds a share nor waits."""
        claim = self._claims.pop(holder, None)
        if claim is not None:
            with contextlib.suppress(asyncio.InvalidStateError):
                claim.cancel()
            self._deliver(m.GpuReleased(now=clock.now(), holder=holder))


def _unavailable() -> Unavailable:
    return Unavailable("shares of GPUs have failed here; the agent's log shows why; restart it")
