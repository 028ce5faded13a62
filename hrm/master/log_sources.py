"""Finds the container and the node of a log, for what runs and for what ended long ago.

The core's state covers the applications that the master still holds; the journal covers the others:
which containers started where, and which driver registered an application. A driver that ran on a
node is a container of its submission, named by its attempt; in client mode there is none.
"""

from __future__ import annotations

import re

import grpc
import grpc.aio

from hrm import rpc, tls
from hrm.core.master.entities import Application, Container, Node
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.model import ApplicationId, NodeName, NodeState, is_driver
from hrm.errors import HrmError, NotFound, Unsatisfiable
from hrm.master.interpreter import Interpreter
from hrm.master.journal import Journal

__all__ = ["LogSources", "no_log", "refusal_of"]

_OLDER = "its HRM is older than this master's; upgrade it"
_DRIVER = re.compile(r"driver(?:/([1-9]\d{0,8}))?")


def no_log(node: Node, why: str, what: str = "did not return the log") -> Unsatisfiable:
    """The error of a log that cannot be fetched: a failure of the node, not of the master."""
    return Unsatisfiable(f"the agent of {node.name} {what}: {why}; see hrm nodes")


def refusal_of(node: Node, error: grpc.aio.AioRpcError, what: str) -> HrmError:
    """The master's error for a failed call to the agent of ``node``, which ``what``."""
    details = error.details() or str(error.code())
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return NotFound(f"{node.name}: {details}")
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return rpc.error_from(error, node.endpoint)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return no_log(node, _OLDER, what)
    unsafe = tls.failure(node.endpoint, details)
    return no_log(node, unsafe.message if unsafe else details, what)


class LogSources:
    """Looks them up. Stateless."""

    def __init__(self, master: Interpreter) -> None:
        self._master = master

    @property
    def _master_state(self) -> MasterState:
        return self._master.core.master_state

    async def find(self, application_id: ApplicationId, executor_id: str) -> tuple[str, Node]:
        """The container whose log is requested, and its node. ``executor_id``: as in
        ``ReadLogsRequest``.

        Raises:
            NotFound: there is none, or its node is lost.
        """
        asked = _DRIVER.fullmatch(executor_id)
        latest = asked is not None
        if asked is not None:
            application_id, executor_id = await self._driver(application_id, asked[1] or "")
        container = self._known(application_id, executor_id, latest=latest)
        if container is not None:
            container_id, name = str(container.container_id), container.node or ""
        else:
            journal = await self._journal()
            started = None
            if journal is not None:
                started = await journal.ran(application_id, executor_id, latest=latest)
            if started is None:
                raise self._nothing_ran(application_id, executor_id)
            container_id, name = started.container_id, started.node
        node = self._master_state.nodes.get(NodeName(name))
        if node is None or node.state is NodeState.LOST:
            raise NotFound(f"its logs are on {name}, which is lost")
        return container_id, node

    async def _driver(
        self, application_id: ApplicationId, attempt: str
    ) -> tuple[ApplicationId, str]:
        """The submission with this id, or of this application, and the number of its driver. Where
        ``attempt`` is empty: the driver that registered the application, or "" for the latest."""
        if is_driver(application_id):
            return application_id, attempt
        app = self._master_state.applications.get(application_id)
        if app is not None:
            submission_id, ran = app.record.submission_id, str(app.record.submission_attempt)
            host = app.record.driver_host
        else:
            journal = await self._journal()
            began = await journal.registration(application_id) if journal is not None else None
            if began is None:
                raise self._nothing_ran(application_id, "")
            submission_id, _, ran = began.actor.rpartition("-x")
            host = ""
        if not is_driver(ApplicationId(submission_id)):
            raise NotFound(
                f"the driver of {application_id} ran where it was submitted"
                f"{f', on {host}' if host else ''}, and on no node: its log is what it printed "
                f"there; hrm app logs {application_id} shows an executor's"
            )
        return ApplicationId(submission_id), attempt or ran

    def _known(
        self, application_id: ApplicationId, executor_id: str, *, latest: bool
    ) -> Container | None:
        """From the core's state."""
        app = self._master_state.applications.get(application_id)
        if app is None:
            return None
        containers = [x for x in (*app.containers.values(), *app.ended) if x.node is not None]
        if executor_id:
            containers = [x for x in containers if x.request.executor_id == executor_id]
        containers.sort(key=lambda x: x.requested_at_s, reverse=latest)
        return containers[0] if containers else None

    async def _journal(self) -> Journal | None:
        """The journal, once everything so far is on its disk."""
        journal = self._master.journal
        if journal is not None:
            await journal.flush()
        return journal

    def _nothing_ran(self, application_id: ApplicationId, executor_id: str) -> NotFound:
        app: Application | None = self._master_state.applications.get(application_id)
        if is_driver(application_id):
            which = f"driver {executor_id}" if executor_id else "driver"
            return NotFound(
                f"{application_id} has no {which} that ran on a node; hrm submissions --all lists "
                f"them"
            )
        if app is None:
            return NotFound(f"no such application: {application_id!r}; hrm apps --all lists them")
        which = f"executor {executor_id}" if executor_id else "executor"
        driver = "; its driver's log: --executor driver" if app.record.submission_id else ""
        return NotFound(
            f"{application_id} has no {which} that ran on a node; hrm app show {application_id} "
            f"lists them{driver}"
        )
