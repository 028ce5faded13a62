"""The parent of a submitted driver on a node, in virtual time, and the driver itself.

It does what ``hrm.agent.drivers.driver_runner`` does: takes its time over files, requests a lease,
starts the driver, renews the lease, kills the driver when the lease is refused or over, lets the
AppMaster sign off and reports the driver as gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.submission.driver_lease import DriverLease, LeaseLimits, LeaseState
from hrm.core.vocabulary.model import ApplicationId, ContainerSpec
from hrm.errors import Unavailable
from hrm.sim.actors.driver import Driver
from hrm.sim.actors.submission_actor import ownership_key, plan_of
from hrm.sim.faults.plan import ApplicationPlan, SubmissionPlan

if TYPE_CHECKING:
    from hrm.sim.actors.machine_actor import MachineActor

__all__ = ["Runner", "SubmittedDriver"]

FAILED = 1
KILLED = 137
_FILES_MAX_S = 3.0
_LIMITS = LeaseLimits(
    call_timeout_s=1.0,
    call_timeout_min_s=0.0,
    retry_s=0.3,
    start_limit_s=15.0,
    late_s=1.0 + _FILES_MAX_S + 1.0,
)
_LAST_LIFE = (1.0, 0)
_LAST_S = 2.0
"""No driver that starts after the faults lives longer by itself: where they come one by one, all
have their turn."""


class Runner:
    """One runner. ``exit_code``: the driver's, once there was one and it has ended."""

    def __init__(
        self, machine: MachineActor, spec: ContainerSpec, exited: Callable[[int], None]
    ) -> None:
        self.submission_id = str(spec.application_id)
        self.attempt = int(spec.executor_id)
        self.name = f"{self.submission_id}#{self.attempt}"
        self.exit_code: int | None = None
        self.machine = machine
        self.world = machine.world
        self._chance = machine.world.submitters.chance
        self.process = f"runner of {self.name}"
        self._exited = exited
        self._over = False
        self._driver: SubmittedDriver | None = None
        self._drives = False
        self._lease = DriverLease(machine.clock_s(), _LIMITS)
        wanted = plan_of(spec.launch.driver) if spec.launch.driver else ""
        self._plan: SubmissionPlan | None = next(
            (plan for plan in self.world.plan.submissions if plan.name == wanted), None
        )

    def begin(self) -> None:
        if self._plan is None:
            self.world.oracle.violated(f"{self.name} is started, and nothing says what to run")
            return
        files_s = self._chance.choice((0.01, self._chance.uniform(0.05, 0.5), _FILES_MAX_S))
        self._after(files_s, self._ask)

    def vanish(self, exit_code: int | None) -> None:
        """Its process is gone, and the driver with it; None: its exit was not seen."""
        if self._over:
            return
        self._over = True
        self.world.sleepers.died(self.process)
        stopped = exit_code is not None and self._drives and self.exit_code is None
        self._driver_ends(exit_code, KILLED if exit_code is None else exit_code)
        if stopped and self._chance.random() < 0.5:
            self._call(True, lambda _result: None)

    def _after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self.machine.after(delay_s, self.world.sleepers.ring, self.process, action, *arguments)

    def sleep(self, for_s: float) -> None:
        """It is stopped, and with it its driver and the AppMaster of that."""
        world = self.world
        if self._over or world.sleepers.is_asleep(self.process):
            return
        if self._drives and self.exit_code is None:
            world.oracle.submissions.driver_sleeps(self.submission_id, self.attempt)
        world.clock.after(for_s, self._wake)
        world.network.sleep(self.process, for_s)
        if self._driver is not None and not world.sleepers.is_asleep(self._driver.name):
            world.network.sleep(self._driver.name, for_s)

    def _wake(self) -> None:
        """First it checks whether its lease is over: the time it slept counts."""
        ran_out = self._lease.has_run_out(self.machine.clock_s())
        if ran_out and not self._over and self.exit_code is None:
            self._kill("it slept, and its lease is over")
        self.world.oracle.submissions.driver_wakes(self.submission_id, self.attempt)

    def _ask(self) -> None:
        """Go on with the lease: request it, or end what it no longer covers."""
        if self._over or self.exit_code is not None:
            return
        asked = self._lease.step(self.machine.clock_s())
        if asked is None:
            self._follow()
            return

        def replied(result: Any) -> None:
            if not self._over and self.exit_code is None:
                self._replied(asked.number, result)

        self._call(False, replied)
        if self.world.network.happens("duplicate"):
            self._call(False, replied)
        self._after(asked.timeout_s, replied, Unavailable("no answer"))

    def _call(self, gone: bool, replied: Callable[[Any], None]) -> None:
        master = self.world.master

        def serve(reply: Callable[[Any], None]) -> None:
            if master.submissions is not None and self._plan is not None:
                key = ownership_key(self._plan)
                master.submissions.lease(self.submission_id, self.attempt, gone, key, reply)

        self.world.network.call(self.machine.name, serve, replied, process=self.process)

    def _replied(self, number: int, result: Any) -> None:
        lease, now = self._lease, self.machine.clock_s()
        if not lease.awaits(number):
            return
        if isinstance(result, m.GrantLease):
            lease.granted(number, lease_s=result.lease_s, renew_s=result.renew_s, now=now)
        else:
            lease.failed(number, result, now)
        self._follow()

    def _follow(self) -> None:
        """Act on the lease's state."""
        lease = self._lease
        if lease.state is LeaseState.HELD and not self._drives:
            self._start()
        elif lease.state is LeaseState.OVER:
            if not self._drives:
                self._exited(FAILED)
            elif lease.error is not None:
                self._kill(lease.error.message)
            return
        due_s = lease.due_s()
        if due_s is not None:
            self._after(max(0.0, due_s - self.machine.clock_s()), self._ask)

    def _start(self) -> None:
        assert self._plan is not None
        self._drives = True
        world, plan = self.world, self._plan
        world.log.emit(self.name, f"driver runs on {self.machine.name}")
        world.oracle.submissions.driver_began(
            self.submission_id, self.attempt, self.machine.name, supervised=plan.supervise
        )
        world.submitters.driver_began(self.machine)
        number = self.attempt - 1
        run_s, code = plan.lives[number] if number < len(plan.lives) else _LAST_LIFE
        if world.faults_stopped:
            run_s = min(run_s, _LAST_S)
        if math.isinf(plan.work_s):
            self._after(run_s, self.ended, code)
        if world.network.happens("submitted-crash"):
            crash = self._chance.choice((self.ended, self._dies_with_runner))
            code = self._chance.choice((1, KILLED))
            self._after(self._chance.uniform(0.0, 5.0), crash, code)
        if plan.executors:
            self._driver = SubmittedDriver(self, plan)
            world.submitters.drivers.append(self._driver)

    def _dies_with_runner(self, _code: int) -> None:
        """Kill -9 of the runner: the driver ends with it, and is not reported as gone."""
        if not self._over and self.exit_code is None:
            self._driver_ends(KILLED, KILLED)
            self._exited(KILLED)

    def _kill(self, why: str) -> None:
        self.world.log.emit(self.name, f"driver is killed: {why}")
        self.ended(KILLED)

    def ended(self, code: int) -> None:
        """The driver ends; the runner, when its AppMaster has had time to sign off."""
        if self._over or self.exit_code is not None:
            return
        self._driver_ends(code, code)
        self._after(self._chance.uniform(0.01, 0.5), self._give_back)

    def _driver_ends(self, exit_code: int | None, code: int) -> None:
        if not self._drives or self.exit_code is not None:
            return
        self.exit_code = code
        self.world.log.emit(self.name, f"driver ends with {exit_code}")
        self.world.oracle.submissions.driver_ended(self.submission_id, self.attempt, exit_code)
        if self._driver is not None and not self._driver.outcome:
            if code == 0:
                self._driver.end()
            else:
                self._driver.die(with_appmaster=self._chance.random() < 0.5)

    def _give_back(self) -> None:
        if self._over:
            return

        def leave(_result: Any) -> None:
            if not self._over and self.exit_code is not None:
                self._exited(self.exit_code)

        self._call(True, leave)
        self._after(_LIMITS.call_timeout_s, leave, None)


class SubmittedDriver(Driver):
    """The application of one submitted driver. What ends it ends the driver's process, too."""

    def __init__(self, runner: Runner, plan: SubmissionPlan) -> None:
        self._runner = runner
        application = ApplicationPlan(
            name=runner.name,
            start_s=0.05,
            resources=plan.executor,
            targets=((0.0, plan.executors),),
            work_s=plan.work_s,
            gang_min=plan.gang_min,
        )
        super().__init__(runner.world, application)
        self.client = runner.machine.name

    def registration(self, application_id: ApplicationId) -> e.ApplicationRegistered:
        runner = self._runner
        return replace(
            super().registration(application_id),
            submission_id=runner.submission_id,
            submission_attempt=runner.attempt,
        )

    def end(self) -> None:
        super().end()
        self._runner.ended(0)

    def failed(self, why: str) -> None:
        super().failed(why)
        self._runner.ended(FAILED)

    def die(self, *, with_appmaster: bool) -> None:
        super().die(with_appmaster=with_appmaster)
        self._runner.ended(KILLED)
