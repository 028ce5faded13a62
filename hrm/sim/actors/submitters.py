"""Clients that submit drivers and kill them, from outside the cluster; and the outcomes required.

A client repeats its call until it gets a reply, as users do: a submission has a key, so that
repeating is harmless.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.vocabulary.model import ApplicationId, ResourceUnit, is_driver
from hrm.errors import HrmError
from hrm.sim.faults.capacity import demand_of, next_to, serves
from hrm.sim.faults.plan import SubmissionPlan, TimedFault, source

if TYPE_CHECKING:
    from hrm.sim.actors.machine_actor import MachineActor
    from hrm.sim.actors.runner import Runner, SubmittedDriver
    from hrm.sim.world import World

__all__ = ["Submitters"]

_RETRY_S = 0.4
_SIGNS_A_TIE = 4
_HOLDER_SHARE = 0.25
"""Of kills, how many are aimed at the application that holds the driver."""


class Submitters:
    """``drivers``: the applications of all drivers that were ever started."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = source(world.plan.seed, "submitters")
        self.drivers: list[SubmittedDriver] = []
        self._pending_partitions: list[TimedFault] = []
        self.clients = [_Client(self, plan) for plan in world.plan.submissions]

    def left(self) -> list[str]:
        """What is not done yet."""
        submissions = self.world.master.submissions
        if submissions is None:
            return [f"{client.name} waits for a master" for client in self.clients]
        left = []
        for client in self.clients:
            entry = submissions.core.entries.get(client.submission_id)
            if entry is None:
                left.append(f"{client.name} has not submitted")
            elif not entry.record.state.ended:
                left.append(
                    f"{client.submission_id} is {entry.record.state.value}, its driver number "
                    f"{entry.record.attempt}: {entry.record.message}"
                )
        return left + self.world.oracle.submissions.running_words()

    def check_outcome(self) -> None:
        """All have ended, each as required."""
        submissions = self.world.master.submissions
        if submissions is None:
            return
        checks = self.world.oracle.submissions
        for client in self.clients:
            record = submissions.core.entries[client.submission_id].record
            lapsed = client.plan.tie_s > 0 and record.message.startswith("its client is gone")
            prefix = f"{client.submission_id}#"
            application_killed = any(name.startswith(prefix) for name in self.world.killed)
            checks.check_outcome(
                record,
                self.world.plan.submission_bounds,
                kill_asked=client.kill_asked or application_killed or lapsed,
                kill_acknowledged=client.kill_acknowledged,
                refused=client.submission_id in self.world.refused,
            )

    def states(self) -> dict[str, str]:
        """Of each client's submission; empty where it has none."""
        checks = self.world.oracle.submissions
        return {client.name: checks.state_of(client.submission_id) for client in self.clients}

    def refused(
        self, application_id: ApplicationId, units: Sequence[ResourceUnit]
    ) -> tuple[str, bool]:
        """The submission with this driver, empty if none, and whether these units could run it."""
        submissions = self.world.master.submissions
        entry = None if submissions is None else submissions.core.entries.get(application_id)
        if entry is None:
            return "", False
        demand, first = demand_of(entry.record.resources, 0, units), entry.record.first_executors
        could = any(serves(demand, unit) for unit in units)
        if could and first is not None and first.stated:
            could = next_to(demand, demand_of(first.resources, 0, units), units) >= first.count
        return application_id, could

    def could_do_with(self, units: Sequence[ResourceUnit], fewer: Sequence[ResourceUnit]) -> bool:
        """Does whatever fits ``units`` fit ``fewer``, too? Drivers that wait for executors keep
        their places when a node leaves, which may be too many of those that are left."""
        if any(client.plan.work_s < math.inf for client in self.clients):
            return False
        demands = [demand_of(client.plan.resources, 0, units) for client in self.clients]
        return all(
            any(serves(demand, unit) for unit in fewer)
            for demand in demands
            if any(serves(demand, unit) for unit in units)
        )

    def kill(self, fault: TimedFault) -> bool:
        """A user kills a submission, or the application that holds its driver."""
        living = [x for x in self.clients if x.submission_id and not x.kill_asked]
        if not living:
            return False
        client = living[int(fault.pick * len(living))]
        if fault.size < _HOLDER_SHARE:
            client.kill_holder()
        else:
            client.kill()
        return True

    def partition(self, fault: TimedFault) -> bool:
        """A machine with a driver on it, running or about to, cannot reach the master; where there
        is none, the next one on which a driver starts."""
        there = [
            machine
            for machine in self.world.machines
            if any(is_driver(x.spec.application_id) for x in machine.processes.values())
        ]
        if there:
            self._disconnect(there[int(fault.pick * len(there))], fault)
        else:
            self._pending_partitions.append(fault)
        return bool(there)

    def runners(self) -> list[Runner]:
        """Those that are at work, on whatever machine."""
        processes = (p for machine in self.world.machines for p in machine.processes.values())
        return [process.runner for process in processes if process.runner is not None]

    def driver_began(self, machine: MachineActor) -> None:
        if self._pending_partitions and not self.world.faults_stopped:
            fault = self._pending_partitions.pop()
            self.world.network.injected[fault.kind] += 1
            self.world.clock.after(2.0 * fault.pick, self._disconnect, machine, fault)

    def _disconnect(self, machine: MachineActor, fault: TimedFault) -> None:
        world = self.world
        if world.faults_stopped:
            return
        for_s = 5.0 + 10.0 * fault.size
        world.network.partitioned_until_s[machine.name] = world.clock.now + for_s
        world.log.emit("world", f"{machine.name} is cut off with its driver for {for_s:.1f} s")


