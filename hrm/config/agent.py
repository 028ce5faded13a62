"""Settings of an agent: what its node offers, how it isolates and starts containers, their logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import NoDecode, SettingsConfigDict

from hrm.address import DEFAULT_HOST, DEFAULT_PORT
from hrm.config.sources import (
    ListenHost,
    MasterAddress,
    ReconnectDelay,
    ServerSettings,
    hrm_home,
    label,
)
from hrm.core.vocabulary.bounds import (
    BOUNDS,
    DEVICE_MEMORY_RISK,
    PREEMPTION_GRACE_S,
    YIELD_GRACE_S,
    YIELD_GRACE_S_MAX,
    AutoBindingRules,
)
from hrm.core.vocabulary.node_requirement import LABEL_PATTERN
from hrm.core.vocabulary.partitioning import Partitioning

__all__ = ["ROOT_LIKE_GROUPS", "AgentSettings", "DeclaredGpu"]

NodeLabel = Annotated[str, StringConstraints(pattern=LABEL_PATTERN, max_length=253)]

_BINDING, _RULES = Partitioning(), AutoBindingRules()

ROOT_LIKE_GROUPS = (
    *("root", "sudo", "wheel", "admin"),  # may become root
    *("docker", "lxd", "incus-admin", "incus", "libvirt", "microk8s"),  # start what is root
    *("disk", "kmem"),  # read and write the disks below the file systems, and the memory
    *("shadow", "ssl-cert", "ssh_keys"),  # read hashes of passwords and keys of the machine
    *("adm", "systemd-journal"),  # read its logs, and the secrets in them
    "staff",  # writes to /usr/local, which root's PATH begins with
)
"""Groups by which a member can rule the node."""


class DeclaredGpu(BaseModel):
    """A GPU that a setting claims the machine to have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_mib: int = Field(ge=1, le=1 << 30)
    numa: int = Field(default=-1, ge=-1, le=1023)
    name: str = Field(default="", max_length=100)
    device: Path | None = None
    """A character device that stands for it: closed to containers that do not hold the GPU."""


