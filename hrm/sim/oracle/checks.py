"""The oracle: what must hold after every event, and what must have come of it in the end.

``core.invariants`` recounts the state of one core. Here is what no core can see: two machines at
once, the processes themselves, what was durable when it was reported, which scheduler held the
lease.

The oracle keeps a record of its own and shares no code with what it checks, not even ``fits``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.invariants import master_violations, node_violations
from hrm.core.master.core import MasterCore
from hrm.core.messages import appmaster as am
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import (
    DRIVER_PREFIX,
    ApplicationId,
    ContainerSpec,
    NodeState,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import Hardware
from hrm.sim.actors.sleepers import Sleepers
from hrm.sim.faults.capacity import fits_offer
from hrm.sim.oracle.bindings import Bindings, shared_cores
from hrm.sim.oracle.classes import ClassSettling
from hrm.sim.oracle.copies import Copies, Views
from hrm.sim.oracle.departures import Departures
from hrm.sim.oracle.driver_places import DriverPlacesChecks
from hrm.sim.oracle.elasticity import ElasticityChecks
from hrm.sim.oracle.estimate_checks import EstimateChecks
from hrm.sim.oracle.gpu_fairness import GpuFairness
from hrm.sim.oracle.gpu_waiters import GpuWaiterChecks
from hrm.sim.oracle.grants import Grants
from hrm.sim.oracle.overtaking import Overtaking, held_up
from hrm.sim.oracle.pauses import Pauses
from hrm.sim.oracle.pipelines import PipelineChecks
from hrm.sim.oracle.place_keeping import PlaceKeeping, out_of_place
from hrm.sim.oracle.platforms import PlatformChecks
from hrm.sim.oracle.pool import PoolChecks
from hrm.sim.oracle.preemptions import needless_preemptions
from hrm.sim.oracle.priorities import PriorityChecks
from hrm.sim.oracle.queues import QueueChecks
from hrm.sim.oracle.replies import CallReplies
from hrm.sim.oracle.requirements import Requirements
from hrm.sim.oracle.rounds import Rounds
from hrm.sim.oracle.silences import Silences
from hrm.sim.oracle.started_gangs import StartedGangs
from hrm.sim.oracle.stop_causes import StopCauses
from hrm.sim.oracle.strict_order import StrictOrder
from hrm.sim.oracle.submission_checks import SubmissionChecks
from hrm.sim.oracle.waiting_drivers import WaitingDrivers
from hrm.sim.oracle.waiting_streams import WaitingStreams
from hrm.sim.oracle.whole_starts import WholeStarts
from hrm.sim.oracle.yielding import YieldingChecks

__all__ = ["Oracle"]

_STOPS_A_SECOND_MAX = 30


class Oracle:
    """``found``: violations as text, in order. ``checks``: how many times it checked.

    ``admitted``: applications that were reported to an AppMaster as admitted and not yet as ended.
    ``processes``: every live process of the cluster, and its machine. ``quiet_since_s``: since when
    no fault happens.
    """

    def __init__(self, sleepers: Sleepers, at_once_max: int, *, every_policy: bool) -> None:
        """``at_once_max``: steps for streams that fill a turn of the master. ``every_policy``: not
        all of them place what fits."""
        self.quiet_since_s = math.inf
        self.found: list[str] = []
        self.checks = 0
        self.admitted: dict[ApplicationId, bool] = {}
        self.processes: dict[str, str] = {}
        self._stops: Counter[str] = Counter()
        self._second = 0
        self.silences = Silences(self.violated, sleepers)
        self.replies = CallReplies(self.violated, self.silences.awake_s)
        self.copies = Copies(self.violated)
        self.departures = Departures(self.violated)
        self.grants = Grants(self.violated)
        self.whole_starts = WholeStarts(self.violated, self.grants.gangs)
        self.requirements = Requirements(self.violated)
        self.drivers = DriverPlacesChecks(self.violated)
        self.gpu_waiters = GpuWaiterChecks(self.violated)
        self.overtaking = Overtaking(self.violated, self.gpu_waiters)
        self.rounds = Rounds(self.violated, self.silences.awake_s, at_once_max)
        self.submissions = SubmissionChecks(self.violated, self.silences.awake_s)
        self.pipelines = PipelineChecks(self.violated, self.processes)
        self.views = Views(self.violated)
        self.pauses = Pauses(self.violated)
        self.classes = ClassSettling(self.violated, self.silences.awake_s)
        self.places = PlaceKeeping(self.violated)
        self.gpu_fairness = GpuFairness(self.violated, every_policy=every_policy)
        self.started_gangs = StartedGangs(self.violated)
        self.waiting_drivers = WaitingDrivers(self.violated, every_policy=every_policy)
        self.waiting_streams = WaitingStreams(self.violated, every_policy=every_policy)
        self.strict_order = StrictOrder(self.violated)
        self.queues = QueueChecks(self.violated, every_policy=every_policy)
        self.priorities = PriorityChecks(self.violated)
        self.platforms = PlatformChecks(self.violated)
        self.bindings = Bindings(self.violated)
        self.estimates = EstimateChecks(self.violated)
        self.stop_causes = StopCauses(self.violated)
        self.yielding = YieldingChecks(self.violated, self.gpu_waiters)
        self.elasticity = ElasticityChecks(self.violated)
        self.pool = PoolChecks(self.violated)

    def violated(self, what: str) -> None:
        self.found.append(what)

    def master_began(self, core: MasterCore) -> None:
        self.replies.master_began()
        self.elasticity.master_began()
        self.silences.master_began()
        self.copies.master_began()
        self.departures.master_began()
        self.rounds.master_began()
        self.views.master_began()
        self.gpu_fairness.master_began()
        self.started_gangs.master_began()
        self.waiting_drivers.master_began()
        self.waiting_streams.master_began()
        self.strict_order.master_began()
        self.grants.master_began(core)
        self.whole_starts.master_began()
        self.places.master_began()
        self.requirements.master_began()
        self.classes.master_began(core)
        self.drivers.master_began()
        self.queues.master_began()
        self.priorities.master_began()
        self.platforms.master_began()
        self.stop_causes.master_began()
        for application_id in self.admitted:  # whatever was reported to an AppMaster survives
            if application_id not in core.master_state.applications:
                self.violated(f"{application_id} was admitted, and the next master forgot it")

    def after_master(
        self, core: MasterCore, event: e.MasterEvent, commands: list[c.MasterCommand]
    ) -> None:
        """The state is consistent; nothing dead gets grants; grants, copies, replies are right."""
        self.checks += 1
        self.found += master_violations(core)
        for command in commands:
            if isinstance(command, c.SendToNode) and isinstance(command.message, c.AssignContainer):
                node = core.master_state.nodes.get(command.node)
                if node is None or node.state is not NodeState.ALIVE:
                    what = "unknown" if node is None else node.state.value
                    self.violated(
                        f"{command.message.spec.container_id} is granted to {command.node}, "
                        f"which is {what}"
                    )
            elif isinstance(command, c.SendToNode):
                self._ordered(command, event.now)
        self.silences.after(core, event, commands)
        self.replies.after(core, event, commands)
        self.grants.after(core, event, commands)
        self.whole_starts.after(core, event)
        self.requirements.after(core, event, commands)
        self.places.after(core, event, commands)
        self.classes.after(core, event, commands)
        self.drivers.after(core, event, commands)
        self.copies.after(core, commands)
        self.rounds.after(core, event, commands)
        self.departures.after(event, commands)
        self.gpu_fairness.after(core, event, commands, self.quiet_since_s)
        self.started_gangs.after(core, event, commands)
        self.waiting_drivers.after(core, event, commands, self.quiet_since_s)
        self.waiting_streams.after(core, event, commands, self.quiet_since_s)
        self.strict_order.after(core, event, self.quiet_since_s)
        self.queues.after(core, event, commands, self.quiet_since_s)
        self.priorities.after(core, event, commands)
        self.platforms.after(core, event, commands, self.quiet_since_s)
        self.views.after(core, commands, event.now)
        if isinstance(event, e.NodeRegistered):
            self.bindings.registered(event)
        self.estimates.after(core, event, commands)
        self.stop_causes.after(core, event, commands)
        self.elasticity.after(core, event, commands)
        for scheduler in core.placement.schedulers.values():
            for job in scheduler.jobs.values():
                if job.policy_fault:
                    self.violated(f"{scheduler.name}: {job.policy_fault}")

    def _ordered(self, command: c.SendToNode, now: float) -> None:
        """Master and node do not reply to each other without end."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._stops.clear()
        if isinstance(command.message, c.StopContainer):
            container_id = command.message.container_id
            self._stops[container_id] += 1
            if self._stops[container_id] == _STOPS_A_SECOND_MAX:
                self.violated(
                    f"{command.node} is ordered to stop {container_id} {_STOPS_A_SECOND_MAX} times "
                    f"within a second"
                )

    def left_master(self, command: c.MasterCommand, durable: dict[ApplicationId, object]) -> None:
        """No application is reported that a crash could lose; each command leaves in turn."""
        self.departures.left(command)
        self.priorities.left(command, durable)
        match command:
            case c.Reply(result=c.ApplicationAdmitted(application_id=application_id)):
                if application_id not in durable:
                    self.violated(f"{application_id} was reported before it was durable")
                self.admitted[application_id] = True
            case c.NotifyApplication(notice=c.EndApplication()):
                self.admitted.pop(command.application_id, None)

    def store_changed(self, known: Iterable[ApplicationId]) -> None:
        """The disk has lost something: guarantees rest on what it has now."""
        self.admitted = dict.fromkeys([x for x in known if x in self.admitted], True)

    def after_node(
        self,
        core: NodeCore,
        newest_epoch: int,
        event: e.NodeEvent,
        acts: bool,
        commands: list[c.NodeCommand],
    ) -> None:
        """Units are valid, no container waits that could run without a delay to others, batch is
        preempted for streams alone, or yields, and orders of old masters have no effect.

        ``acts``: the event made the node start or stop something, or take something in.
        """
        self.checks += 1
        self.found += node_violations(core)
        if acts and isinstance(event, e.ReceivedFromMaster) and event.epoch < newest_epoch:
            self.violated(
                f"{core.name} honours {type(event).__name__} of epoch {event.epoch}, it follows "
                f"{newest_epoch}"
            )
        if not isinstance(event, e.StopReceived):
            self.found += needless_preemptions(core, commands, self.gpu_waiters.orders)
        self.yielding.after(core, commands, event.now)
        self.overtaking.after(core, commands, event.now)
        self.gpu_waiters.after(core, event, commands)
        self.found += out_of_place(core)
        self.bindings.after(core, event, commands)
        for unit_id, queue in core.units.items():
            waiting = list(queue.stream_waiting.values()) or list(queue.batch_waiting.values())
            if not queue.stream_waiting and _stream_waits_for_cores(queue.pool):
                continue
            for entry in waiting:
                if fits_offer(entry.demand, queue.free) and not (
                    entry.container_id in queue.batch_waiting
                    and (held_up(queue, entry) or self.gpu_waiters.holds_up(core, queue, entry))
                ):
                    self.violated(f"{entry.container_id} waits at {unit_id} though it could run")

    def process_began(self, machine: str, spec: ContainerSpec, here: Iterable[ContainerSpec],
                      capacity: Vector) -> None:  # fmt: skip
        """One process a container in the whole cluster; no unit holds more than it has.

        ``here``: what runs at the same unit, the new one included.
        """
        other = self.processes.get(spec.container_id)
        if other is not None:
            self.violated(f"{spec.container_id} starts on {machine} while it runs on {other}")
        self.processes[spec.container_id] = machine
        held = [each.resources for each in here]
        used = (
            sum(x.vcores for x in held),
            sum(x.memory_mib for x in held),
            sum(x.gpu_memory_mib for x in held),
            sum(x.gpus for x in held),
        )
        if not fits_offer(used, capacity):
            self.violated(f"{machine} runs {used} at {spec.unit_id}, which has {capacity}")

    def machine_holds(
        self,
        machine: str,
        hardware: Hardware,
        held: Iterable[tuple[ContainerSpec, tuple[int, ...]]],
    ) -> None:
        """All that runs on a machine fits its cores, memory and GPUs, whatever its partitioning,
        and each has as many GPUs as it requested. ``held``: each process with the GPUs that it
        sees."""
        vcores = memory_mib = 0
        device_mib: Counter[int] = Counter()
        for spec, gpus in held:
            vcores += spec.resources.vcores
            memory_mib += spec.resources.memory_mib
            for index in gpus:
                device_mib[index] += spec.resources.gpu_memory_mib // len(gpus)
            wanted = spec.resources.gpus if spec.resources.gpu_memory_mib else 0
            if len(set(gpus)) != wanted:
                self.violated(f"{spec.container_id} requests {wanted} GPUs, and sees {gpus}")
        if vcores > len(hardware.cores) or memory_mib > hardware.memory_mib:
            self.violated(
                f"{machine} runs {vcores} vcores and {memory_mib} MiB, it has "
                f"{len(hardware.cores)} and {hardware.memory_mib}"
            )
        for gpu in hardware.gpus:
            used_mib = device_mib.pop(gpu.index, 0)
            if used_mib > gpu.memory_mib:
                self.violated(f"{used_mib} MiB are used on {machine}'s GPU {gpu.index}, {gpu}")
        for index in device_mib:
            self.violated(f"{machine} has no GPU {index}, which a container is to use")

    def machine_pins(
        self, machine: str, held_on: Iterable[tuple[ContainerSpec, tuple[int, ...]]]
    ) -> None:
        """See ``shared_cores``."""
        self.found += shared_cores(machine, held_on)

    def process_gone(self, container_id: str) -> None:
        self.processes.pop(container_id, None)

    def after_application(self, name: str, core: AppMasterCore, commands: list[am.Command]) -> None:
        self.checks += 1
        self.elasticity.after_application(name, core, commands)
        try:
            core.check()
        except AssertionError as error:
            self.violated(f"the AppMaster of {name} breaks an invariant: {error}")

    def nothing_left(
        self, core: MasterCore, nodes: Iterable[NodeCore], gone: set[str]
    ) -> list[str]:
        """What keeps the cluster from being as empty as when it began; empty when it is.

        ``gone``: machines that died for good, which the master must have noticed.
        """
        left = [f"{x} still runs on {machine}" for x, machine in self.processes.items()]
        left += [
            f"{app.application_id} is {app.life.state.value}, scheduler {app.scheduler}, "
            f"{len(app.containers)} containers"
            for app in core.master_state.live_applications()
        ]
        for app in core.master_state.applications.values():
            left += [f"{x.container_id} is {x.state.value}" for x in app.containers.values()]
        for node in core.master_state.nodes.values():
            if node.name in gone:
                if node.state is not NodeState.LOST:
                    left.append(f"{node.name} is gone, and still {node.state.value}")
            elif node.state is not NodeState.ALIVE or not node.connected:
                left.append(f"{node.name} is {node.state.value}, connected: {node.connected}")
        for unit_id, row in core.master_state.state.rows.items():
            queue = core.master_state.state.queue(row)
            if queue.free != queue.capacity or queue.waiting_count:
                left.append(f"{unit_id} has not all back: {queue.free} of {queue.capacity}")
            if not core.master_state.state.open[row]:
                left.append(f"{unit_id} is closed")
        for scheduler in core.placement.schedulers.values():
            left += [f"{scheduler.name} keeps the job of {x}" for x in scheduler.jobs]
        left += self.replies.without_reply()
        left += self.departures.held()
        if core.negotiator.parked:
            left.append(f"{len(core.negotiator.parked)} proposals are parked")
        for node_core in nodes:
            known = core.master_state.nodes.get(node_core.name)
            if known is None or known.units != node_core.offers:
                left.append(f"{node_core.name} is partitioned otherwise than the master knows")
            left += [f"{node_core.name} remembers {x}" for x in node_core.containers]
        return left


def _stream_waits_for_cores(pool: list[UnitQueue]) -> bool:
    """Do shared cores and memory collect for a stream somewhere in the pool, so that no batch
    container of the pool starts? They do unless other streams, or drivers, hold its device memory
    or slots."""
    own = (Column.GPU_MEMORY_MIB, Column.SLOTS)
    for queue in pool:
        streams = [
            x
            for x in queue.running.values()
            if x.workload_class is WorkloadClass.STREAM or x.container_id.startswith(DRIVER_PREFIX)
        ]
        for entry in queue.stream_waiting.values():
            asked = [*streams, entry]
            if all(sum(x.demand[d] for x in asked) <= queue.capacity[d] for d in own):
                return True
    return False
