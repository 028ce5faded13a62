"""An agent like any other, whose containers run ``sh -c $COMMAND`` in place of a Spark executor.

Started as a process of its own, so that tests can kill it as they would a real one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from hrm.agent.daemon import run
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import ContainerSpec, Gpu
from hrm.spark.launch import Launch, gpu_environment
from tests.agent import fake_nvml


def command_of(
    spec: ContainerSpec, work_dir: Path, stdout: str, stderr: str, gpu: Gpu | None
) -> Launch:
    environment = {"PATH": os.environ["PATH"], **dict(spec.launch.environment)}
    environment |= gpu_environment(spec, gpu)
    environment |= {"HRM_CONTAINER_ID": spec.container_id, "SPARK_LOG_URL_STDOUT": stdout}
    return Launch(argv=("sh", "-c", environment["COMMAND"]), environment=environment)


if __name__ == "__main__":
    if fake_nvml.VARIABLE in os.environ:
        fake_nvml.install(Path(os.environ[fake_nvml.VARIABLE]))
    settings = AgentSettings.model_validate_json(sys.argv[1])
    sys.exit(asyncio.run(run(settings, command_of)))
