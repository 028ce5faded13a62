"""A real master and a real agent, each in a process of its own, to be attacked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hrm import rpc

START_LIMIT_S = 30.0
END_LIMIT_S = 20.0


@dataclass
class Daemon:
    """A running daemon. ``target``: host:port of its gRPC."""

    process: subprocess.Popen[bytes]
    log: Path
    token: str
    target: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path, eventually: Callable[..., Any]) -> Iterator[Start]:
    """``start("master", "--flag", …)``: a daemon of the command line; ``prefix`` goes before it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HRM_")}
    environment = {**kept, "HRM_HOME": str(tmp_path), "HRM_AGENT_CLASS_ARCHIVE": "false"}
    environment["HRM_AGENT_RUN_AS"] = "off"
    rpc.create_token(tmp_path / "token")
    daemons: list[Daemon] = []

    def start(kind: str, *flags: str, prefix: tuple[str, ...] = ()) -> Daemon:
        log = tmp_path / f"{kind}-{len(daemons)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "hrm.cli", kind, *flags],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, cwd=tmp_path,
            )  # fmt: skip
        daemons.append(Daemon(process, log, rpc.read_token(tmp_path / "token")))
        return daemons[-1]

    yield start
    for daemon in reversed(daemons):
        daemon.end()


@pytest.fixture
def master(start: Start, tmp_path: Path, eventually: Callable[..., Any]) -> Daemon:
    daemon = start("master", "--port", "0")
    address = tmp_path / "master" / "address"
    eventually(lambda: address.exists() and address.read_text(), START_LIMIT_S)
    daemon.target = address.read_text().strip()
    return daemon


@pytest.fixture
def agent(start: Start, master: Daemon, tmp_path: Path, eventually: Callable[..., Any]) -> Daemon:
    import json

    daemon = start("agent", "--master", master.target, "--name", "node-1", "--port", "0")
    ready = tmp_path / "agent" / "ready.json"
    eventually(lambda: ready.exists() or daemon.process.poll() is not None, START_LIMIT_S)
    assert ready.exists(), daemon.output()
    daemon.target = json.loads(ready.read_text())["endpoint"]
    return daemon
