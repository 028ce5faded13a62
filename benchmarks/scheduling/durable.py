"""Durable commits per second: the master's core with its interpreter and its store, without a wire.

``clients`` applications are active at any time. Each registers (written to SQLite and flushed to
the disk before the reply), attaches, requests all its containers at once, and is done when the
nodes have the orders for all of them; then the next one follows. Events and commands pass through
``hrm.master.interpreter`` as in the daemon, and the journal observes; only the streams end in this
process. A commit is one container for which a node has the order; no message is sent before the
writes that it depends on are on disk. The requests are made before the clock starts.

Between the repetitions, outside the clock, the applications and their containers end, and the
master forgets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import gc
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from benchmarks.scheduling.cells import (
    NODE_SLOTS,
    TASK,
    Cell,
    Sample,
    building,
    requests_of,
    unit_of,
)
from benchmarks.scheduling.cells import node_names as names_of
from hrm import policies
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    EndCause,
    NodeName,
)
from hrm.errors import HrmError
from hrm.master.daemon import tune_python
from hrm.master.interpreter import Interpreter, Outbox
from hrm.master.journal import Journal
from hrm.master.store import Store

__all__ = ["DurableSample", "LocalMaster", "measure_durable", "tuned"]

CLIENTS = 128
SCHEDULERS = 2
JOBS_MAX = 1_000
_LIMIT_S = 120.0


Requests: TypeAlias = tuple[ContainerRequest, ...]
Moment: TypeAlias = tuple[float, float]
"""``time.perf_counter`` and ``time.thread_time``."""


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    """Python as in a master's own process."""
    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    tune_python()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval_s)


class _OrderCounter(Outbox):
    """A node's outbox that is read immediately."""

    def __init__(self, master: LocalMaster, node: NodeName) -> None:
        super().__init__()
        self._master = master
        self._node = node

    def put(self, message: object) -> None:
        if type(message) is c.AssignContainer:
            self._master.assigned(self._node, message)


class _NoticeCounter(Outbox):
    """An application's outbox that is read immediately, and whose notices are discarded."""

    def put(self, message: object) -> None:
        pass


class LocalMaster:
    """A master's core, interpreter and store in this process, with nodes that only receive."""

    def __init__(self, nodes: int, policy: str, store: Path, schedulers: int = SCHEDULERS) -> None:
        self.store = Store(store)
        self.bounds = Bounds(
            node_timeout_s=86_400.0, application_grace_s=86_400.0, ended_applications_kept=0
        )
        epoch = self.store.next_epoch()
        self.journal = Journal(store.with_suffix(".events"), epoch, kept=100_000, keep_s=86_400.0)
        core = MasterCore(
            epoch=epoch,
            policies=[policies.load(policy, index) for index in range(schedulers)],
            bounds=self.bounds,
            now=time.time(),
            watch=self.journal.watch,
        )
        self.interpreter = Interpreter(core, self.store, self.journal)
        self.core = core
        self.granted: list[tuple[NodeName, ContainerId, ApplicationId]] = []
        self._waiting: dict[ApplicationId, tuple[int, asyncio.Future[Moment]]] = {}
        self._keys = itertools.count(1)
        self._sequences = itertools.count(2)
        self._nodes = names_of(nodes)

    async def start(self) -> None:
        """Register all nodes."""
        with building():
            for first in range(0, len(self._nodes), 1_000):
                calls = [self._register(name) for name in self._nodes[first : first + 1_000]]
                await asyncio.gather(*calls)

    async def _register(self, name: NodeName) -> None:
        self.interpreter.node_outboxes[name, "1"] = _OrderCounter(self, name)
        await self.interpreter.call(
            lambda call_id: e.NodeRegistered(
                now=self.interpreter.now(), call_id=call_id, node=name, identity=name,
                incarnation="1", sequence=1, host="127.0.0.1", endpoint="127.0.0.1:1",
                units=(unit_of(name),),
            )
        )  # fmt: skip

    async def register(self, declared: Cell) -> ApplicationId:
        """Register and attach one more application, durably."""
        key = f"key-{next(self._keys)}"
        call, now = self.interpreter.call, self.interpreter.now
        admitted = await call(
            lambda call_id: e.ApplicationRegistered(
                now=now(), call_id=call_id, application_id=ApplicationId(""), submission_key=key,
                name=f"job-{key}", user="bench", declared_class=declared.workload_class,
                gang_min=0,
            )
        )  # fmt: skip
        assert isinstance(admitted, c.ApplicationAdmitted)
        self.interpreter.application_outboxes[admitted.application_id] = _NoticeCounter()
        await call(
            lambda call_id: e.ApplicationAttached(
                now=now(), call_id=call_id, application_id=admitted.application_id, session=1,
                epoch=admitted.epoch,
            )
        )  # fmt: skip
        return admitted.application_id

    def ask(self, app: ApplicationId, requests: Requests) -> asyncio.Future[Moment]:
        """Request containers; the future is done when their nodes have the orders for all, with the
        time of that."""
        done: asyncio.Future[Moment] = asyncio.get_running_loop().create_future()
        self._waiting[app] = (len(requests), done)
        now = self.interpreter.now()
        event = e.ContainersRequested(now=now, application_id=app, requests=requests)
        self.interpreter.submit(event)
        return done

    def assigned(self, node: NodeName, message: c.AssignContainer) -> None:
        """A node got the order for a container."""
        spec = message.spec
        app = spec.application_id
        self.granted.append((node, spec.container_id, app))
        missing, done = self._waiting[app]
        if missing > 1:
            self._waiting[app] = (missing - 1, done)
        else:
            del self._waiting[app]
            if not done.done():  # else its client was cancelled
                done.set_result((time.perf_counter(), time.thread_time()))

    def report(
        self, node: NodeName, container_id: ContainerId, app: ApplicationId, state: ContainerState
    ) -> None:
        """Report a node's state of one container."""
        now = self.interpreter.now()
        ended = state is ContainerState.ENDED
        status = ContainerStatus(
            container_id=container_id, application_id=app,
            executor_id=container_id.rpartition("-")[2], resource_profile_id=0,
            workload_class=self.core.master_state.applications[app].record.workload_class,
            resources=TASK, state=state, node=node, unit_id=unit_of(node).unit_id,
            started_at_s=now,
            end=ContainerEnd(cause=EndCause.EXITED, exit_code=0) if ended else None,
        )  # fmt: skip
        event = e.ContainerReported(
            now=now, node=node, incarnation="1", sequence=next(self._sequences), container=status
        )
        self.interpreter.submit(event)

    async def empty(self) -> None:
        """End all applications, with their containers."""
        apps = dict.fromkeys(app for _, _, app in self.granted)
        for node, container_id, app in self.granted:
            self.report(node, container_id, app, ContainerState.ENDED)
        self.granted.clear()
        for app in apps:
            self.finish(app)
        self.interpreter.submit(e.Ticked(now=self.interpreter.now()))
        await self.store.put_node(self._nodes[0])  # in order: all writes before it are on disk
        self.check()

    def finish(self, app: ApplicationId) -> None:
        """Report the application's success."""
        event = e.ApplicationFinished(
            now=self.interpreter.now(), application_id=app,
            state=ApplicationState.SUCCEEDED, message="",
        )  # fmt: skip
        self.interpreter.submit(event)
        del self.interpreter.application_outboxes[app]

    def check(self) -> None:
        """Raise what stopped the master, if anything did."""
        if self.interpreter.stopped.done():
            raise self.interpreter.stopped.result() or HrmError("the master was stopped")

    def close(self) -> None:
        self.journal.close()
        self.store.close()


