"""Pipelines that explore where they run, for tests of what users must not reach."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from hrm.pipelines import Pipeline

identity = Pipeline("identity")


@identity.subtask(attempts=1)
def about(value: Any) -> dict[str, Any]:
    print("hush")
    umask = os.umask(0o077)
    os.umask(umask)
    status = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {
        "pid": os.getpid(),
        "ids": [*os.getresuid(), *os.getresgid()],
        "groups": sorted(os.getgroups()),
        "umask": umask,
        "cwd": str(Path.cwd()),
        "environment": dict(os.environ),
        "status": {line[0].rstrip(":"): line[1] for line in status if len(line) == 2},
    }


staying = Pipeline("staying")


@staying.subtask(attempts=1, timeout_s=300)
def stay(value: Any) -> None:
    """Leave a secret, and a child in a session of its own."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path("secret").write_text("hush")
    Path("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


prying = Pipeline("prying")


@prying.subtask(attempts=1)
def pry(asked: dict[str, list[Any]]) -> list[str]:
    """What could be read, listed, written or killed."""
    could = []
    for name in asked["paths"]:
        path = Path(name)
        try:
            list(path.iterdir()) if path.is_dir() else path.read_bytes()
            could.append(f"read {name}")
        except OSError:
            pass
        try:
            target = path / "mine" if path.is_dir() else path
            target.open("ab").close()
            could.append(f"wrote {name}")
        except OSError:
            pass
    for pid in asked["pids"]:
        try:
            Path(f"/proc/{pid}/environ").read_bytes()
            could.append(f"read environ {pid}")
        except OSError:
            pass
        try:
            os.kill(pid, signal.SIGCONT)
            could.append(f"signalled {pid}")
        except OSError:
            pass
    return could
