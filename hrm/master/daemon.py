"""``hrm master``: starts the services from the settings, and shuts them down."""

from __future__ import annotations

import asyncio
import gc
import json
import secrets
import signal
import sys
import time
from contextlib import closing
from functools import partial
from typing import Any

import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection

from hrm import allocator, clock, descriptors, policies, rpc, rpc_server, tls
from hrm.config import MasterSettings, QueueConfig
from hrm.connections import ConnectionWatch
from hrm.core.elasticity.beta_rule import BetaRule, ElasticityPolicy
from hrm.core.elasticity.speed_up_rule import SpeedUpRule
from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Node
from hrm.core.tenancy.queue_spec import spec_fields
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import HrmError, InvalidConfig
from hrm.identity.registry import TokenRegistry
from hrm.identity_limits import IdentityLimits
from hrm.master import metrics_page
from hrm.master.admin_service import AdminService
from hrm.master.application_service import ApplicationService
from hrm.master.audit_log import AuditLog
from hrm.master.container_uses import ContainerUseReports
from hrm.master.disk_space import full, is_full
from hrm.master.events_service import EventService
from hrm.master.identity_service import IdentityService
from hrm.master.interpreter import Interpreter
from hrm.master.journal import Journal
from hrm.master.node_service import NodeService
from hrm.master.owners import Owners
from hrm.master.placement_candidate import with_candidate
from hrm.master.policy_service import (
    PolicyService,
    load_draw_key,
    load_modes,
    report_roll_back,
    save_modes,
)
from hrm.master.queue_service import QueueService, statuses
from hrm.master.scheduler_service import SharedStateService, add_to_server
from hrm.master.store import Store
from hrm.master.store_repair import locked
from hrm.master.submission_interpreter import Submissions
from hrm.master.submission_service import SubmissionService
from hrm.master.user_groups import UserGroups
from hrm.peer_limits import PeerLimits
from hrm.pipelines.master.service import PipelineService
from hrm.pipelines.master.settings import pipeline_policy, resizing
from hrm.pipelines.master.tasks import PipelineTasks
from hrm.policies.elasticity import guarded_elasticity
from hrm.policies.guard import GuardRegistry
from hrm.policies.sharing import divider
from hrm.tls_server import ServerTls, listen, server_tls
from hrm.v1 import (
    admin_pb2_grpc,
    application_pb2_grpc,
    events_pb2_grpc,
    identity_pb2_grpc,
    node_pb2_grpc,
    pipeline_pb2_grpc,
    policy_pb2_grpc,
    queues_pb2_grpc,
    submission_pb2_grpc,
)

__all__ = ["bounds_of", "known_to", "run", "tune_python"]

TICK_INTERVAL_S = 0.25
SWITCH_INTERVAL_S = 0.0005
STOP_GRACE_S = 1.0
GIVE_BACK_INTERVAL_S = 2.0
DROPPED_BYTES_MIN = 8 * 1024 * 1024
_BESIDES_PAYLOAD_MIB = 4
"""What a pipeline task's message has apart from its payload: at most 2 MB of sources, mostly."""
NO_QUEUES = QueueConfig()
SERVICES = (
    "AdminService", "ApplicationService", "EventService", "IdentityService", "NodeService",
    "PipelineService", "PolicyService", "QueueService", "SharedStateService", "SubmissionService",
)  # fmt: skip
"""The services of ``hrm.v1``, for health checks and reflection."""

log = structlog.get_logger("master")


def bounds_of(settings: MasterSettings) -> Bounds:
    """The core's bounds; those that are settings have the settings' values."""
    names = set(Bounds.__dataclass_fields__) & set(type(settings).model_fields)
    return Bounds(**{name: getattr(settings, name) for name in names})


