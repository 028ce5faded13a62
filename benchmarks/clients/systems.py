"""What clients run on: Spark's local mode, and a cluster of HRM on loopback.

Both give a client its settings in the variables that anybody would set: ``PYSPARK_SUBMIT_ARGS``
with the master for a Python program that makes a session by itself, and for HRM what ``hrm env``
prints. Neither changes the client. HRM's cluster also proves that a client was there: equal answers
alone would not show that.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.clients.environments import Environment
from benchmarks.clusters import Cluster, Hrm, Local, Shape
from benchmarks.processes import BenchmarkError
from hrm.config import hrm_home

__all__ = ["LOCAL", "SHAPE", "ClientsHrm", "environment_of", "local", "settings"]

LOCAL = "local[2]"
SHAPE = Shape(
    nodes=2, cores_per_node=2, memory_per_node_mib=6144, executors=2, executor_cores=1,
    executor_memory_mib=1024, executor_overhead_mib=1024,
)  # fmt: skip
_QUICK = "-XX:TieredStopAtLevel=1"
_ASK_LIMIT_S = 120.0


class ClientsHrm(Hrm):
    """HRM for clients: it keeps its plugin for later runs, and builds no archive of classes."""

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "HRM_AGENT_CLASS_ARCHIVE": "false",  # would be built while clients run
            "HRM_MASTER_DRIVER_SHARE": "0.5",  # a server and a driver at a time, on two nodes
            "HRM_MASTER": self.master.removeprefix("hrm://"),
        }

    def start(self) -> None:
        self.state_dir.mkdir(mode=0o700, parents=True)
        plugins = hrm_home() / "plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        (self.state_dir / "plugins").symlink_to(plugins)
        super().start()

    def ask_words(self, *arguments: str) -> str:
        """What an ``hrm`` command prints.

        Raises:
            BenchmarkError: it failed.
        """
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, check=False,
            timeout=_ASK_LIMIT_S, env=self.environment(), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchmarkError(f"hrm {' '.join(arguments)}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def ask(self, *arguments: str) -> dict[str, Any]:
        """What an ``hrm`` command prints as JSON."""
        document: dict[str, Any] = json.loads(self.ask_words(*arguments, "--output", "json"))
        return document

    def application_ids(self) -> list[str]:
        """Ids of all applications so far."""
        listed = self.ask("apps", "--all")["applications"]
        return [each["application_id"] for each in listed]

    def submissions(self) -> list[dict[str, Any]]:
        """All submitted drivers so far."""
        listed: list[dict[str, Any]] = self.ask("submissions", "--all")["submissions"]
        return listed

    @contextmanager
    def witnessed(self) -> Iterator[None]:
        """What is done in it must be an application here that had an executor.

        Raises:
            BenchmarkError: there was none.
        """
        before = set(self.application_ids())
        yield
        new = [x for x in self.application_ids() if x not in before]
        shown = [self.ask("app", "show", each) for each in new]
        if not any(c.get("started_at_s") for each in shown for c in each.get("containers", [])):
            raise BenchmarkError(f"HRM has no executor of it (applications: {new or 'none'})")


def local(directory: Path) -> Local:
    """Spark's local mode with as many slots as the clusters have executors' cores."""
    return Local(SHAPE, directory)


def settings(cluster: Cluster) -> dict[str, str]:
    """Spark's settings of a client's application: the same on both."""
    ours = cluster.submit_settings()
    dropped = ("spark.eventLog", "spark.scheduler", "spark.driver.host", "spark.driver.bindAddress")
    return {
        **{key: value for key, value in ours.items() if not key.startswith(dropped)},
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.executor.extraJavaOptions": _QUICK,
    }


def environment_of(
    cluster: Cluster, environment: Environment, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of a client that runs in ``environment`` and uses ``cluster``.

    Its JVM is that of all (``SPARK_HOME``): the same version as in its own environment.
    """
    arguments = ["--master", cluster.master]
    for key, value in settings(cluster).items():
        arguments += ["--conf", f"{key}={value}"]
    found = cluster.environment()
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        found.pop(name, None)
    return {
        **found,
        "PATH": os.pathsep.join([str(environment.bin), found.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": str(environment.python),
        "PYSPARK_SUBMIT_ARGS": " ".join([*arguments, "pyspark-shell"]),
        **(extra or {}),
    }