class AgentSettings(ServerSettings):
    """``hrm agent``."""

    model_config = SettingsConfigDict(env_prefix="HRM_AGENT_", extra="forbid")
    table: ClassVar[str] = "agent"

    master: MasterAddress = f"{DEFAULT_HOST}:{DEFAULT_PORT}"
    name: str = Field(default="", description="name of this node; empty: the host's name")
    host: ListenHost = Field(
        default=DEFAULT_HOST, description="address that executors bind and others reach"
    )
    port: int = Field(default=0, ge=0, le=65535, description="port for logs (gRPC); 0: any free")
    log_port: int = Field(
        default=0, ge=0, le=65535, description="port of the log pages; 0: any free"
    )
    work_dir: Path = Field(
        default_factory=lambda: hrm_home() / "agent",
        description="containers' work directories and logs",
    )
    work_dirs: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        max_length=256,
        description="existing directories, one a disk, with ',' between, for the scratch space of "
        "containers (Spark's blocks and shuffle files); empty: in work_dir",
    )

    cores: int = Field(
        default=0, ge=0, le=4096, description="vcores offered; 0: all of the machine"
    )
    memory_mib: int = Field(
        default=0,
        ge=0,
        le=1 << 30,
        description="memory offered; 0: all but 1 GiB or a tenth",
    )
    run_limit: int = Field(
        default=0, ge=0, description="containers that may run at once; 0: one a vcore"
    )
    binding_mode: Literal["shared", "partial", "even"] = Field(
        default="shared",
        description="how cores are bound to GPUs: one pool, some for each GPU, or all divided",
    )
    gpu_bound_cores: int = Field(
        default=_BINDING.bound_cores,
        ge=1,
        le=4096,
        description="cores of each GPU where the binding is partial",
    )
    cpu_reserve_cores: int = Field(
        default=_BINDING.reserve_cores,
        ge=0,
        le=4096,
        description="cores kept without a GPU where it is partial",
    )
    gpu_host_memory_mib: int = Field(
        default=_BINDING.gpu_host_memory_mib,
        ge=0,
        description="host memory per GPU where cores are bound; 0: in proportion to the cores",
    )
    gpu_limit: int | None = Field(
        default=_BINDING.gpu_limit,
        ge=0,
        le=1024,
        description="how many of its GPUs to offer; empty: all",
    )
    gpus_per_unit: int = Field(
        default=_BINDING.gpus_per_unit,
        ge=1,
        le=1024,
        description="how many GPUs, near each other, go to one resource unit: as many as an "
        "executor there uses (spark.executor.resource.gpu.amount)",
    )
    auto_binding: bool = Field(
        default=True,
        description="where the node has GPUs, change a partial binding with the load: cores that "
        "GPU jobs lack are bound, those that they leave idle are given back",
    )
    auto_binding_window: int = Field(
        default=_RULES.window,
        ge=2,
        le=3600,
        description="measurements in a row, one each usage_interval_s, that such a change needs",
    )
    auto_binding_busy_percent: float = Field(
        default=_RULES.busy_percent,
        gt=0,
        le=100,
        description="use of a GPU's cores above which it gets one more",
    )
    auto_binding_idle_percent: float = Field(
        default=_RULES.idle_percent,
        ge=0,
        lt=100,
        description="use of what would be left of a GPU's cores below which it loses one that "
        "others wait for; less than auto_binding_busy_percent",
    )
    auto_binding_cores_min: int = Field(
        default=_RULES.cores_min,
        ge=1,
        le=4096,
        description="cores that stay bound to each GPU: those of the largest executor to come",
    )
    auto_binding_pause_s: float = Field(
        default=_RULES.pause_s,
        gt=0,
        le=86_400,
        description="least time between two changes",
    )
    gpus: Annotated[tuple[DeclaredGpu, ...], NoDecode] = Field(
        default=(),
        max_length=1024,
        description='declared GPUs for tests, as `[{"memory_mib": 16384, "numa": 0}]`; empty: '
        "the real ones",
    )
    platform: str = Field(
        default="",
        max_length=64,
        description="the group of like nodes that this one belongs to; empty: the model of its "
        "processor, and of its GPUs",
    )
    labels: Annotated[tuple[NodeLabel, ...], NoDecode] = Field(
        default=(),
        max_length=100,
        description="what applications may require of nodes (spark.hrm.node.label): names and "
        "name=value, as `zone=a,ssd`",
    )
    isolation: Literal["auto", "cgroup2", "cgroup1", "none"] = Field(
        default="auto", description="what enforces limits; auto: the best that the machine offers"
    )
    cpu_limit: Literal["shares", "quota"] = Field(
        default="shares", description="shares: limited when others use the cores; quota: always"
    )
    shuffle_service: bool = Field(
        default=False,
        description="run Spark's external shuffle service on this host, for applications that set "
        "spark.shuffle.service.enabled; one agent of a host can",
    )
    shuffle_service_port: int = Field(
        default=7337,
        ge=1,
        le=65535,
        description="its port, the same on all nodes: spark.shuffle.service.port",
    )
    shuffle_service_memory_mib: int = Field(
        default=1024, ge=128, le=1 << 20, description="its heap, on top of what the node offers"
    )
    run_as: Literal["off", "submitter"] = Field(
        default="submitter",
        description="submitter: containers run as the user who submitted, where the agent is "
        "root; off: as the agent (`hrm up` sets it, because its cluster is one user's)",
    )
    run_as_uid_min: int = Field(
        default=1000, ge=1, description="least uid that containers run with; lower ones are refused"
    )
    run_as_uid_max: int = Field(
        default=60_000,
        ge=1,
        le=2**32 - 2,
        description="highest uid that containers run with, UID_MAX of login.defs; raise it for "
        "users of a directory (LDAP, AD); 61184 to 65519 (systemd) and 65534 (nobody) stay refused",
    )
    run_as_banned: str = Field(
        default="root",
        description="users whose containers are refused, with ',' between; root and nobody always",
    )
    run_as_banned_groups: str = Field(
        default=",".join(ROOT_LIKE_GROUPS),
        description="groups whose members are refused, with ',' between: those that make root or "
        "open what is root's; names that the node does not have are ignored",
    )
    run_as_groups: str = Field(
        default="all",
        min_length=1,
        description="which of the user's groups on the node a container has, besides the main one: "
        "all (shared directories, video and render of GPUs), none, or names with ',' between",
    )
    run_as_fallback: str = Field(
        default="",
        description="the user for submitters who do not exist on the node; empty: they are refused",
    )
    disk_limit_mib: int = Field(
        default=0,
        ge=0,
        description="disk that a container may use in its work directory, logs included; one over "
        "it is ended; 0: all that the node has for containers",
    )
    disk_node_limit_mib: int = Field(
        default=0,
        ge=0,
        description="disk that all running containers of the node may use together; beyond it, the "
        "one that uses most is ended; 0: all but disk_free_min_mib",
    )
    disk_free_min_mib: int = Field(
        default=2048,
        ge=0,
        description="what must stay free on the file system of the work directory, at most a "
        "quarter of it: with less, no container starts, and the one that uses most is ended; "
        "0: nothing",
    )
    disk_interval_s: float = Field(
        default=30.0, gt=0, description="between two measurements of the disk that containers use"
    )
    mps: Literal["auto", "off"] = Field(
        default="auto",
        description="containers that share a GPU do so through CUDA MPS, which holds them to their "
        "share; auto: where NVIDIA's driver offers it",
    )
    gpu_memory_watch: bool = Field(
        default=True,
        description="end containers whose processes use more device memory than they hold",
    )
    gpu_waiters: str = Field(
        default="queue",
        description="in which order batch starts that waits for a GPU which several containers "
        "share: queue (as it came), dqngpu (what complements what runs, by the recorded use of "
        "such containers), dqngpu:NAME (by another heuristic), or dqngpu:learned",
    )
    gpu_waiters_model: Path | None = Field(
        default=None, description="the model of dqngpu:learned; python -m hrm.learn.dqngpu makes it"
    )
    gpu_waiters_mode: Literal["off", "shadow", "canary-1", "canary-10", "canary-50", "on"] = Field(
        default="shadow",
        description="how far it is trusted until hrm policy set says otherwise: in shadow mode "
        "dqngpu decides next to it",
    )
    spark_home: Path | None = Field(
        default=None, description="Spark of the executors; empty: pyspark's"
    )
    spark_homes: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        max_length=20,
        description="directories of more Sparks, one a version, for applications whose drivers "
        "run these; in a text separated by commas",
    )
    java_home: Path | None = Field(
        default=None, description="Java of the executors; empty: $JAVA_HOME, else java on the PATH"
    )
    spark_conf_dir: Path | None = Field(
        default=None,
        description="directory of Spark's settings for executors and drivers on this node, such as "
        "hive-site.xml, log4j2.properties, metrics.properties; empty: $SPARK_CONF_DIR, unless that "
        "is HRM's own, else conf/ of spark_home",
    )
    hadoop_conf_dir: Path | None = Field(
        default=None,
        description="directory of Hadoop's settings (core-site.xml, hdfs-site.xml) for them; "
        "empty: $HADOOP_CONF_DIR",
    )
    yarn_conf_dir: Path | None = Field(
        default=None,
        description="another one, which follows on their class path; empty: $YARN_CONF_DIR",
    )
    dist_classpath: str = Field(
        default="",
        description="entries at the end of their class path, as `hadoop classpath` prints them for "
        "a Spark that comes without Hadoop; empty: $SPARK_DIST_CLASSPATH",
    )
    class_archive: bool = Field(
        default=True,
        description="make an archive of Spark's classes in the background, once for a Spark and a "
        "Java, from which executors and drivers start faster",
    )
    archive_dir: Path = Field(
        default_factory=lambda: hrm_home() / "archives",
        description="where it is kept; agents of a machine should share it",
    )
    archive_limit_s: float = Field(
        default=600.0, gt=0, le=86_400, description="longest time that building it may take"
    )
    archive_attempts: int = Field(
        default=3, ge=1, le=100, description="failed attempts after which it is not retried"
    )
    warm_executors: int = Field(
        default=0,
        ge=0,
        le=2,
        description="started JVMs kept ready for the next executors, for each heap size in use "
        "(of which warm_kinds_max count); the node offers 768 MiB less for each that may be",
    )
    warm_kinds_max: int = Field(
        default=2,
        ge=1,
        le=4,
        description="kinds of JVMs (heap sizes, or sets of Java options) that are kept ready at "
        "most; a new one replaces the least recently used one",
    )
    warm_delay_s: float = Field(
        default=5.0,
        ge=0,
        le=60,
        description="a warm JVM is made when no executor was requested in this time and a core was "
        "idle, after 60 s in any case, at a low priority; 0: at once, at the priority of the agent",
    )

    pipeline_policy: str = Field(
        default="mct",
        min_length=1,
        description="what assigns cores and GPUs to subtasks of pipelines: random, mct, min-min, "
        "pats, iawp (iawp:guarded, iawp:SCORE, iawp:SCORE:guarded, iawp:guarded:gain=0.1) or "
        "dqngpu (dqngpu:NAME, what chooses who shares a GPU: look-ahead, "
        "fastest-together, ljf-packed, "
        "sjf-packed, fifo-packed, best-fit-memory, tetris, tetris-srtf, or sjf, one at a time); "
        "learned ones begin in shadow mode, with mct deciding",
    )
    pipeline_path: str = Field(
        default="",
        description="directories, with ':' between, that pipelines are imported from",
    )
    pipeline_cpu_speed: float = Field(
        default=1.0, ge=1e-3, le=1e3, description="of a core, relative to the reference platform"
    )
    pipeline_gpu_speed: float = Field(
        default=1.0, ge=1e-3, le=1e3, description="of a GPU, relative to the reference platform"
    )
    device_memory_risk: float = Field(
        default=DEVICE_MEMORY_RISK,
        ge=0.0,
        le=0.5,
        description="the most that the probability may be that steps of pipelines that share a GPU "
        "need more device memory than there is, by what their runs have reached; 0: by the "
        "greatest that each has reached",
    )

    reconnect_delay_max_s: ReconnectDelay = 2.0
    usage_interval_s: float = Field(
        default=1.0, gt=0, le=60, description="how often containers are measured"
    )
    stop_grace_s: float = Field(
        default=BOUNDS.stop_grace_s,
        ge=0,
        description="between SIGTERM and SIGKILL of containers when the agent itself ends them",
    )
    keep_containers: bool = Field(
        default=False,
        description="SIGTERM ends the agent alone and leaves its containers to the next agent on "
        "this work directory, for restarts and upgrades; SIGINT ends them in any case",
    )
    preemption: bool = Field(
        default=True,
        description="batch executors are preempted for stream executors that wait; off: a stream's "
        "first executors start here only where there is capacity, and wait in no queue",
    )
    preemption_grace_s: float = Field(
        default=PREEMPTION_GRACE_S,
        ge=0,
        le=3600,
        description="time a preempted executor has to finish tasks and move its blocks",
    )
    yield_grace_s: float = Field(
        default=YIELD_GRACE_S,
        ge=0,
        le=YIELD_GRACE_S_MAX,
        description="time a container that yields has to end its step, or to give it back, once "
        "anything else waits for what it holds",
    )
    log_bytes_max: int = Field(
        default=64 * 1024 * 1024, ge=4096, description="size at which a log rotates"
    )
    log_files_max: int = Field(
        default=5, ge=1, le=100, description="rotated files kept besides the newest"
    )
    work_keep_s: float = Field(
        default=86_400.0, ge=0, description="time an ended container's logs are kept"
    )
    log_link_s: float = Field(
        default=4 * 3600.0,
        ge=1,
        le=7 * 86_400.0,
        description="time that a link of `hrm app logs --link` opens a log to a browser",
    )
    log_links_keep_s: float = Field(
        default=86_400.0,
        ge=0,
        le=365 * 86_400.0,
        description="time after a container's end that the links to its logs in Spark's UI still "
        "open them, if they are kept so long (work_keep_s)",
    )
    logs_mib_max: int = Field(
        default=10_240,
        ge=0,
        description="logs kept on the node in all; the oldest of ended containers go first",
    )
    files_mib_max: int = Field(
        default=10_240,
        ge=0,
        description="files of applications kept on the node for the next containers; those used "
        "longest ago go first, and none that a running driver needs",
    )
    unpacked_mib_max: int = Field(
        default=20_480,
        ge=1,
        description="what the archives of one container may unpack to, before its start",
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _gpus_may_be_json(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value else ()
        except ValueError as error:
            raise ValueError(f"no JSON list of objects: {error}") from error

    @field_validator("work_dirs", mode="before")
    @classmethod
    def _work_dirs_may_be_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            named = filter(None, (each.strip() for each in value.split(",")))
            return tuple(Path(each).expanduser() for each in named)
        return value

    @field_validator("work_dirs")
    @classmethod
    def _work_dirs_can_be_listed(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in value:
            if not path.is_absolute() or any(mark in str(path) for mark in ",:"):
                raise ValueError(f"{path} must be an absolute path without ',' and ':'")
        if len({path.resolve() for path in value}) < len(value):
            raise ValueError("a directory is named twice, perhaps by way of a link")
        return value

    @field_validator("labels", "spark_homes", mode="before")
    @classmethod
    def _may_be_text(cls, value: Any) -> Any:
        """Of a flag or a variable."""
        if not isinstance(value, str):
            return value
        return tuple(x.strip() for x in value.split(",") if x.strip())

    @field_validator("spark_homes")
    @classmethod
    def _homes_are_absolute(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(x.expanduser().absolute() for x in value)

    @field_validator("auto_binding_idle_percent")
    @classmethod
    def _idle_is_less_than_busy(cls, value: float, info: ValidationInfo) -> float:
        busy_percent = info.data.get("auto_binding_busy_percent")
        if busy_percent is not None and value >= busy_percent:
            raise ValueError(f"must be less than auto_binding_busy_percent, {busy_percent:g}")
        return value

    _name_is_a_label = field_validator("name")(label)