def tune_python() -> None:
    """Keep Python itself from delaying a stream.

    Cyclic garbage is collected less often: the state of a large cluster is millions of long-lived
    objects, and a full collection takes longer than a stream should wait. For the same reason the
    young generation is collected in small batches: 5,000 objects take some 3 ms, 20,000 some 12.
    And threads take turns more often than every 5 ms, the default: that long the loop waits for the
    interpreter's lock whenever it has let a thread of the store or the journal have it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 20, 10_000)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


async def run(settings: MasterSettings, queues: QueueConfig = NO_QUEUES) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. ``queues``: what ``hrm.toml`` states.

    Raises:
        InvalidConfig: the state directory is another master's, the store is damaged, the token file
            is not private, clear text is not allowed at its address, or the queues of ``hrm.toml``
            and of the store are no tree together.
        Unavailable: the port is in use.
        DiskFull: there is no space for what the start must write.
    """
    descriptors.raise_limit()
    try:
        return await _run(settings, queues)
    except OSError as error:
        if is_full(error, settings.state_dir):
            raise full(settings.state_dir, error) from error
        raise InvalidConfig(
            f"cannot use the state directory {settings.state_dir}: {error}; set it right, or name "
            f"another one with --state-dir"
        ) from error


async def _run(settings: MasterSettings, queues: QueueConfig) -> int:
    secure = server_tls(settings)  # first: a refusal must leave nothing behind
    token = rpc.create_token(settings.token_file)
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        locked(settings.state_dir / "lock"),
        closing(Store(settings.state_dir / "hrm.sqlite")) as store,
    ):
        known = known_to(store, queues)
        _note_replaced(queues, store)
        epoch = store.next_epoch()
        kept, keep_s = settings.events_kept, settings.events_keep_s
        path = settings.state_dir / "events.sqlite"
        with closing(Journal(path, epoch, kept=kept, keep_s=keep_s)) as journal:
            if journal.newest_epoch >= epoch:
                log.warning(
                    "the store is older than its journal: what was written in between is lost, "
                    "and what runs is readmitted as after a lost store",
                    epoch=epoch, epoch_of_the_journal=journal.newest_epoch,
                )  # fmt: skip
            return await _serve(settings, queues, token, secure, store, known, journal, epoch)


def _note_replaced(queues: QueueConfig, store: Store) -> None:
    for was, now in queues.replaced(store.queues()):
        log.warning(
            "hrm.toml replaces what was stored of a queue",
            queue=was.name, was=json.dumps(spec_fields(was)), now=json.dumps(spec_fields(now)),
        )  # fmt: skip


def known_to(store: Store, queues: QueueConfig = NO_QUEUES) -> dict[str, Any]:
    """What the core needs from the store; of the ``queues`` that ``hrm.toml`` states, that counts.
    Everything is read before anything is written, so a damaged store stays as it is.

    Raises:
        InvalidConfig: it is damaged, or its queues and those of the file are no tree together.
    """
    known: dict[str, Any] = {
        "records": store.applications(),
        "known_nodes": store.nodes(),
        "drained_nodes": store.drains(),
        "run_times": store.run_times(),
        "learned_classes": store.learned_classes(),
        "queues": queues.tree(store.queues()),
        "queue_rules": queues.rules,
    }
    store.submissions()
    store.tokens()
    store.pipeline_tasks()
    return known


async def _serve(
    settings: MasterSettings,
    queues: QueueConfig,
    token: str,
    secure: ServerTls | None,
    store: Store,
    known: dict[str, Any],
    journal: Journal,
    epoch: int,
) -> int:
    watch = ConnectionWatch()
    registry = TokenRegistry(token, store.tokens())
    audit = AuditLog(settings.state_dir / "audit", settings.audit_mib << 20)
    own_limits = _own_limits(settings)
    server, address = _listening(settings, registry, secure, watch, audit, own_limits)
    loop = asyncio.get_running_loop()
    state_dir = settings.state_dir
    guards = GuardRegistry(
        load_modes(state_dir),
        keep=lambda modes: save_modes(state_dir, modes),
        draw_key=load_draw_key(state_dir),
    )
    guards.on_roll_back = partial(report_roll_back, journal)
    core = _core(settings, known, journal, epoch, guards)
    guards.user_of = partial(_user_of, core)
    master = Interpreter(core, store, journal)
    if queues.specs:
        store.put_queues(core.queues.tree.stated)
    pipelines = PipelineTasks(
        settings,
        master,
        policy=pipeline_policy(settings, guards, seed=core.epoch),
        token_of=registry.applications.token_of,
        resizing=resizing(settings, guards),
    )
    submissions = Submissions(master, settings, registry.applications.token_of)
    identity_pb2_grpc.add_IdentityServiceServicer_to_server(
        IdentityService(master, registry, audit), server
    )
    await _add_services(
        server, master, pipelines, submissions, guards, settings, queues, address, registry,
        own_limits,
    )  # fmt: skip
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, _finish, master.stopped)
    fairness = core.master_state.queue_fairness
    async with metrics_page.serving(settings, partial(statuses, core), fairness.summary, secure):
        pipelines.recover()
        await server.start()
        (settings.state_dir / "address").write_text(address + "\n")
        log.info(
            "serving", address=address, epoch=core.epoch, schedulers=settings.schedulers,
            tls=secure is not None,
        )  # fmt: skip
        print(f"master ready on {address} (epoch {core.epoch})", flush=True)
        try:
            error = await _until_stopped(master, pipelines, submissions, watch, audit)
        finally:
            await server.stop(STOP_GRACE_S)
            (settings.state_dir / "address").unlink(missing_ok=True)
    if error is not None:
        log.critical("stopped", error=str(error))
        return 1
    log.info("stopped")
    return 0