class _Client:
    """One client. ``submission_id``: once it has it. ``kill_acknowledged``: the kill is done."""

    def __init__(self, submitters: Submitters, plan: SubmissionPlan) -> None:
        self.submitters = submitters
        self.plan = plan
        self.name = plan.name
        self.submission_id = ""
        self.kill_asked = False
        self.kill_acknowledged = False
        self._gone_at_s = math.inf
        self._world = submitters.world
        self._world.clock.after(plan.start_s, self._submit)

    def _submit(self) -> None:
        if self.submission_id:
            return
        self._world.network.call(self.name, self._serve_submission, self._submitted)
        if self._world.network.happens("duplicate"):
            self._world.network.call(self.name, self._serve_submission, self._submitted)

    def _serve_submission(self, reply: Any) -> None:
        if self._world.master.submissions is not None:
            self._world.master.submissions.submit(f"key-of-{self.name}", self.plan, reply)

    def _submitted(self, result: Any) -> None:
        if isinstance(result, m.Committed):
            previous = self.submission_id
            if previous and previous != result.submission_id:
                self._world.oracle.violated(
                    f"{self.name} submitted once, and got {previous} and {result.submission_id}"
                )
            if not self.submission_id and self.plan.tie_s:
                self._gone_at_s = self._world.clock.now + self.plan.client_life_s
                self._renew()
            self.submission_id = result.submission_id
        elif not self.submission_id:
            self._world.clock.after(_RETRY_S, self._submit)

    def _renew(self) -> None:
        """A sign to the master, and the next later, as long as this client is there."""
        if self._world.clock.now >= self._gone_at_s:
            self._world.log.emit("world", f"{self.name} goes away")
            return

        def serve(_reply: Any) -> None:
            submissions = self._world.master.submissions
            if submissions is not None and self.submission_id:
                submissions.renew_tie(self.plan, self.submission_id)

        self._world.network.call(self.name, serve, lambda _result: None)
        self._world.clock.after(self.plan.tie_s / _SIGNS_A_TIE, self._renew)

    def kill(self) -> None:
        """Repeat until it is answered."""
        if self.kill_acknowledged:
            return
        self.kill_asked = True

        def serve(reply: Any) -> None:
            submissions = self._world.master.submissions
            if submissions is not None:
                submissions.kill(self.submission_id, reply)

        def replied(result: Any) -> None:
            if isinstance(result, m.Committed):
                self.kill_acknowledged = True
            elif not isinstance(result, HrmError):
                self._world.clock.after(_RETRY_S, self.kill)

        self._world.network.call(self.name, serve, replied)

    def kill_holder(self) -> None:
        self.kill_asked = True
        application_id = ApplicationId(self.submission_id)
        kill = e.KillRequested(now=0.0, call_id=0, application_id=application_id)
        self._world.ask_master(kill)
