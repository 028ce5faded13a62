"""A real master with hundreds of open streams: it ends when it is told to."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from benchmarks.emulated import Agents, run
from benchmarks.scheduling.daemon import Master, running

_AGENTS = 600
"""At about 400 gRPC's socket of completions was full, and the process hung after its last words."""
_LIMIT_S = 60.0


def test_a_master_with_many_agents_ends_on_sigterm(tmp_path: Path) -> None:
    master = Master(tmp_path, _AGENTS, schedulers=1)

    async def end() -> int:
        agents = Agents(master.target, master.token, _AGENTS, hold_s=None)
        try:
            await agents.start(master.heartbeat_interval_s, _LIMIT_S)
            master.process.send_signal(signal.SIGTERM)
            return int(psutil.wait_procs([master.process], timeout=_LIMIT_S)[0] != [])
        finally:
            await agents.close()

    with running(master):
        assert run(end()) == 1
