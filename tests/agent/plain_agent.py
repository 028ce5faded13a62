"""An agent like any other, whose containers run ``sh -c $COMMAND`` in place of a Spark executor;
workers of pipelines are what they always are.

Started as a process of its own, so that tests can kill it like a real one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from hrm import text
from hrm.agent.daemon import run
from hrm.agent.workers import worker_launch
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import ContainerSpec, Gpu, NodeName
from hrm.spark.launch import Launch, gpu_environment
from tests.agent import fake_nvml


def command_of(
    spec: ContainerSpec, work_dir: Path, stdout: str, stderr: str, gpus: Sequence[Gpu]
) -> Launch:
    environment = {"PATH": os.environ["PATH"], **dict(spec.launch.environment)}
    environment |= gpu_environment(spec, gpus)
    environment |= {"HRM_CONTAINER_ID": spec.container_id, "SPARK_LOG_URL_STDOUT": stdout}
    return Launch(argv=("sh", "-c", environment["COMMAND"]), environment=environment)


def any_command_of(
    settings: AgentSettings,
    spec: ContainerSpec,
    work_dir: Path,
    stdout: str,
    stderr: str,
    gpus: Sequence[Gpu],
) -> Launch:
    if not spec.launch.worker:
        return command_of(spec, work_dir, stdout, stderr, gpus)
    node = NodeName(settings.name)
    return worker_launch(
        spec, settings=settings, work_dir=work_dir, node=node, gpus=gpus, platform=""
    )


def configure_logging() -> None:
    """Lines of JSON on stderr, whatever that refers to by then."""
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            text.log_processor,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


if __name__ == "__main__":
    configure_logging()
    if fake_nvml.VARIABLE in os.environ:
        fake_nvml.install(Path(os.environ[fake_nvml.VARIABLE]))
    if fake_nvml.LOSE_VARIABLE in os.environ:
        fake_nvml.lose_while(Path(os.environ[fake_nvml.LOSE_VARIABLE]))
    settings = AgentSettings.model_validate_json(sys.argv[1])
    sys.exit(asyncio.run(run(settings, partial(any_command_of, settings))))
