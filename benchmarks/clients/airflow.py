"""Airflow's operator for Spark, by ``airflow tasks test``: the task as a scheduler would run it.

The checks of cluster mode have nothing to be compared with on ``local[2]``, which knows no such
mode: there the same task runs in client mode, where a driver dies with its task for free. That is
the behaviour that a submission tied to its client has to reach.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.clients.places import LIMIT_S, PROGRAMS, Place
from benchmarks.clients.systems import settings
from benchmarks.processes import BenchmarkError, start, tail, wait_until

__all__ = ["client_mode", "cluster_mode", "retry", "time_out"]

_TASK = ("airflow", "tasks", "test", "clients", "total", "2026-01-01")
_HOLD_S = 90.0
_TIE = "20s"
_GONE_S = 90.0


class _Airflow:
    """An Airflow whose database, DAG and connection are the benchmark's own."""

    def __init__(self, place: Place, deploy_mode: str) -> None:
        self.place = place
        self.answers = place.directory / "answers"
        self._home = place.directory.parent / "airflow"
        self._mode = deploy_mode if place.hrm else "client"
        self.answers.mkdir(parents=True)
        dags = self._home / "dags"
        if dags.exists():
            return
        dags.mkdir(parents=True)
        (dags / "clients.py").write_text((PROGRAMS / "airflow_dag.py").read_text())
        place.run(["airflow", "db", "migrate"], self.variables())
        place.run(["airflow", "dags", "reserialize"], self.variables())

    def variables(
        self, conf: Mapping[str, str] | None = None, *, hold_s: float = 0, limit_s: float = LIMIT_S
    ) -> dict[str, str]:
        """Airflow's variables and the DAG's."""
        scheme, _, address = self.place.cluster.master.partition("://")
        host, _, port = address.rpartition(":")
        connection: dict[str, Any] = {
            "conn_type": "spark",
            "host": f"{scheme}://{host}" if host else scheme,
            "extra": {"deploy-mode": self._mode},
            **({"port": int(port)} if host else {}),
        }
        application = [str(self.answers), *([str(hold_s)] if hold_s else [])]
        return {
            "AIRFLOW_HOME": str(self._home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
            "CLIENTS_APPLICATION": str(PROGRAMS / "total.py"),
            "CLIENTS_ARGUMENTS": json.dumps(application),
            "CLIENTS_SETTINGS": json.dumps({**settings(self.place.cluster), **(conf or {})}),
            "CLIENTS_LIMIT_S": str(limit_s),
        }

    def drivers(self) -> list[int]:
        """Process ids of the drivers so far."""
        return [int(path.suffix[1:]) for path in self.answers.glob("driver.*")]

    def answer(self) -> dict[str, Any]:
        """What the application wrote.

        Raises:
            BenchmarkError: it did not come so far.
        """
        path = self.answers / "answer.json"
        if not path.exists():
            logs = sorted(self.place.directory.glob("*.out"))
            raise BenchmarkError(f"the application wrote no answer:\n{tail(logs[-1], 40)}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def client_mode(place: Place) -> dict[str, Any]:
    """The driver is a child of the task."""
    airflow = _Airflow(place, "client")
    place.run(_TASK, airflow.variables())
    return airflow.answer()


def cluster_mode(place: Place) -> dict[str, Any]:
    """The driver is on a node, and the task waits for its end."""
    airflow = _Airflow(place, "cluster")
    place.run(_TASK, airflow.variables())
    return airflow.answer()


def time_out(place: Place) -> dict[str, Any]:
    """A task that runs into its ``execution_timeout`` fails and leaves no driver.

    Airflow kills its ``spark-submit`` with SIGKILL, so it is the lease that ends the driver.
    """
    airflow = _Airflow(place, "cluster")
    tied = {"spark.hrm.submit.tied": _TIE} if place.hrm else {}
    process = _task(airflow, airflow.variables(tied, hold_s=10 * _HOLD_S, limit_s=_HOLD_S))
    failed = process.wait(LIMIT_S) != 0 or "AirflowTaskTimeout" in process.log.read_text()
    began = airflow.drivers()
    if not began:
        raise BenchmarkError(f"no driver in {_HOLD_S:.0f} s:\n{tail(process.log, 40)}")
    with contextlib.suppress(BenchmarkError):
        wait_until(lambda: not any(map(_alive, began)), _GONE_S, "the driver is gone", 0.5)
    return {
        "task failed": failed,
        "drivers left": sum(map(_alive, airflow.drivers())),
        "answered": (airflow.answers / "answer.json").exists(),
    }


def _alive(process_id: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    return False


def retry(place: Place) -> dict[str, Any]:
    """A task whose worker is killed hard and that is run again: never two drivers at once.

    The first driver is not tied, so it lives on for a while; the key makes the second one wait.
    """
    airflow = _Airflow(place, "cluster")
    key = "{{ ti.dag_id }}.{{ ti.task_id }}.{{ ds }}"
    conf = {"spark.hrm.submit.key": key} if place.hrm else {}
    first = _task(airflow, airflow.variables(conf, hold_s=_HOLD_S))
    try:
        wait_until(lambda: bool(airflow.drivers()), LIMIT_S, "the first driver begins", 0.5)
    finally:
        first.process.send_signal(signal.SIGKILL)
        first.end()
    place.run(_TASK, airflow.variables(conf))
    return airflow.answer()


def _task(airflow: _Airflow, variables: Mapping[str, str]) -> Any:
    place = airflow.place
    log: Path = place.directory / "task.log"
    words = [str(place.environment.bin / _TASK[0]), *_TASK[1:]]
    return start(words, log=log, environment=place.variables(variables), directory=place.directory)
