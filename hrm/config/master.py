"""Settings of the master: its store, its schedulers, its limits, submissions and pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from hrm.address import DEFAULT_HOST, DEFAULT_PORT
from hrm.config.sources import (
    DEFAULT_POLICY,
    ConnectionsMax,
    ListenHost,
    PlacementPolicy,
    ServerSettings,
    hrm_home,
)
from hrm.core.messages.submissions import SubmissionBounds
from hrm.core.vocabulary.bounds import BOUNDS, SCHEDULERS
from hrm.core.vocabulary.workload_bounds import WORKLOAD_BOUNDS

__all__ = ["MasterSettings"]

_SUBMISSIONS = SubmissionBounds()


class MasterSettings(ServerSettings):
    """``hrm master``."""

    model_config = SettingsConfigDict(env_prefix="HRM_MASTER_", extra="forbid")
    table: ClassVar[str] = "master"

    host: ListenHost = Field(default=DEFAULT_HOST, description="address to listen on")
    port: int = Field(
        default=DEFAULT_PORT, ge=0, le=65535, description="port to listen on; 0: any free"
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of metrics for Prometheus, at /metrics: HTTP without a token (HTTPS with "
        "tls_cert), on the address of host; 0: any free; empty: none",
    )
    state_dir: Path = Field(
        default_factory=lambda: hrm_home() / "master", description="directory of its store"
    )
    connections_max: ConnectionsMax = 16_384
    schedulers: int = Field(
        default=SCHEDULERS, ge=1, le=256, description="parallel schedulers in the master"
    )
    placement_policy: PlacementPolicy = DEFAULT_POLICY
    placement_candidate: str = Field(
        default="",
        description="another placement policy, to be tried out next to placement_policy: it begins "
        "in shadow, `hrm policy set` lets it place, `hrm policy show` compares; empty: none",
    )

    heartbeat_interval_s: float = Field(
        default=BOUNDS.heartbeat_interval_s,
        gt=0,
        le=60,
        description="how often agents and AppMasters send heartbeats",
    )
    node_timeout_s: float = Field(
        default=BOUNDS.node_timeout_s, gt=0, description="silence after which a node is lost"
    )
    application_grace_s: float = Field(
        default=BOUNDS.application_grace_s,
        gt=0,
        description="time an AppMaster has to come back before its application fails",
    )
    node_failures: int = Field(
        default=BOUNDS.node_failures,
        ge=0,
        le=1_000,
        description="containers of an application that fail quickly on a node before it is "
        "excluded for that application; 0: no node is ever excluded",
    )
    node_failure_run_s: float = Field(
        default=BOUNDS.node_failure_run_s,
        gt=0,
        le=3600,
        description="a container that ends badly before it has run this long fails quickly",
    )
    node_failure_window_s: float = Field(
        default=BOUNDS.node_failure_window_s,
        gt=0,
        le=86_400,
        description="age at which such a failure no longer counts",
    )
    node_failing_applications: int = Field(
        default=BOUNDS.node_failing_applications,
        ge=1,
        le=1_000,
        description="applications for which a node is excluded before it is for all",
    )
    node_exclusion_s: float = Field(
        default=BOUNDS.node_exclusion_s,
        gt=0,
        le=86_400,
        description="first time that a node is excluded; doubles while it keeps failing",
    )
    node_exclusion_max_s: float = Field(
        default=BOUNDS.node_exclusion_max_s,
        gt=0,
        le=86_400,
        description="longest time that a node is excluded",
    )
    lease_timeout_s: float = Field(
        default=BOUNDS.lease_timeout_s, gt=0, description="longest hold of the stream lease"
    )
    lease_scope: Literal["global", "candidates"] = Field(
        default=BOUNDS.lease_scope,
        description="what a stream's lease locks: every resource unit, or those with capacity "
        "for it (where these do not suffice, those that are large enough); batch continues at "
        "the others",
    )
    scheduler_timeout_s: float = Field(
        default=BOUNDS.scheduler_timeout_s,
        gt=0,
        description="silence after which an `hrm scheduler` with jobs loses them to another one",
    )
    retry_delay_s: float = Field(
        default=BOUNDS.retry_delay_s, gt=0, description="first back-off of a scheduler's retry"
    )
    retry_delay_max_s: float = Field(
        default=BOUNDS.retry_delay_max_s, gt=0, description="longest back-off of that retry"
    )
    default_duration_s: float = Field(
        default=BOUNDS.default_duration_s, gt=0, description="run time assumed of a new container"
    )
    wait_max_s: float = Field(
        default=BOUNDS.wait_max_s, gt=0, description="longest estimated wait at a resource unit"
    )
    elasticity_policy: Literal["speed-up", "beta-on-demand", "beta-rule", "rlpto", "off"] = Field(
        default="speed-up",
        description="which applications that report what they train give up executors: speed-up, "
        "those that an executor makes hardly faster, or that gain less than elastic_beta, while "
        "others wait or could use it; beta-on-demand, only the latter; beta-rule, the same, though "
        "nothing could use it; rlpto, a trained policy next to speed-up, in shadow mode at first; "
        "off: none",
    )
    elastic_beta: float = Field(
        default=BOUNDS.elastic_beta,
        gt=0,
        lt=1,
        description="accuracy that a training has to gain an epoch, in the mean, to keep its "
        "executors; of one that states only its loss, the part of its first loss",
    )
    elastic_period_s: float = Field(
        default=BOUNDS.elastic_period_s,
        gt=0,
        description="how often executors that are free while nothing waits are given to trainings "
        "that learn",
    )
    elastic_resizes_per_minute: int = Field(
        default=BOUNDS.elastic_resizes_per_minute,
        ge=1,
        description="changes of executors of all trainings together, at most",
    )
    gpu_preemption: bool = Field(
        default=BOUNDS.gpu_preemption,
        description="preempt the newest executors of batch applications that hold more than their "
        "fair share of the GPUs, for those that hold less and wait; off: they wait until executors "
        "end",
    )
    gpu_preemption_grace_s: float = Field(
        default=BOUNDS.gpu_preemption_grace_s,
        ge=0,
        le=3600,
        description="time an executor preempted for that has to finish tasks and move its blocks",
    )
    queue_preemption: bool = Field(
        default=BOUNDS.queue_preemption,
        description="preempt what queues have borrowed for what others are guaranteed and wait "
        "for; off: that waits until containers end",
    )
    queue_preemption_grace_s: float = Field(
        default=BOUNDS.queue_preemption_grace_s,
        ge=0,
        le=3600,
        description="time an executor preempted for that has to finish tasks and move its blocks",
    )
    queue_preemption_part: float = Field(
        default=BOUNDS.queue_preemption_part,
        gt=0,
        le=1,
        description="part of the containers that run of which at most so many are preempted for "
        "queues at a time",
    )
    queue_reclaim_wait_s: float = Field(
        default=BOUNDS.queue_reclaim_wait_s,
        ge=0,
        le=3600,
        description="how long a container waits within its queue's guarantee before others are "
        "preempted for it",
    )
    queue_use_half_life_s: float = Field(
        default=BOUNDS.queue_use_half_life_s,
        ge=0,
        le=365 * 86_400,
        description="time after which what queues have borrowed counts half as much: of what "
        "guarantees leave, those that have borrowed less lately get more; 0: it does not count",
    )
    priority_period_s: float = Field(
        default=BOUNDS.priority_period_s,
        gt=0,
        le=86_400,
        description="in queues whose order is classes: requests for another priority of one "
        "application within this time are summed, and lead to one change of its class at most",
    )
    priority_steps: int = Field(
        default=BOUNDS.priority_steps,
        ge=1,
        le=5,
        description="steps of a tenth, up and down, that one application's priority may be asked "
        "to move in such a period; fewer than lie between a change of class and its reverse",
    )
    priority_steps_per_user: int = Field(
        default=BOUNDS.priority_steps_per_user,
        ge=1,
        le=100_000,
        description="the same, of all applications of one user together",
    )
    priority_ageing_s: float = Field(
        default=BOUNDS.priority_ageing_s,
        ge=0,
        le=30 * 86_400,
        description="time after which an application that waits in such a queue rises by a step, "
        "within its class; 0: waiting does not raise it",
    )
    platform_division: Literal[
        "affinity-round-robin",
        "application-affinity-first",
        "dominant-share",
        "provider-affinity-first",
        "simple-fairness",
        "none",
    ] = Field(
        default="affinity-round-robin",
        description="how queues' shares are divided over unlike platforms (agents' platform); "
        "none: any part of a share may be anywhere",
    )
    platform_affinity: Literal["throughput", "egocentric", "reciprocal"] = Field(
        default="reciprocal",
        description="which platforms suit which queue, by run times learned: reciprocal, where it "
        "gains more than others do; egocentric or throughput, where it is faster itself",
    )
    platform_wait_s: float = Field(
        default=BOUNDS.platform_wait_s,
        ge=0,
        le=3600,
        description="how long a container waits for capacity on the platform where its queue has a "
        "part left, before it is placed anywhere",
    )
    platform_moves: bool = Field(
        default=BOUNDS.platform_moves,
        description="preempt batch of two queues in exchange where each holds what the other has a "
        "part of; off, as without queue_preemption: that comes about as containers end",
    )
    platform_move_after_s: float = Field(
        default=BOUNDS.platform_move_after_s,
        ge=1,
        le=86_400,
        description="what has run for less is not moved to another platform",
    )
    queue_fairness_half_life_s: float = Field(
        default=BOUNDS.queue_fairness_half_life_s,
        ge=1,
        le=365 * 86_400,
        description="time after which what was observed of queues counts half as much in their "
        "normalised throughput, in the fairness between them and in percentiles of waiting times",
    )
    waiting_limit: int = Field(
        default=BOUNDS.waiting_limit,
        ge=0,
        description="batch containers that may wait at a resource unit; streams wait for all that "
        "batch holds there. 0: nothing waits at units, and nothing is preempted for streams",
    )
    waiting_bound: Literal["limit", "feedback"] = Field(
        default=BOUNDS.waiting_bound,
        description="how many may wait at a unit: limit: up to waiting_limit; feedback: only what "
        "it finishes between two heartbeats, by its own record, and up to waiting_limit",
    )
    applications_limit: int = Field(
        default=BOUNDS.applications_limit, ge=1, description="live applications"
    )
    applications_per_user: int = Field(
        default=BOUNDS.applications_per_user, ge=1, description="live applications of one user"
    )
    launches_held_mib: int = Field(
        default=BOUNDS.launches_held_mib,
        ge=1,
        description="environments, options and drivers' documents of live applications together",
    )
    nodes_limit: int = Field(default=BOUNDS.nodes_limit, ge=1, description="nodes in service")
    containers_limit: int = Field(
        default=BOUNDS.containers_limit, ge=1, description="live containers of one application"
    )
    streams_per_peer: int = Field(
        default=50_000,
        ge=1,
        description="open streams of one address: nodes, sessions of applications, watchers",
    )
    calls_per_peer: int = Field(
        default=10_000, ge=1, description="calls of one address that are under way"
    )
    registrations_per_s: float = Field(
        default=1_000.0,
        gt=0,
        description="applications and drivers that one address may register in a second, over ten "
        "seconds",
    )
    requests_per_s_per_identity: float = Field(
        default=1_000.0,
        gt=0,
        description="calls, streams included, that a user, service, node, scheduler or application "
        "may make in a second, over ten seconds; more wait for a second at most, and are refused "
        "then. This and the following: not of the cluster's own token",
    )
    calls_per_identity: int = Field(
        default=5_000, ge=1, description="calls of one identity that are under way"
    )
    streams_per_identity: int = Field(
        default=25_000, ge=1, description="open streams of one identity"
    )
    log_streams_per_identity: int = Field(
        default=256, ge=1, description="logs that one identity reads or follows at a time"
    )
    messages_per_s_per_identity: float = Field(
        default=1_000.0,
        gt=0,
        description="messages that one identity may send in a second on its open streams, over ten "
        "seconds; more are read later",
    )
    message_mib_per_identity: int = Field(
        default=48,
        ge=1,
        le=64,
        description="largest message of a user, service or application, at least "
        "pipeline_payload_mib and 4 more; viewers send 16 KiB at most",
    )
    registrations_per_s_per_user: float = Field(
        default=1_000.0,
        gt=0,
        description="applications and drivers that one user, with all of its applications, may "
        "register in a second, over ten seconds",
    )
    event_followers: int = Field(
        default=256, ge=1, description="readers that may follow events (`hrm events --follow`)"
    )
    event_followers_per_peer: int = Field(default=64, ge=1, description="of one address")
    event_followers_per_identity: int = Field(default=64, ge=1, description="of one identity")
    ended_applications_kept: int = Field(
        default=BOUNDS.ended_applications_kept,
        ge=0,
        description="ended applications that `hrm apps --all` still lists",
    )
    ended_applications_mib: int = Field(
        default=BOUNDS.ended_applications_mib,
        ge=1,
        description="memory for them, estimated; the oldest are removed where it is not enough",
    )
    run_times_kept: int = Field(
        default=BOUNDS.run_times_kept,
        ge=0,
        description="mean run times kept for recurring applications, one for each application "
        "name, user and resource profile",
    )
    learned_classes_kept: int = Field(
        default=BOUNDS.learned_classes_kept,
        ge=0,
        description="what class recurring applications turned out to be, one for each application "
        "name and user; 0: all begin as batch unless they declare a class",
    )
    class_guess_s: float = Field(
        default=BOUNDS.class_guess_s,
        ge=0.0,
        le=3600.0,
        description="an application that begins as a stream because its last run was one, and "
        "shows no stream for so long, is batch from then on; 0: none begins so",
    )

    submissions_limit: int = Field(
        default=_SUBMISSIONS.submissions_limit,
        ge=1,
        description="live submissions (cluster deploy mode)",
    )
    ended_submissions_kept: int = Field(
        default=_SUBMISSIONS.ended_submissions_kept,
        ge=0,
        description="ended submissions that `hrm submissions --all` lists",
    )
    driver_share: float = Field(
        default=BOUNDS.driver_share,
        gt=0,
        le=1,
        description="part of the vcores, and of the memory, that drivers on nodes may hold "
        "together; one driver may always start",
    )
    driver_lease_s: float = Field(
        default=_SUBMISSIONS.driver_lease_s,
        ge=2,
        le=86_400,
        description="how long a supervised driver runs on while no master can be reached; where "
        "its node is lost, no other is started before this has passed",
    )
    serial_lease_s: float = Field(
        default=_SUBMISSIONS.serial_lease_s,
        ge=2,
        le=86_400,
        description="the same of unsupervised drivers with a key (spark.hrm.submit.key): a retry "
        "waits for so long where the node of the driver that it repeats was lost",
    )
    driver_restart_delay_s: float = Field(
        default=_SUBMISSIONS.driver_restart_delay_s,
        gt=0,
        description="wait before a supervised driver starts again; doubles with each restart "
        "within driver_restart_window_s",
    )
    driver_restart_delay_max_s: float = Field(
        default=_SUBMISSIONS.driver_restart_delay_max_s, gt=0, description="longest such wait"
    )
    driver_restarts_max: int = Field(
        default=_SUBMISSIONS.driver_restarts_max,
        ge=0,
        le=1_000,
        description="restarts of a supervised driver within driver_restart_window_s",
    )
    driver_restart_window_s: float = Field(
        default=_SUBMISSIONS.driver_restart_window_s,
        gt=0,
        description="age at which a restart no longer counts",
    )
    driver_launches_max: int = Field(
        default=_SUBMISSIONS.driver_launches_max,
        ge=1,
        le=100,
        description="containers that a node began to start and in which no driver came to run",
    )
    file_mib_max: int = Field(
        default=1024, ge=1, description="largest file that a submission may send"
    )
    files_held_mib: int = Field(
        default=16_384, ge=1, description="disk for the files of submissions"
    )
    files_keep_s: float = Field(
        default=3_600.0,
        ge=60,
        description="time that files are kept which no live submission needs",
    )
    events_kept: int = Field(
        default=200_000, ge=1_000, description="events that `hrm events` still has"
    )
    events_keep_s: float = Field(
        default=7 * 86_400.0, gt=0, description="age at which they are dropped"
    )
    audit_mib: int = Field(
        default=64,
        ge=1,
        le=65_536,
        description="disk for the audit log; changes and refusals have half of it each",
    )

    pipeline_policy: str = Field(
        default="min-wait",
        min_length=1,
        description="what chooses nodes for pipeline tasks: random, least-loaded, min-wait, "
        "demand, ect, min-min, ldwp or ldwp-set; learned ones begin in shadow",
    )
    pipeline_resize_policy: str = Field(
        default="one-per-task",
        min_length=1,
        description="what says how many workers a pipeline application wants: one-per-task, "
        "few-starts, or that of a package",
    )
    pipeline_resize_candidate: str = Field(
        default="",
        description="another one, to be tried out next to pipeline_resize_policy as "
        "placement_candidate is next to placement_policy; empty: none",
    )
    pipeline_workers_max: int = Field(
        default=WORKLOAD_BOUNDS.workers_max,
        ge=1,
        le=100_000,
        description="workers of one pipeline application at most, whatever its queue may have",
    )
    pipeline_worker_cores: int = Field(
        default=WORKLOAD_BOUNDS.worker_cores,
        ge=1,
        le=1_024,
        description="cores of a worker of pipelines: so many steps run there at a time",
    )
    pipeline_worker_memory_mib: int = Field(
        default=WORKLOAD_BOUNDS.worker_memory_mib,
        ge=128,
        description="memory of a worker of pipelines; more where a step states that it needs more",
    )
    pipeline_worker_idle_s: float = Field(
        default=WORKLOAD_BOUNDS.worker_idle_s,
        ge=0,
        le=86_400,
        description="how long a worker of pipelines that has no task is kept",
    )
    pipeline_stream_idle_s: float = Field(
        default=WORKLOAD_BOUNDS.stream_idle_s,
        ge=0,
        le=86_400,
        description="the same for a worker of class stream: what it took from others by preemption "
        "it would soon take again",
    )
    pipeline_queue_limit: int = Field(
        default=10_000, ge=1, description="pipeline tasks that may wait for a node"
    )
    pipeline_attempts: int = Field(
        default=3,
        ge=1,
        le=100,
        description="placements of a pipeline task that may fail before it does: its worker is "
        "lost, or refuses it",
    )
    pipeline_payload_mib: int = Field(
        default=32, ge=1, le=60, description="largest input of a pipeline task"
    )
    pipeline_held_mib: int = Field(
        default=4096,
        ge=1,
        description="disk for inputs, results and ends of pipeline tasks; the ends have an eighth "
        "of it at most",
    )
    pipeline_ended_kept: int = Field(
        default=1_000,
        ge=0,
        description="ended pipeline tasks that are kept once their result is fetched with forget, "
        "or their end is known and there is none; the others are kept all the same",
    )
