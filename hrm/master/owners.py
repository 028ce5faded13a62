"""Whose an application, a submission or a file is, and what others see of it.

All see names and states of all. What an application logs and reads, where it runs, and why it
failed, may quote data: it is for its user, for who administers its queue, and for operators. Of
applications that the master has forgotten it does not know the user, so their logs are for
operators alone.
"""

from __future__ import annotations

from hrm.core.tenancy.queue_spec import QueueName, parent_of
from hrm.core.vocabulary.model import ApplicationId, NodeName, is_driver
from hrm.errors import NotAllowed, NotFound
from hrm.identity.caller import caller, check_user, is_own
from hrm.identity.roles import AccessRole, IdentityKind
from hrm.master.interpreter import Interpreter
from hrm.master.submission_interpreter import Submissions
from hrm.v1 import admin_pb2, events_pb2, submission_pb2

__all__ = ["Owners", "hide_application", "hide_event", "hide_submission"]

_AT_NODE = "node "
"""How the actor of an event begins that is a node."""

_APPLICATION = (
    "class_evidence", "driver_host", "web_url", "driver_start", "message", "containers", "progress",
    "run_times", "input_bytes", "training", "executors_max",
)  # fmt: skip


class Owners:
    """Looks them up for the caller of the method that is being served. Stateless."""

    def __init__(self, master: Interpreter, submissions: Submissions) -> None:
        self._master = master
        self._submissions = submissions.core

    def is_own(self, application_id: str) -> bool:
        """May the caller see all of this application, or submission?"""
        if caller().role.rules:
            return True
        owner = self._of(application_id)
        return owner is not None and (is_own(*owner) or self._administers(application_id))

    def check(self, application_id: str) -> None:
        """Check that the caller may act on it.

        Raises:
            NotAllowed: it may not.
            NotFound: the master does not know it, and so not whose it is; never for operators.
        """
        if caller().role.rules:
            return
        owner = self._of(application_id)
        if owner is None:
            raise NotFound(
                f"the master holds no application {application_id!r}; hrm apps --all lists them, "
                f"and operators also see what it has forgotten"
            )
        if not self._administers(application_id):
            check_user(application_id, *owner)

    def sees_times(self, name: QueueName) -> bool:
        """May the caller see how long tasks of a queue's applications take, whosever they are?"""
        return caller().role.rules or self._administers_queue(name)

    def check_queue(self, name: QueueName) -> None:
        """Check that the caller may create, change or remove a queue: one that is below a queue
        that it administers. What that one itself may have is decided above it.

        Raises:
            NotAllowed: it may not.
        """
        identity, parent = caller(), parent_of(name)
        if identity.role.rules:
            return
        tree = self._master.core.queues.tree
        if parent is None or not tree.may_administer(parent, identity.name):
            raise NotAllowed(
                f"{identity} administers no queue above {name}; an administrator of one "
                f"(hrm queue show {parent or name}) or an operator may do this"
            )

    def _administers(self, application_id: str) -> bool:
        """Is it in a queue that the caller administers?"""
        app = self._master.core.master_state.applications.get(ApplicationId(application_id))
        return app is not None and self._administers_queue(QueueName(app.record.queue))

    def _administers_queue(self, name: QueueName) -> bool:
        identity, tree = caller(), self._master.core.queues.tree
        if identity.kind not in (IdentityKind.USER, IdentityKind.SERVICE):
            return False
        return name in tree.specs and tree.may_administer(name, identity.name)

    def check_file(self, sha256: str) -> None:
        """Check that a file belongs to something of the caller's: of a user, its live applications
        and submissions; of a node, what runs there.

        Raises:
            NotFound: it does not.
        """
        if caller().role.rules or sha256 in self._files():
            return
        raise NotFound(f"no file {sha256[:80]!r} of yours is here; submit it again")

    def user_of(self, scope: str) -> str | None:
        """The user of a live application or submission, which calls with a token of its own; None:
        there is no such application, so perhaps this master has lost its record.

        Raises:
            NotFound: it is over.
        """
        entry = self._submissions.entries.get(scope)
        app = self._master.core.master_state.applications.get(ApplicationId(scope))
        record = entry.record if entry is not None else app.record if app is not None else None
        if record is None and not is_driver(ApplicationId(scope)):
            return None
        if record is None or record.state.ended:
            raise NotFound(f"the token of {scope} has ended with it; submit again")
        return record.user

    def has_ended(self, scope: str) -> bool:
        """Has this application, or submission, with a token of its own ended?"""
        try:
            self.user_of(scope)
        except NotFound:
            return True
        return False

    def _of(self, application_id: str) -> tuple[str, str, str] | None:
        """Its user, and the scopes of tokens that speak for it."""
        entry = self._submissions.entries.get(application_id)
        if entry is not None:
            return entry.record.user, application_id, ""
        app = self._master.core.master_state.applications.get(ApplicationId(application_id))
        if app is None:
            return None
        return app.record.user, application_id, app.record.submission_id

    def _files(self) -> set[str]:
        """Hashes of what the caller may fetch."""
        state, identity = self._master.core.master_state, caller()
        submissions = self._submissions.entries
        if identity.role is AccessRole.AGENT:
            node = state.nodes.get(NodeName(identity.name))
            there = {x.application_id for x in node.containers.values()} if node else set()
            apps = [state.applications[x] for x in there if x in state.applications]
            entries = [submissions[x] for x in there if x in submissions]
        else:
            apps = [
                x
                for x in state.live_applications()
                if is_own(x.record.user, x.application_id, x.record.submission_id)
            ]
            entries = [x for k, x in submissions.items() if is_own(x.record.user, k)]
        found = {file.sha256 for app in apps for file in app.launch.files}
        return found.union(*(x.record.files for x in entries))


def hide_application(message: admin_pb2.Application) -> None:
    """Leave what all may see."""
    for field in _APPLICATION:
        message.ClearField(field)
    message.hidden = True


def hide_submission(message: submission_pb2.Submission) -> None:
    """Leave what all may see."""
    for field in ("message", "server_address", "node"):
        message.ClearField(field)
    message.exit_code = -1


def hide_event(message: events_pb2.StateEvent) -> None:
    """Leave what all may see of an event of another's application. Who brought it about is left
    but where that is a node."""
    for field in ("reason", "node", "cause"):
        message.ClearField(field)
    message.exit_code = -1
    if message.actor.startswith(_AT_NODE):
        message.actor = "a node"
