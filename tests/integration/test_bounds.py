"""A real master and large requests of token holders: memory is returned, lists stay within a
message, and a terminal shows names without interpreting them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from hrm import rpc
from hrm.v1 import admin_pb2, admin_pb2_grpc, application_pb2, application_pb2_grpc
from tests.cli.test_hostile_names import on_a_terminal
from tests.hostile_text import HOSTILE, unseen

APPLICATIONS = 50
VALUE = "v" * 130_000
GROWTH_MAX = 32 << 20
TIMEOUT_S = 30.0
OUR_STYLES = re.compile(r"\x1b\[[0-9;]*m")
HRM = (sys.executable, "-m", "hrm.cli")


class Master:
    """A master process of the command line, and a channel to it."""

    def __init__(self, directory: Path, eventually: Callable[..., Any], *flags: str) -> None:
        self.directory = directory
        self.log = directory / "master.log"
        self.environment = {**os.environ, "HRM_HOME": str(directory)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*HRM, "master", "--port", "0", *flags],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        address = directory / "master" / "address"
        eventually(lambda: address.exists() and address.read_text().endswith("\n"), 30.0)
        self.environment["HRM_MASTER"] = address.read_text().strip()
        token = rpc.read_token(directory / "token")
        self.channel = rpc.sync_channel(self.environment["HRM_MASTER"], token)
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.applications: Any = application_pb2_grpc.ApplicationServiceStub(self.channel)

    def register(self, number: int, **fields: Any) -> str:
        request = application_pb2.RegisterApplicationRequest(
            submission_key=f"k{number}", **{"name": "app", "user": "u", **fields}
        )
        response = self.applications.Register(request, timeout=TIMEOUT_S)
        return str(response.application_id)

    def kill(self, application_id: str, reason: str = "") -> None:
        request = admin_pb2.KillApplicationRequest(application_id=application_id, reason=reason)
        self.admin.KillApplication(request, timeout=TIMEOUT_S)

    def rss(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def close(self) -> None:
        self.channel.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


@pytest.fixture
def master(tmp_path: Path, eventually: Callable[..., Any]) -> Iterator[Master]:
    started = Master(tmp_path, eventually)
    try:
        yield started
    finally:
        started.close()


def test_memory_comes_back_when_large_applications_end(
    master: Master, eventually: Callable[..., Any]
) -> None:
    environment = {f"V{number}": VALUE for number in range(8)}  # a call of almost 1 MiB

    def wave(first: int) -> None:
        launch = {"environment": environment}
        names = [master.register(first + n, launch=launch) for n in range(APPLICATIONS)]
        for name in names:
            master.kill(name)

    before = master.rss()
    wave(0)
    eventually(lambda: master.rss() < before + GROWTH_MAX, 20.0, "the memory of the first wave")
    for number in range(1, 4):
        wave(number * APPLICATIONS)
    growth = eventually(
        lambda: max(1, master.rss() - before) if master.rss() < before + GROWTH_MAX else 0, 20.0
    )
    print(f"RSS before: {before >> 20} MiB; growth after 200 of 1 MiB each: {growth >> 20} MiB")
    store = sum(x.stat().st_size for x in (master.directory / "master").glob("hrm.sqlite*"))
    assert store < 16 << 20, "no environment is in it"
    master.register(10_000, launch={"environment": {"A": "b"}})
    with pytest.raises(grpc.RpcError) as caught:
        master.register(10_001, launch={"environment": {**environment, "ONE": VALUE}})
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_list_of_many_long_names_is_whole_and_comes_soon(master: Master) -> None:
    for number in range(300):
        master.register(number, name="n" * 1_024, user="u" * 1_024, web_url="w" * 4_096)
    done = subprocess.run(
        [*HRM, "apps", "--limit", "300", "--output", "json"],
        env=master.environment, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.count(b'"application_id"') == 300


def test_a_terminal_shows_hostile_names_and_obeys_none(master: Master) -> None:
    with pytest.raises(grpc.RpcError, match="there is no queue"):
        master.register(1, queue=HOSTILE)
    name = master.register(1, name=HOSTILE, user=HOSTILE, driver_host=HOSTILE)
    master.kill(name, reason=HOSTILE)
    for command in (
        ("apps", "--all"), ("app", "show", name), ("app", "why", name), ("events",),
        ("app", "show", HOSTILE.replace("\0", "")), ("app", "kill", name, "--reason", "\x1b[2J"),
        ("status",), ("apps", "--all", "--output", "json"), ("apps", "--queue", "\x1b[2J"),
        ("queue", "show", "\x1b[2J\u202e"), ("queue", "create", "root.\x1b[2J"),
        ("node", "show", "\x1b[2J\u202e"),
    ):  # fmt: skip
        output = OUR_STYLES.sub("", on_a_terminal([*HRM, *command], master.environment))
        assert unseen(output) == [], command
        assert "Traceback" not in output, command
    listed = on_a_terminal([*HRM, "app", "show", name], master.environment)
    assert "\\x1b[2J" in "".join(listed.split())
    log = master.log.read_text()
    assert "application registered" in log
    assert unseen(log) == []
