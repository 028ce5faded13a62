"""CUDA MPS: one control daemon for each GPU that containers share.

With MPS, processes that share a GPU run concurrently, and the driver limits each container to the
share that it was granted:

    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT    device memory, beyond which its allocations fail
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE   of the GPU's processors, in proportion to that memory

Its cost: the containers on one GPU share one server, and a fatal fault of one ends the work of
all; and a server serves one user at a time, so that containers of two users wait for each other.

``auto`` starts it where the driver's ``nvidia-cuda-mps-control`` responds; otherwise a remark on
the node says so, and device memory is only watched (``hrm.agent.gpu.device_memory``). A daemon
outlives a crash of its agent, and the next agent on the directory takes it over.

Source: NVIDIA, Multi-Process Service, appendix "Tools and Interface Reference".
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog

from hrm.core.vocabulary.model import Gpu

__all__ = ["Mps"]

_COMMAND = "nvidia-cuda-mps-control"
_LIMIT_S = 20.0
_OUTPUT_MAX = 200
_PATH_MAX = 80
"""Bytes of a pipe directory: the daemon puts sockets there, whose paths may have 107."""
_log = structlog.get_logger("hrm.agent")


class Mps:
    """The control daemons of one agent. ``start`` and ``stop`` block for seconds."""

    def __init__(self, wanted: str, work_dir: Path, gpus: Iterable[Gpu]) -> None:
        """``wanted``: auto or off. Declared GPUs have no driver, and are left out."""
        gpus = tuple(gpus)
        self._dir = work_dir.absolute() / "mps"
        self._gpus = tuple(gpu for gpu in gpus if not gpu.declared)
        self._running: dict[int, Gpu] = {}
        self._why_not = ""
        if wanted == "off":
            self._why_not = "mps = off"
        elif gpus and not self._gpus:
            self._why_not = "the GPUs are declared, and they have no device"
        elif shutil.which(_COMMAND) is None:
            self._why_not = f"the driver here comes without {_COMMAND}"
        self._shown = bool(gpus)

    @property
    def remark(self) -> str:
        """The remark for operators of the node; empty: it has no GPU."""
        if not self._shown:
            return ""
        if self._running:
            numbers = ", ".join(map(str, self._running))
            partly = f"; not on the others: {self._why_not}" if self._why_not else ""
            return f"MPS: on GPU {numbers}; a share of device memory is enforced{partly}"
        return f"MPS: off ({self._why_not}): containers of one GPU take turns"

    def start(self) -> None:
        """Start, or take over, a daemon for each GPU; those that do not respond are left out."""
        if self._why_not:
            return
        for gpu in self._gpus:
            problem = self._start_one(gpu)
            if problem:
                self._why_not = problem
                _log.warning("no MPS", gpu=gpu.index, why=problem)
            else:
                self._running[gpu.index] = gpu

    def _start_one(self, gpu: Gpu) -> str:
        """Returns why it does not run; empty: it does."""
        pipes = self._pipes(gpu)
        if len(str(pipes).encode()) > _PATH_MAX:
            return f"the path {pipes} is too long for its sockets; choose a shorter --work-dir"
        try:
            for directory in (pipes, self._logs(gpu)):
                directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            if not self._ask(gpu, "get_server_list"):
                return ""  # started by an earlier agent
            refused = self._run(gpu, "-d")
            return refused or self._ask(gpu, "get_server_list")
        except OSError as error:
            return str(error)

    def stop(self) -> None:
        """End the daemons; to be called when no container is left."""
        for gpu in self._running.values():
            problem = self._ask(gpu, "quit")
            if problem:
                _log.warning("cannot end MPS", gpu=gpu.index, why=problem)
        self._running.clear()

    def environment(self, gpus: Sequence[Gpu], gpu_memory_mib: int) -> dict[str, str]:
        """The environment of a container with this share of ``gpus``. One that uses several has
        none: a program reaches one daemon, and each GPU has its own."""
        if len(gpus) != 1:
            return {}
        (gpu,) = gpus
        if gpu.index not in self._running or gpu_memory_mib >= gpu.memory_mib:
            return {}
        percent = max(1, round(100 * gpu_memory_mib / gpu.memory_mib))
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipes(gpu)),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={gpu_memory_mib}M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent),
        }

    def _pipes(self, gpu: Gpu) -> Path:
        return self._dir / f"gpu{gpu.index}"

    def _logs(self, gpu: Gpu) -> Path:
        return self._dir / f"gpu{gpu.index}-log"

    def _ask(self, gpu: Gpu, command: str) -> str:
        """Send a command to the daemon of a GPU; returns why it failed, empty: it succeeded."""
        return self._run(gpu, stdin_text=f"{command}\n")

    def _run(self, gpu: Gpu, *arguments: str, stdin_text: str = "") -> str:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "CUDA_VISIBLE_DEVICES": gpu.uuid or str(gpu.index),
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipes(gpu)),
            "CUDA_MPS_LOG_DIRECTORY": str(self._logs(gpu)),
        }
        try:
            # Not a pipe, which a daemon may keep open: reading it would not end.
            with tempfile.TemporaryFile() as output_file:
                done = subprocess.run(
                    [_COMMAND, *arguments],
                    input=stdin_text.encode(),
                    env=environment,
                    stdout=output_file,
                    stderr=subprocess.STDOUT,
                    timeout=_LIMIT_S,
                    check=False,
                )
                output_file.seek(0)
                output = output_file.read(_OUTPUT_MAX).decode(errors="replace").strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{_COMMAND}: {error}"
        return "" if done.returncode == 0 else f"{_COMMAND}: {output or done.returncode}"
