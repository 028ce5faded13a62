"""The clients: what each needs, what it does, and in which order they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.clients import airflow, dbt
from benchmarks.clients.environments import Packages
from benchmarks.clients.places import CONNECT, THRIFT, Place

__all__ = ["CHECKS", "Check"]

_SPARK = "pyspark==4.3.0"
_AIRFLOW = Packages(
    name="airflow",
    wanted=("apache-airflow==3.3.2", "apache-airflow-providers-apache-spark==6.3.4", _SPARK),
)
# dbt-core 1.12 brings a part of itself from elsewhere while it is installed.
_DBT = Packages(name="dbt", wanted=("dbt-core==1.11.16", "dbt-spark[PyHive]==1.11.0", _SPARK))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row of the table. ``shows``: the package whose version it names.

    ``needed``: what HRM takes beyond ``hrm env`` and the master's address. ``quick``: part of
    ``--quick``.
    """

    name: str
    packages: Packages
    shows: str
    answer: Callable[[Place], dict[str, Any]]
    needed: str = ""
    quick: bool = False


def _program(name: str, place: Place) -> dict[str, Any]:
    return place.program(name)


def _connect(place: Place) -> dict[str, Any]:
    with place.serving(CONNECT) as (host, port):
        return place.program("connect.py", f"sc://{host}:{port}")


def _thrift(place: Place) -> dict[str, Any]:
    with place.serving(THRIFT) as (host, port):
        return place.program("hive_client.py", host, port)


_AIRFLOW_CHECK = partial(Check, packages=_AIRFLOW, shows="apache-airflow")

CHECKS: tuple[Check, ...] = (
    _AIRFLOW_CHECK(
        name="Airflow, client mode", answer=airflow.client_mode,
        needed="connection: host `hrm://HOST`, port", quick=True,
    ),
    _AIRFLOW_CHECK(
        name="Airflow, cluster mode", answer=airflow.cluster_mode,
        needed="`deploy-mode` of the connection",
    ),
    _AIRFLOW_CHECK(
        name="Airflow, a task that times out", answer=airflow.time_out,
        needed="`spark.hrm.submit.tied=20s`",
    ),
    _AIRFLOW_CHECK(
        name="Airflow, a retry after a lost worker", answer=airflow.retry,
        needed="`spark.hrm.submit.key`, templated",
    ),
    Check(
        name="Spark Connect", shows="pyspark-client", answer=_connect, quick=True,
        packages=Packages(name="connect", wanted=("pyspark-client==4.2.0",)),
        needed="`hrm submit` in place of `spark-submit`; the address of `hrm submission show`",
    ),
    Check(
        name="Thrift server, PyHive", shows="pyhive", answer=_thrift,
        packages=Packages(name="thrift", wanted=("PyHive[hive-pure-sasl]==0.7.0",)),
        needed="`hrm submit` in place of `spark-submit`; the address of `hrm submission show`",
    ),
    Check(
        name="Jupyter", shows="nbclient", answer=partial(_program, "notebook.py"), quick=True,
        packages=Packages(
            name="jupyter", wanted=("nbclient==0.11.0", "nbformat", "ipykernel", _SPARK)
        ),
    ),
    Check(name="dbt, session", shows="dbt-spark", answer=dbt.session, packages=_DBT),
    Check(
        name="dbt, Thrift server", shows="dbt-spark", answer=dbt.thrift, packages=_DBT,
        needed="`hrm submit` in place of `spark-submit`; the address of `hrm submission show`",
    ),
    Check(
        name="joblib-spark", shows="joblibspark", answer=partial(_program, "joblib_spark.py"),
        packages=Packages(  # joblibspark imports packaging, and does not require it
            name="joblib", wanted=("joblibspark==0.6.0", "packaging", "scikit-learn", _SPARK)
        ),
        needed="`PYSPARK_PYTHON` with its packages on nodes",
    ),
    Check(
        name="TorchDistributor", shows="torch", answer=partial(_program, "torch_distributor.py"),
        packages=Packages(  # Spark starts its processes by an Arrow function, which asks for pandas
            name="torch", wanted=("torch==2.13.0", "numpy", "pandas", "pyarrow", _SPARK)
        ),
        needed="`PYSPARK_PYTHON` with its packages on nodes",
    ),
    Check(
        name="XGBoost on Spark", shows="xgboost-cpu", answer=partial(_program, "xgboost_spark.py"),
        packages=Packages(
            name="xgboost",
            wanted=("xgboost-cpu==3.2.0", "scikit-learn", "pandas", "pyarrow", _SPARK),
        ),
        needed="`PYSPARK_PYTHON` with its packages on nodes",
    ),
    Check(
        name="Fugue, its engine suite", shows="fugue",
        answer=partial(_program, "fugue_engine.py"),
        packages=Packages(name="fugue", wanted=("fugue[spark]==0.9.7", "pytest", _SPARK)),
        needed="`PYSPARK_PYTHON` with its packages on nodes",
    ),
)  # fmt: skip
"""In the order in which they run."""
