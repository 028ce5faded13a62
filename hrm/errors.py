"""The errors that HRM raises on purpose, in one tree.

::

    HrmError
    ├── InvalidRequest          a field is missing, malformed or out of range
    │   └── InvalidConfig       the same, in hrm.toml, the environment or a flag
    ├── NotFound                no such application, container or node
    ├── AlreadyExists           the name belongs to another live client or node
    ├── PermissionDenied        no token, or the wrong one
    │   └── NotAllowed          the token is right, and its identity may not do this
    │       └── NotOwner        the id is another's, whose ownership key the sender does not have
    ├── Unsatisfiable           no node of this cluster could ever serve the request
    ├── LimitReached            a named bound is full: try later, or raise the bound
    │   └── OverLimit           the same, of the caller's identity
    ├── StaleEpoch              the sender follows a master that has been replaced
    ├── Unavailable             the other side cannot be reached (yet)
    │   ├── DiskFull            the master's disk is full: it resumes once there is space
    │   └── TlsFailed           it can, but one side speaks TLS and the other not, or is not trusted
    ├── LaunchFailed            a process could not be started
    │   └── Unsuitable          the node lacks what this application needs
    │       └── Misplaced       the same, of a version that it was chosen for
    ├── PolicyFault             a placement policy failed, or proposed what no policy may
    ├── PluginBuildFailed       the Spark plugin does not compile against this Spark
    ├── InvalidTransition       a bug: an event that the entity's transition table lacks
    ├── IsolationError          hrm.agent.isolation: this driver cannot work on this machine
    ├── TaskFailed              hrm.pipelines: a task ended without a result, which it carries
    └── TrainingFailed          hrm.spark: the training of an archive of classes produced none

The last three are defined where they are raised, in the packages named, and ``OverLimit`` in
``hrm.identity_limits``.

The message is for its reader: what happened, why, and what to type next.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "DiskFull",
    "HrmError",
    "InvalidConfig",
    "InvalidRequest",
    "InvalidTransition",
    "LaunchFailed",
    "LimitReached",
    "Misplaced",
    "NotAllowed",
    "NotFound",
    "NotOwner",
    "PermissionDenied",
    "PluginBuildFailed",
    "PolicyFault",
    "StaleEpoch",
    "TlsFailed",
    "Unavailable",
    "Unsatisfiable",
    "Unsuitable",
]


class HrmError(Exception):
    """Base of all errors that HRM raises on purpose."""

    @property
    def message(self) -> str:
        return str(self)


class InvalidRequest(HrmError):
    """A field is missing, malformed or out of range."""


class InvalidConfig(InvalidRequest):
    """A setting is missing, malformed or out of range."""


class NotFound(HrmError):
    """No such application, container or node."""


class AlreadyExists(HrmError):
    """The name belongs to another live client or node."""


class PermissionDenied(HrmError):
    """No token, or the wrong one."""


class NotAllowed(PermissionDenied):
    """The token is right, and its identity may not do this."""


class NotOwner(NotAllowed):
    """The id is another's, whose ownership key the sender does not have."""


class Unsatisfiable(HrmError):
    """No node of this cluster could ever serve the request."""


class LimitReached(HrmError):
    """A named bound is full."""


class StaleEpoch(HrmError):
    """The sender follows a master that has been replaced."""


class Unavailable(HrmError):
    """The other side cannot be reached (yet)."""


class DiskFull(Unavailable):
    """The master's disk has no space for a write that must come first."""


class TlsFailed(Unavailable):
    """The other side is reachable, but no encrypted connection to it can be made."""


class LaunchFailed(HrmError):
    """A process could not be started."""


class Unsuitable(LaunchFailed):
    """The node lacks what this application needs: its user, its Spark, its Python, or a file."""


class Misplaced(Unsuitable):
    """The node lacks a version that it was chosen for: the master had another state of it."""


class PolicyFault(HrmError):
    """A placement policy raised, or returned no valid placement. Its round counts for nothing."""


class PluginBuildFailed(HrmError):
    """The Spark plugin does not compile against this Spark; the compiler's message is kept."""


class InvalidTransition(HrmError):
    """An event that the entity's transition table lacks: a bug in HRM.

    Attributes:
        history: the entity's latest transitions, oldest first, as text.
    """

    def __init__(self, message: str, history: tuple[str, ...] = ()) -> None:
        self.history = history
        lines = "".join(f"\n  {line}" for line in history)
        super().__init__(f"{message}; history:{lines}" if history else message)