def _user_of(core: MasterCore, application_id: str) -> str:
    app = core.master_state.applications.get(ApplicationId(application_id))
    return "" if app is None else app.record.user


def _core(
    settings: MasterSettings,
    known: dict[str, Any],
    journal: Journal,
    epoch: int,
    guards: GuardRegistry,
) -> MasterCore:
    in_force = [
        policies.load(settings.placement_policy, index) for index in range(settings.schedulers)
    ]
    placement, watch = with_candidate(settings, in_force, journal.watch, guards)
    core = MasterCore(
        epoch=epoch,
        policies=placement,
        bounds=bounds_of(settings),
        now=clock.now(),
        watch=watch,
        epoch_id=secrets.token_hex(8),
        division=divider(settings.platform_division, settings.platform_affinity),
        elasticity=_elasticity(settings, guards),
        **known,
    )
    journal.took(None)
    return core


def _elasticity(settings: MasterSettings, guards: GuardRegistry) -> ElasticityPolicy | None:
    """What limits the executors of applications that train."""
    if settings.elasticity_policy == "off":
        return None
    if settings.elasticity_policy == "speed-up":
        return SpeedUpRule()
    if settings.elasticity_policy != "rlpto":
        return BetaRule(on_demand=settings.elasticity_policy == "beta-on-demand")
    guarded = guarded_elasticity(
        clock_s=time.thread_time,
        models=settings.state_dir,
        heuristic=SpeedUpRule(),
    )
    guards.add(guarded.guard)
    return guarded


async def _until_stopped(
    master: Interpreter,
    pipelines: PipelineTasks,
    submissions: Submissions,
    watch: ConnectionWatch,
    audit: AuditLog,
) -> HrmError | None:
    """What happens by time, until the master is to stop; returns why, unless it was asked to."""
    ticking = asyncio.gather(
        master.tick_forever(TICK_INTERVAL_S),
        pipelines.tick_forever(),
        submissions.run(TICK_INTERVAL_S),
        watch.run(),
        audit.run(),
        _give_back_forever(master.core),
    )
    try:
        return await master.stopped
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)


async def _give_back_forever(core: MasterCore) -> None:
    """Give the memory of dropped large applications back to the system: glibc keeps what is free,
    unless it lies at the end of the heap. It takes time in proportion to the heap."""
    returned = 0
    while True:
        await asyncio.sleep(GIVE_BACK_INTERVAL_S)
        dropped = core.master_state.holdings.dropped_bytes
        if dropped - returned >= DROPPED_BYTES_MIN:
            returned = dropped
            await asyncio.to_thread(allocator.give_back)


