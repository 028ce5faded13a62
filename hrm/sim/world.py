"""One whole run: master, machines and drivers on one network and one clock, and their faults.

Until the horizon, faults happen as the plan states. Then all of them stop: partitions heal, what is
down comes back, what is drained is returned to service. From there on, applications have a
bounded time to end, and the cluster to become as empty as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import NodeName, NodeState
from hrm.core.vocabulary.partitioning import BindingMode
from hrm.runtime.clock import Clock
from hrm.runtime.virtual_disk import VirtualDisk
from hrm.sim.actors import impostor
from hrm.sim.actors.administrator import QueuesAdministrator
from hrm.sim.actors.driver import Driver
from hrm.sim.actors.machine_actor import MachineActor
from hrm.sim.actors.master import MasterProcess
from hrm.sim.actors.pipeline_clients import PipelineClients
from hrm.sim.actors.pool_scaler import PoolScaler
from hrm.sim.actors.scheduler_process import RemoteSchedulerProcess
from hrm.sim.actors.sleepers import MASTER, ProcessClock, Sleepers
from hrm.sim.actors.submitters import Submitters
from hrm.sim.event_format import EventLog
from hrm.sim.faults.capacity import demand_of, how_many
from hrm.sim.faults.executability import could_run, could_start, other_still_fits, together_of
from hrm.sim.faults.labels import meets, nodes_for, requirement_of
from hrm.sim.faults.network import Network
from hrm.sim.faults.plan import KINDS_OF_WORKERS, ApplicationPlan, Plan, TimedFault, source
from hrm.sim.faults.plan_generator import must_run_at_once
from hrm.sim.faults.queues import leave_enough
from hrm.sim.oracle.checks import Oracle

__all__ = ["World"]

QUIET_S = 150.0
"""Besides what all work takes if one thing runs after the other."""
_TURN_S = 60.0
"""For each application with its work, where queues may let only one run after the other."""
EVENTS_MAX = 60_000
_CHECK_PERIOD_S = 0.5
_START_S = 1_000_000.0
_OPERATOR_S = 15.0
_KILLERS = ("executor-crash", "launch-failure", "bad-node")
_SILENT = ("partition", "appmaster-crash", "loss", "delay", "revocation")
_AWAY = (*_SILENT, "master-crash", "slow-disk", "full-master-disk")


class World:
    """One run's world; ``run`` runs it to its end or to the first violation."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = Clock(_START_S)
        self.log = EventLog(self.clock)
        self.sleepers = Sleepers(self.clock, source(plan.seed, "sleepers"))
        self.oracle = Oracle(
            self.sleepers, plan.at_once_max, every_policy="policies" in plan.traits
        )
        self.chance = source(plan.seed, "processes")
        self.killed: set[str] = set()
        self.refused: set[str] = set()
        self.gone: set[str] = set()
        self.faults_stopped = False
        self.network = Network(self.clock, source(plan.seed, "network"), plan.rates, self.sleepers)
        self.begin_s = self.clock.now
        self.submitters = Submitters(self)
        self.pipelines = PipelineClients(self)
        self.administrator = QueuesAdministrator(self)
        self.master = MasterProcess(self)
        self.master.start()
        self.machines = [MachineActor(self, node) for node in plan.nodes]
        for machine in self.machines:
            machine.start_agent()
        self.drivers = [Driver(self, application) for application in plan.applications]
        self.remote_schedulers = [RemoteSchedulerProcess(self, remote) for remote in plan.remotes]
        for outside in self.remote_schedulers:
            outside.start()
        rates = {x: y for x, y in plan.rates.items() if x not in KINDS_OF_WORKERS or plan.pipelines}
        if not plan.faults and not any(rates.values()) and plan.scaling is None:
            self.oracle.quiet_since_s = self.begin_s
        self.pool_scaler = PoolScaler(self)
        self._backup: VirtualDisk | None = None
        self._strikes: dict[str, Callable[[TimedFault], bool]] = {
            "partition": self._partition,
            "node-crash": self._node_crash,
            "node-loss": self._node_loss,
            "agent-crash": self._agent_crash,
            "master-crash": self._master_crash,
            "appmaster-crash": self._appmaster_crash,
            "driver-death": self._driver_death,
            "kill": self._kill,
            "drain": self._drain,
            "slow-disk": self._slow_disk,
            "clock-skew": self._clock_step,
            "rebind": self._rebind,
            "scheduler-crash": self._scheduler_crash,
            "bad-node": self._bad_node,
            "submission-kill": self.submitters.kill,
            "driver-cut": self.submitters.partition,
            "full-disk": self._full_disk,
            "impostor": partial(impostor.strike, self),
            "sleep": self._sleep,
            "hang": self._hang,
            "full-master-disk": self._full_master_disk,
            "lost-store": self._lost_store,
            "old-store": self._old_store,
            "queues-change": self.administrator.strike,
            "revocation": self._revocation,
        }
        for fault in plan.faults:
            self.clock.at(self.begin_s + fault.at_s, self._strike, fault)
            if fault.kind == "old-store":
                self.clock.at(self.begin_s + fault.at_s * fault.pick, self._back_up)

    def run(self) -> None:
        horizon_s = self.begin_s + self.plan.horizon_s
        self._live_until(horizon_s)
        if self.oracle.found:
            return
        self._stop_faults()
        turns = len(self.plan.applications) + len(self.plan.pipelines)
        turns_s = _TURN_S * turns if self.plan.queues else 0.0
        quiet_s = QUIET_S + max(turns_s, self.plan.work_s())
        end_s = self.clock.now + quiet_s
        while not self.oracle.found:
            check_period_s = self.clock.now + _CHECK_PERIOD_S
            self._live_until(check_period_s)
            self.clock.now = max(self.clock.now, check_period_s)
            left = self._left()
            if not left:
                self._check_outcomes()
                return
            if self.clock.now >= end_s:
                self.oracle.violated(
                    f"{quiet_s:.0f} s after the last fault: " + "; ".join(left[:6])
                )

    def clock_of(self, process: str) -> ProcessClock:
        return ProcessClock(self.clock, self.sleepers, process)

    def ask_master(
        self, event: e.DrainRequested | e.RebindRequested | e.KillRequested | e.PriorityRequested
    ) -> None:
        """An operator's call; it gets its time and number when the master takes it in."""
        self.master.call(
            lambda call_id: replace(event, now=self.clock.now, call_id=call_id),
            lambda _result: None,
        )

    def noticed(self, core: MasterCore, command: c.NotifyApplication) -> None:
        """Nothing is refused that a node known to the master could serve."""
        if not isinstance(command.notice, c.RequestRefused):
            return
        units = [unit for node in core.master_state.nodes.values() for unit in node.units]
        driver = next((d for d in self.drivers if d.application_id == command.application_id), None)
        name, could = self.submitters.refused(command.application_id, units)
        if not name:
            name, could = self.pipelines.refused(
                command.application_id, units, command.notice.executor_ids
            )
        if driver is not None:
            is_other = command.notice.resource_profile_id > 0
            nodes = core.master_state.nodes
            known = [nodes[x] for x in self._names_for(driver.plan) if x in nodes]
            # Where the store was lost, an impostor may have been the first to be node-N.
            known = [x for x in known if meets(requirement_of(driver.plan), x.properties)]
            units = [unit for node in known for unit in node.units]
            name, could = driver.name, could_start(driver.plan, units, other=is_other)
        if not name:
            return
        self.refused.add(name)
        # Of a maximum that is a part of the cluster, the master knows no better.
        all_known = len(core.master_state.nodes) >= len(self.plan.nodes)
        by_queue = "than the queue" in command.notice.message and not all_known
        if could and not by_queue and not core.master_state.recovering:
            self.oracle.violated(f"{name} is refused, though it fits what there is")
        if core.master_state.recovering:
            self.oracle.violated(f"{name} is refused before all nodes are back")

    def _names_for(self, application: ApplicationPlan) -> list[NodeName]:
        """The nodes that may run its executors."""
        return [NodeName(node.name) for node in nodes_for(application, self.plan.nodes)]

    def _live_until(self, until_s: float) -> None:
        while not self.oracle.found and self.clock.step(until_s):
            if self.log.events > EVENTS_MAX:
                self.oracle.violated(f"{EVENTS_MAX} events and no end in sight")

    def _left(self) -> list[str]:
        left = [f"driver {d.name} is not done" for d in self.drivers if not d.outcome]
        left += self.submitters.left()
        left += self.pipelines.left()
        if left:
            return left
        if self.master.core is None:
            return ["the master is down"]
        cores = [machine.core for machine in self.machines if machine.core is not None]
        left = self.oracle.nothing_left(self.master.core, cores, self.gone)
        left += [f"{x.name} is not partitioned as at first" for x in self._bound_otherwise()]
        return left + [why for outside in self.remote_schedulers if (why := outside.behind())]

    def _check_outcomes(self) -> None:
        """All have ended; each that failed must have had a reason."""
        self.submitters.check_outcome()
        self.pipelines.check_outcomes()
        injected = self.network.injected
        for driver in self.drivers:
            why = driver.outcome
            excused = (
                why == "succeeded"
                or (why == "the driver died" and injected["driver-death"] > 0)
                or driver.name in self.killed
                or driver.name in self.refused
                or ("failed within" in why and sum(injected[kind] for kind in _KILLERS) > 0)
                or ("no such application" in why and self._could_be_forgotten(driver))
                or ("did not come back within" in why and self._could_be_away(driver))
                or (why == "the master cannot be reached" and self._could_be_away(driver))
                or ("there is no queue" in why and self.could_lack_its_queue())
            )
            if not excused:
                self.oracle.violated(f"{driver.name} fits, and failed without need: {why}")

    def _could_be_forgotten(self, driver: Driver) -> bool:
        """Was its AppMaster away for as long as a master waits for what its store may lack?"""
        injected = self.network.injected
        slept = bool(self.sleepers.slept[driver.name])
        away = any(injected[x] for x in _SILENT)
        return (slept or away) and (injected["lost-store"] + injected["old-store"]) > 0

    def could_lack_its_queue(self) -> bool:
        """May its queue have been removed before it came, or have been lost with a store?"""
        injected = self.network.injected
        is_lost = (injected["lost-store"] + injected["old-store"]) > 0
        return is_lost or self.administrator.has_removed

    def _could_be_away(self, driver: Driver) -> bool:
        """Is there a reason for its AppMaster's absence? That the master slept is none."""
        if self.sleepers.slept[driver.name]:
            return True
        return any(self.network.injected[kind] for kind in _AWAY)

    def _strike(self, fault: TimedFault) -> None:
        if self._strikes[fault.kind](fault):
            self.network.injected[fault.kind] += 1

    def _stop_faults(self) -> None:
        self.faults_stopped = True
        self.oracle.quiet_since_s = self.clock.now
        self.log.emit("world", "faults stop")
        self.network.faults_stopped()
        self.pool_scaler.faults_stopped()
        self.master.disk.slow_until_s = 0.0
        self.master.disk.full_until_s = 0.0
        self._restart_master()
        for machine in self.machines:
            machine.bad_until_s = 0.0
            machine.empty_disk()
            if machine.name not in self.gone:
                machine.come_back(with_disk=True)
                machine.start_agent()
        for driver in self._every_driver():
            driver.start_appmaster_if_begun()
        for outside in self.remote_schedulers:
            outside.start()
        self._undo_drains()
        self._undo_rebindings()
        self._restart_if_refused()

    def _restart_if_refused(self) -> None:
        """An operator restarts a master that refuses nodes, as its message advises."""
        core = self.master.core
        if core is not None and core.master_state.ahead and not self.sleepers.is_asleep(MASTER):
            self.master.crash()
            self.master.start()
        self.clock.after(_OPERATOR_S, self._restart_if_refused)

    def _undo_rebindings(self) -> None:
        """Nodes are partitioned as at first, so that all that fitted then fits again."""
        for machine in self._bound_otherwise():
            binding = machine.plan.binding
            if machine.core is not None and machine.core.binding != binding:
                assert binding is not None
                self._ask_rebind(
                    machine.name, binding.mode, binding.bound_cores, binding.reserve_cores
                )
        self.clock.after(2.0, self._undo_rebindings)

    def _bound_otherwise(self) -> list[MachineActor]:
        return [
            machine
            for machine in self.machines
            if (core := machine.core) is not None
            and core.hardware is not None
            and (core.binding != machine.plan.binding or not core.settled)
        ]

    def _undo_drains(self) -> None:
        """Drains are requested by operators, who repeat the request until it is done."""
        core = self.master.core
        if core is not None:
            nodes = list(core.master_state.nodes.values())
            for name in [node.name for node in nodes if node.state is NodeState.DRAINING]:
                self._ask_drain(name, undo=True)
        self.clock.after(2.0, self._undo_drains)

    def _ask_drain(self, name: NodeName, *, undo: bool, move_within_s: float = 0.0) -> None:
        drain = e.DrainRequested(
            now=0.0, call_id=0, nodes=(name,), undo=undo, move_within_s=move_within_s
        )
        self.ask_master(drain)

    def _ask_rebind(
        self, name: NodeName, mode: BindingMode | None, bound: int | None, reserve: int | None
    ) -> None:
        rebind = e.RebindRequested(
            now=0.0, call_id=0, node=name, mode=mode, bound_cores=bound, reserve_cores=reserve
        )
        self.ask_master(rebind)

    def _machine(self, fault: TimedFault) -> MachineActor:
        return self.machines[int(fault.pick * len(self.machines))]

    def _every_driver(self) -> tuple[Driver, ...]:
        return (*self.drivers, *self.submitters.drivers)

    def _driver(self, fault: TimedFault) -> Driver | None:
        living = [d for d in self._every_driver() if d.appmaster is not None and not d.outcome]
        return living[int(fault.pick * len(living))] if living else None

    def _partition(self, fault: TimedFault) -> bool:
        names = [m.name for m in self.machines] + [d.name for d in self.drivers]
        names += [outside.name for outside in self.remote_schedulers]
        names += [worker.name for worker in self.pipelines.workers()]
        chosen = [names[int(fault.pick * len(names))]]
        if fault.pick > 0.7:
            chosen = [name for name in names if self.chance.random() < 0.5]
        until_s = self.clock.now + 0.3 + 9.0 * fault.size
        for name in chosen:
            self.network.partitioned_until_s[name] = until_s
        self.log.emit("world", f"partition of {','.join(chosen)} for {9.0 * fault.size:.1f} s")
        return bool(chosen)

    def _revocation(self, fault: TimedFault) -> bool:
        """The token of a node, an application or a scheduler is revoked; it gets another later."""
        names = [*(x.name for x in self.machines), *(x.name for x in self.drivers)]
        names += [outside.name for outside in self.remote_schedulers]
        name, for_s = names[int(fault.pick * len(names))], 0.3 + 12.0 * fault.size
        if not self.plan.queues or self.master.core is None or self.sleepers.is_asleep(MASTER):
            return False
        self.log.emit("world", f"revokes the token of {name}, for {for_s:.1f} s")
        self.network.revoke(name, for_s)
        return True

    def _node_crash(self, fault: TimedFault) -> bool:
        machine = self._machine(fault)
        was_up = machine.up
        machine.crash()
        back_s = 0.5 + 8.0 * fault.size
        with_disk = self.chance.random() < 0.6
        self.clock.after(back_s, self._come_back, machine, with_disk)
        return was_up

    def _come_back(self, machine: MachineActor, with_disk: bool) -> None:
        if machine.name not in self.gone | self.pool_scaler.removed:
            machine.come_back(with_disk=with_disk)

    def _node_loss(self, fault: TimedFault) -> bool:
        """A machine fails for good, if all that fits the cluster fits the rest of it."""
        lost = self._machine(fault)
        rest = [m for m in self.machines if m is not lost and m.name not in self.gone]
        every_unit = [unit for machine in self.machines for unit in machine.units]
        units = [unit for machine in rest for unit in machine.units]
        if not rest or not self.submitters.could_do_with(every_unit, units):
            return False
        if not self.pipelines.could_do_with(every_unit, units):
            return False
        if not all(self._could_do_with(driver.plan, rest) for driver in self.drivers):
            return False
        if self.plan.queues and not leave_enough(
            self.plan, self.master.disk.queues, [machine.plan for machine in rest]
        ):
            return False
        self.gone.add(lost.name)
        lost.crash()
        return True

    def _could_do_with(self, application: ApplicationPlan, rest: list[MachineActor]) -> bool:
        """Does the rest of the machines run all of it that all of them do?"""
        names = self._names_for(application)
        every_unit = [
            x for machine in self.machines if machine.name in names for x in machine.units
        ]
        units = [x for machine in rest if machine.name in names for x in machine.units]
        # The master may go on counting a lost GPU as the largest: the rest must have its like.
        wanted = demand_of(application.resources, application.gpus, every_unit)
        least = application.targets[-1][1] if must_run_at_once(self.plan.traits) else 1
        for together in (application.gang_min, together_of(application)):
            could = could_run(application, together, every_unit)
            still = could_run(application, together, units)
            if could and not (still and how_many(wanted, units) >= least):
                return False
        return other_still_fits(application, every_unit, units)

    def _bad_node(self, fault: TimedFault) -> bool:
        """For a while whatever a machine starts fails: its disk is full."""
        machine = self._machine(fault)
        machine.bad_until_s = self.clock.now + 1.0 + 8.0 * fault.size
        self.log.emit(machine.name, f"kills what it starts for {1.0 + 8.0 * fault.size:.1f} s")
        return True

    def _full_disk(self, fault: TimedFault) -> bool:
        """For a while an agent finds too little free space, and starts nothing."""
        machine = self._machine(fault)
        machine.fill_disk(0.5 + 9.0 * fault.size)
        return machine.core is not None

    def _sleep(self, fault: TimedFault) -> bool:
        """Some process is stopped, and goes on later; most often the master, which decides most."""
        runners = self.submitters.runners()
        names = [MASTER] * 3 + [x.name for x in self.machines if x.core is not None]
        names += [x.name for x in self.remote_schedulers if x.up]
        names += [client.name for client in self.submitters.clients]
        names += [x.name for x in self._every_driver() if x.appmaster is not None]
        names += [worker.name for worker in self.pipelines.workers()]
        which, for_s = int(fault.pick * (len(names) + len(runners))), 0.3 + 12.0 * fault.size
        if which >= len(names):
            runner = runners[which - len(names)]
            self.log.emit(runner.name, f"sleeps with its driver for {for_s:.1f} s")
            runner.sleep(for_s)
            return True
        name = names[which]
        if self.sleepers.is_asleep(name) or (name == MASTER and self.master.core is None):
            return False
        self.log.emit(name, f"sleeps for {for_s:.1f} s")
        self.network.sleep(name, for_s)
        return True

    def _hang(self, fault: TimedFault) -> bool:
        """An agent does nothing for a while, and its end of the connection still answers: no stream
        breaks. It may be lost, and forgotten, before it goes on."""
        machine, for_s = self._machine(fault), 0.3 + 24.0 * fault.size
        if machine.core is None or self.sleepers.is_asleep(machine.name):
            return False
        self.log.emit(machine.name, f"hangs for {for_s:.1f} s")
        self.sleepers.sleep(machine.name, for_s)
        return True

    def _agent_crash(self, fault: TimedFault) -> bool:
        machine = self._machine(fault)
        was_up = machine.core is not None
        machine.crash_agent()
        self.clock.after(0.1 + 6.0 * fault.size * fault.size, machine.start_agent)
        return was_up

    def _master_crash(self, fault: TimedFault) -> bool:
        if self.master.core is None:
            return False
        self.master.crash()
        self.clock.after(0.1 + 4.0 * fault.size, self._restart_master)
        return True

    def _back_up(self) -> None:
        self._backup = self.master.disk.copy()

    def _lost_store(self, fault: TimedFault) -> bool:
        """The master's disk is emptied while it is down; it may be configured with queues."""
        return self._change_store(None, fault)

    def _old_store(self, fault: TimedFault) -> bool:
        """An older copy of it takes its place."""
        return self._backup is not None and self._change_store(self._backup, fault)

    def _change_store(self, copy: VirtualDisk | None, fault: TimedFault) -> bool:
        if self.plan.submissions or self.master.core is None:
            return False  # what a store loses of drivers is reported by no other component
        self.master.crash()
        disk = VirtualDisk(self.master.disk.write_s) if copy is None else copy.copy()
        disk.queue_rules = self.plan.queue_rules
        if copy is None and fault.size < 0.5:
            disk.queues = self.plan.queues
        self.master.disk = disk
        self.oracle.store_changed(self.master.disk.applications)
        self.pipelines.store_changed()
        self.clock.after(0.1 + 4.0 * fault.size, self._restart_master)
        return True

    def _restart_master(self) -> None:
        if self.master.core is None:
            self.master.start()

    def _appmaster_crash(self, fault: TimedFault) -> bool:
        driver = self._driver(fault)
        if driver is None:
            return False
        driver.crash_appmaster()
        self.clock.after(0.2 + 3.0 * fault.size, driver.start_appmaster)
        return True

    def _driver_death(self, fault: TimedFault) -> bool:
        driver = self._driver(fault)
        if driver is not None:
            driver.die(with_appmaster=fault.size < 0.5)
        return driver is not None

    def _kill(self, fault: TimedFault) -> bool:
        if fault.size < 0.5 and self.pipelines.kill(fault):
            return True
        driver = self._driver(fault)
        if driver is None or not driver.application_id or self.master.core is None:
            return False
        self.killed.add(driver.name)
        self.ask_master(e.KillRequested(now=0.0, call_id=0, application_id=driver.application_id))
        return True

    def _drain(self, fault: TimedFault) -> bool:
        if self.master.core is None:
            return False
        name = self._machine(fault).name
        move_within_s = 4.0 * fault.size if fault.pick * len(self.machines) % 1.0 < 0.5 else 0.0
        self._ask_drain(name, undo=False, move_within_s=move_within_s)
        self.clock.after(0.5 + 6.0 * fault.size, lambda: self._ask_drain(name, undo=True))
        self.pool_scaler.returned[name] = self.clock.now
        return True

    def _slow_disk(self, fault: TimedFault) -> bool:
        disk = self.master.disk
        disk.slow_until_s = self.clock.now + 0.5 + 3.0 * fault.pick
        disk.slow_write_s = 0.05 + fault.size
        self.log.emit("world", f"each write takes {disk.slow_write_s:.2f} s")
        return True

    def _full_master_disk(self, fault: TimedFault) -> bool:
        """For a while the master can write nothing."""
        self.master.disk.full_until_s = self.clock.now + 0.5 + 9.0 * fault.size
        self.log.emit("world", "the master's disk is full")
        return True

    def _rebind(self, fault: TimedFault) -> bool:
        """An operator has a node partitioned again, possibly without effect, or twice in a row."""
        partitionable = [machine for machine in self.machines if machine.plan.hardware is not None]
        if not partitionable or self.master.core is None:
            return False
        machine = partitionable[int(fault.pick * len(partitionable))]
        mode = self.chance.choice((*BindingMode, None))
        bound = self.chance.choice((None, 1, 2, 3))
        self._ask_rebind(machine.name, mode, bound, self.chance.choice((None, 0, 1, 2)))
        if fault.size < 0.2:
            self._ask_rebind(machine.name, self.chance.choice(list(BindingMode)), bound, None)
        return True

    def _scheduler_crash(self, fault: TimedFault) -> bool:
        """A remote scheduler crashes or hangs, connected: now, or when it next has the lease."""
        if not self.remote_schedulers:
            return False
        outside = self.remote_schedulers[int(fault.pick * len(self.remote_schedulers))]
        back_s = 0.2 + 5.0 * self.chance.random()
        strike = outside.hang if fault.size % 0.5 < 0.2 else partial(outside.crash, back_s)
        if fault.size < 0.5:
            outside.at_lease = strike
        else:
            strike()
        return True

    def _clock_step(self, fault: TimedFault) -> bool:
        machine = self._machine(fault)
        machine.step_clock(4.0 * fault.size - 2.0)
        return True