class DurableSample:
    """Repetitions of one cell: commits a second, and applications a second."""

    def __init__(self) -> None:
        self.commits = Sample()
        self.applications = Sample()

    def as_json(self) -> dict[str, object]:
        return {"commits": self.commits.as_json(), "applications": self.applications.as_json()}


async def _fill(master: LocalMaster, cell: Cell, jobs: int, clients: int) -> tuple[float, float]:
    """Seconds, and of them processor seconds of this process, for ``jobs`` applications one after
    another from each of ``clients``."""
    requests = [requests_of(cell.tasks) for _ in range(jobs)]
    todo = iter(requests)

    async def client() -> None:
        for wanted in todo:
            app = await master.register(cell)
            await master.ask(app, wanted)

    begun_s, cpu_s = time.perf_counter(), time.process_time()
    async with asyncio.timeout(_LIMIT_S):
        await asyncio.gather(*(client() for _ in range(min(clients, jobs))))
    elapsed_s, used_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    master.check()
    assert len(master.granted) == jobs * cell.tasks
    return elapsed_s, used_s


def _jobs_of(cell: Cell, containers: int) -> int:
    """As many jobs as make about ``containers``, at most half of the cluster's capacity, and not so
    many that small ones take all the time."""
    most = cell.nodes * NODE_SLOTS // 2
    return min(JOBS_MAX, max(1, min(containers, most) // cell.tasks))


async def _measure(
    cells: Sequence[Cell],
    repetitions: int,
    containers: int,
    clients: int,
    profile: cProfile.Profile | None,
) -> dict[Cell, DurableSample]:
    samples = {cell: DurableSample() for cell in cells}
    with tempfile.TemporaryDirectory(prefix="hrm-benchmark-") as directory:
        masters: dict[tuple[int, str], LocalMaster] = {}
        for cell in cells:
            key = (cell.nodes, cell.policy)
            if key not in masters:
                store = Path(directory) / f"{cell.nodes}-{cell.policy}.sqlite"
                masters[key] = LocalMaster(cell.nodes, cell.policy, store)
                await masters[key].start()
        try:
            with tuned():
                for turn in range(repetitions + 1):
                    for cell in cells if turn % 2 else reversed(cells):
                        master = masters[cell.nodes, cell.policy]
                        jobs = _jobs_of(cell, containers if turn else containers // 4)
                        gc.collect()
                        if profile and turn:
                            profile.enable()
                        elapsed_s, used_s = await _fill(master, cell, jobs, clients)
                        if profile and turn:
                            profile.disable()
                        if turn:
                            sample = samples[cell]
                            sample.commits.values.append(jobs * cell.tasks / elapsed_s)
                            sample.commits.cpu_values.append(jobs * cell.tasks / used_s)
                            sample.applications.values.append(jobs / elapsed_s)
                        await master.empty()
        finally:
            for master in masters.values():
                master.close()
    return samples


def measure_durable(
    cells: Sequence[Cell],
    repetitions: int,
    containers: int,
    clients: int = CLIENTS,
    profile: cProfile.Profile | None = None,
) -> dict[Cell, DurableSample]:
    """Every cell ``repetitions`` times, in turns, after one turn that is not counted.

    Each repetition grants about ``containers`` to ``clients`` applications at a time. The store is
    in the directory for temporary files, which should be on a real disk.
    """
    return asyncio.run(_measure(cells, repetitions, containers, clients, profile))