def _listening(
    settings: MasterSettings,
    registry: TokenRegistry,
    secure: ServerTls | None,
    watch: ConnectionWatch,
    audit: AuditLog,
    own_limits: IdentityLimits,
) -> tuple[grpc.aio.Server, str]:
    """A server that listens but does not serve yet, and its address."""
    limits = PeerLimits(
        streams=settings.streams_per_peer,
        calls=settings.calls_per_peer,
        registrations_per_s=settings.registrations_per_s,
    )
    server = rpc_server.server(
        registry,
        streams_max=settings.streams_max,
        connections_max=settings.connections_max,
        watch=watch,
        limits=limits,
        audit=audit.take,
        own_limits=own_limits,
    )
    wanted = f"{settings.host}:{settings.port}"
    port = listen(server, wanted, secure, allow_clear_text=settings.allow_clear_text)
    watch.ports.add(port)
    return server, f"{settings.host}:{port}"


def _own_limits(settings: MasterSettings) -> IdentityLimits:
    message_mib = max(
        settings.message_mib_per_identity, settings.pipeline_payload_mib + _BESIDES_PAYLOAD_MIB
    )
    return IdentityLimits(
        requests_per_s=settings.requests_per_s_per_identity,
        streams=settings.streams_per_identity,
        calls=settings.calls_per_identity,
        log_streams=settings.log_streams_per_identity,
        messages_per_s=settings.messages_per_s_per_identity,
        message_bytes=message_mib * 1024 * 1024,
        registrations_per_s=settings.registrations_per_s_per_user,
    )


def _finish(stopped: asyncio.Future[HrmError | None], error: HrmError | None = None) -> None:
    if not stopped.done():
        stopped.set_result(error)


async def _add_services(
    server: grpc.aio.Server,
    master: Interpreter,
    pipelines: PipelineTasks,
    submissions: Submissions,
    guards: GuardRegistry,
    settings: MasterSettings,
    queues: QueueConfig,
    address: str,
    registry: TokenRegistry,
    own_limits: IdentityLimits,
) -> None:
    interval_s = settings.heartbeat_interval_s
    assert master.journal is not None
    ca = tls.ca_file(settings.token_file, settings.tls_ca)

    def to_agent(node: Node) -> grpc.aio.Channel:
        allow = settings.allow_clear_text
        token = registry.toward_node(node.name)
        return rpc.channel(node.endpoint, token, tls.read_ca(ca), allow_clear_text=allow)

    owners = Owners(master, submissions)
    registry.user_of = owners.user_of
    pipelines.has_ended = owners.has_ended
    admin_pb2_grpc.add_AdminServiceServicer_to_server(
        AdminService(
            *(master, address, to_agent, pipelines.workloads, pipelines.check_own),
            owners,
            lambda: own_limits.refused,
        ),
        server,
    )
    events_pb2_grpc.add_EventServiceServicer_to_server(
        EventService(
            master.journal,
            settings.event_followers,
            settings.event_followers_per_peer,
            settings.event_followers_per_identity,
            owners.is_own,
        ),
        server,
    )
    uses = ContainerUseReports()
    nodes = NodeService(master, interval_s, registry.node_connected, uses, settings.state_dir)
    node_pb2_grpc.add_NodeServiceServicer_to_server(nodes, server)
    add_to_server(SharedStateService(master), server)
    pipeline_pb2_grpc.add_PipelineServiceServicer_to_server(
        PipelineService(pipelines, interval_s, uses), server
    )
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(
        PolicyService(guards, (nodes.policies, pipelines.policies), owners, settings), server
    )
    groups = UserGroups(is_asked=queues.asks_groups)
    pipelines.host.groups_of = groups.of
    applications = ApplicationService(
        master,
        interval_s,
        submissions.may_register,
        submissions.registered,
        registry.applications.token_of,
        groups,
    )
    application_pb2_grpc.add_ApplicationServiceServicer_to_server(applications, server)
    submission_pb2_grpc.add_SubmissionServiceServicer_to_server(
        SubmissionService(submissions, owners, groups), server
    )
    queues_pb2_grpc.add_QueueServiceServicer_to_server(
        QueueService(master, owners, queues.names), server
    )
    await _describe_services(server)


async def _describe_services(server: grpc.aio.Server) -> None:
    """Health checks and reflection."""
    names = [f"hrm.v1.{name}" for name in SERVICES]
    checker = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    for name in names:
        await checker.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection([*names, HEALTH, reflection.SERVICE_NAME], server)
