"""A DAG of one task, ``total``: Airflow's own operator submits ``total.py``.

The connection ``spark_default`` names the master and the deploy mode; the variables of the
benchmark name files, settings and the time limit.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

with DAG("clients", schedule=None, start_date=datetime(2026, 1, 1), catchup=False):
    SparkSubmitOperator(
        task_id="total",
        application=os.environ["CLIENTS_APPLICATION"],
        application_args=json.loads(os.environ["CLIENTS_ARGUMENTS"]),
        conf=json.loads(os.environ["CLIENTS_SETTINGS"]),
        execution_timeout=timedelta(seconds=float(os.environ["CLIENTS_LIMIT_S"])),
        retries=0,
        verbose=False,
    )
