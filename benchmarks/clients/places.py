"""Where one check runs: a cluster, an environment, a directory; and Spark's servers there.

A server on HRM is a submitted driver whose address the master shows, as docs/clients.md has it; on
local mode it is a process of spark-submit on a free port. Clients get an address either way.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients.environments import Environment
from benchmarks.clients.systems import ClientsHrm, environment_of, settings
from benchmarks.clusters import Cluster, spark_home
from benchmarks.processes import BenchmarkError, free_port, start, tail, wait_until

__all__ = ["CONNECT", "LIMIT_S", "PROGRAMS", "THRIFT", "Place", "Server", "last_answer"]

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 900.0
_SERVER_LIMIT_S = 480.0
_KILL_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server of Spark: its class, the setting of its port, and the scheme of its address."""

    java_class: str
    scheme: str

    def arguments(self, port: int) -> tuple[list[str], list[str]]:
        """What stands before the file, and after it."""
        if self.scheme == "sc":
            return ["--conf", f"spark.connect.grpc.binding.port={port}"], []
        return [], ["--hiveconf", f"hive.server2.thrift.port={port}"]


CONNECT = Server("org.apache.spark.sql.connect.service.SparkConnectServer", "sc")
THRIFT = Server("org.apache.spark.sql.hive.thriftserver.HiveThriftServer2", "jdbc:hive2")


def last_answer(text: str) -> dict[str, Any]:
    """The JSON object that a program printed last.

    Raises:
        BenchmarkError: there is none.
    """
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found
    raise BenchmarkError("the client printed no answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One check on one system."""

    cluster: Cluster
    environment: Environment
    directory: Path

    @property
    def hrm(self) -> ClientsHrm | None:
        """The cluster, if it is HRM's."""
        return self.cluster if isinstance(self.cluster, ClientsHrm) else None

    def variables(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return environment_of(self.cluster, self.environment, extra)

    def run(
        self,
        command: Sequence[object],
        extra: Mapping[str, str] | None = None,
        *,
        statuses: Sequence[int] = (0,),
        limit_s: float = LIMIT_S,
    ) -> str:
        """Run a command of the client's environment; what it printed to stdout.

        Raises:
            BenchmarkError: it ended with another status, or not within ``limit_s``.
        """
        program, *rest = map(str, command)
        path = self.environment.bin / program
        words = [str(path) if path.exists() else program, *rest]
        number = len(list(self.directory.glob("*.out")))
        output, log = (self.directory / f"{number}-{path.stem}.{kind}" for kind in ("out", "log"))
        process = start(
            words, log=log, output=output, environment=self.variables(extra),
            directory=self.directory,
        )  # fmt: skip
        try:
            status = process.wait(limit_s)
        except BaseException:
            process.end()
            raise
        if status not in statuses:
            raise BenchmarkError(
                f"{' '.join(words[:3])} ended with status {status}:\n{tail(log, 40)}\n"
                f"{tail(output, 20)}"
            )
        return output.read_text(errors="replace")

    def program(self, name: str, *arguments: object) -> dict[str, Any]:
        """The answer of one of ``programs/``."""
        return last_answer(self.run(["python", PROGRAMS / name, *arguments]))

    @contextmanager
    def serving(self, server: Server) -> Iterator[tuple[str, int]]:
        """A server of Spark that accepts connections; its host and port."""
        before, after = server.arguments(port := free_port())
        options = ["--class", server.java_class, *before]
        for key, value in settings(self.cluster).items():
            options += ["--conf", f"{key}={value}"]
        words = [*options, "spark-internal", *after]
        if self.hrm:
            command = self.hrm.command("submit", "--master", self.hrm.master, *words)
        else:
            submit = str(spark_home() / "bin" / "spark-submit")
            command = [submit, "--master", self.cluster.master, *words]
        log = self.directory / "server.log"
        process = start(
            command, log=log, environment=self.cluster.environment(), directory=self.directory
        )
        try:
            host, number = "127.0.0.1", port

            def accepts() -> bool:
                if not process.running:
                    raise BenchmarkError(f"the server ended:\n{tail(log, 40)}")
                if self.hrm and self._address(server) != f"{server.scheme}://{host}:{number}":
                    return False
                with suppress(OSError), closing(socket.create_connection((host, number), 5)):
                    return True
                return False

            wait_until(accepts, _SERVER_LIMIT_S, "the server accepts connections", 1.0)
            yield host, number
        finally:
            self._end(process)

    def _address(self, server: Server) -> str:
        """The address that the master shows of the latest server of that kind."""
        hrm = self.hrm
        shown = [x["server_address"] for x in hrm.submissions()] if hrm else []
        return next((x for x in shown if x.startswith(f"{server.scheme}://")), "")

    def _end(self, process: Any) -> None:
        """End a server, as a user does; on HRM the command that waits for it ends with it."""
        if self.hrm:
            for each in self.hrm.submissions():
                if each["server_address"]:
                    self.hrm.ask_words("submission", "kill", each["submission_id"])
            with suppress(BenchmarkError):
                process.wait(_KILL_LIMIT_S)
        process.end()
