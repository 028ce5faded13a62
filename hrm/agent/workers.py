"""A worker of pipelines as a container: what its node starts.

The command is ``hrm.pipelines.worker``. Its input is one file of the container, next to the token
of its application and, with TLS, the cluster's authority, as those of drivers: it gets neither the
agent's token nor the cluster's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hrm.agent.drivers.driver_process import TOKEN_FILE
from hrm.config import AgentSettings
from hrm.core.vocabulary.model import ContainerSpec, Gpu, NodeName
from hrm.errors import InvalidConfig, LaunchFailed
from hrm.spark.launch import Launch, gpu_environment
from hrm.tls import CA_FILE, ca_file, read_ca

__all__ = ["check_policy", "worker_launch"]

DOCUMENT_FILE = "worker.json"
_PLAIN = AgentSettings.model_fields["pipeline_policy"].default
_INHERITED = (
    *("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH"),
    *("PATH", "PYTHONPATH"),
)


def check_policy(settings: AgentSettings) -> None:
    """Before any worker would fail by it.

    Raises:
        InvalidConfig: ``pipeline_policy`` is none that there is.
    """
    if settings.pipeline_policy == _PLAIN:
        return
    from hrm.pipelines.policies.corun import parse  # numpy, which an agent does without

    try:
        parse(settings.pipeline_policy)
    except InvalidConfig as error:
        raise InvalidConfig(f"pipeline_policy: {error.message}") from error


def worker_launch(
    spec: ContainerSpec,
    *,
    settings: AgentSettings,
    work_dir: Path,
    node: NodeName,
    gpus: Sequence[Gpu],
    platform: str,
) -> Launch:
    """The command of the worker ``spec`` on this node, whose unit has ``gpus``.

    Raises:
        LaunchFailed: its document cannot be read.
        HrmError: the agent's authority cannot be read.
    """
    try:
        token = str(json.loads(spec.launch.worker)["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchFailed(f"{spec.container_id} is no readable worker: {error!r}") from error
    authority = read_ca(ca_file(settings.token_file, settings.tls_ca))
    here = work_dir.absolute()
    holds = bool(spec.resources.gpu_memory_mib)
    gpu = gpus[0] if holds and gpus else None
    document = {
        "container_id": spec.container_id,
        "node": node,
        "master": settings.master,
        "token_file": str(here / TOKEN_FILE),
        "tls_ca": str(here / CA_FILE) if authority else "",
        "allow_clear_text": settings.allow_clear_text,
        "vcores": spec.resources.vcores,
        "memory_mib": spec.resources.memory_mib,
        "gpu_memory_mib": spec.resources.gpu_memory_mib,
        "gpu_model": (gpu.name or "GPU") if gpu is not None else "",
        "gpu_device": gpu.index if gpu is not None and not gpu.declared else None,
        "policy": settings.pipeline_policy,
        "import_path": settings.pipeline_path,
        "platform": platform,
        "cpu_speed": settings.pipeline_cpu_speed,
        "gpu_speed": settings.pipeline_gpu_speed,
        "device_memory_risk": settings.device_memory_risk,
        "reconnect_delay_max_s": settings.reconnect_delay_max_s,
    }
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment.setdefault("LANG", "C.UTF-8")
    environment |= {"TMPDIR": str(work_dir / "tmp"), "HRM_CONTAINER_ID": spec.container_id}
    environment |= gpu_environment(spec, gpus)
    files = {DOCUMENT_FILE: json.dumps(document), TOKEN_FILE: token}
    if authority:
        files[CA_FILE] = authority.decode()
    argv = (sys.executable, "-P", "-m", "hrm.pipelines.worker", str(here / DOCUMENT_FILE))
    return Launch(argv=argv, environment=environment, files=files)
