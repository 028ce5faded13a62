"""An agent like any other, whose containers run ``sh -c $COMMAND`` in place of Spark, or sleep
briefly if there is no such variable (a driver, an executor of a generated application)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hrm.agent.daemon import run
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import ContainerSpec, Gpu
from hrm.spark.launch import Launch


def command_of(
    spec: ContainerSpec, work_dir: Path, stdout: str, stderr: str, gpus: Sequence[Gpu]
) -> Launch:
    environment = {"PATH": os.environ["PATH"], **dict(spec.launch.environment)}
    return Launch(
        argv=("sh", "-c", environment.get("COMMAND", "sleep 0.2")), environment=environment
    )


if __name__ == "__main__":
    settings = AgentSettings.model_validate_json(sys.argv[1])
    sys.exit(asyncio.run(run(settings, command_of)))
