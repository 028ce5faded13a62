"""Which nodes an application's containers may be placed on at all: a hard restriction.

A node has *properties*: the host it is on, labels that its administrator gave it, and the versions
of Spark, Scala, Java and Python that it can run. An application may have a *requirement*: labels
that a node must have, versions that it must run, hosts that Spark has excluded
(``spark.excludeOnFailure``). A node that does not meet it gets none of the application's
containers, whatever else is free: unlike an exclusion after failures
(``hrm.core.master.exclusion``), a requirement is never relaxed where no other node is left.

One function, ``unmet``, decides; schedulers, the negotiator, the master's admission and the node
itself (``hrm.spark.launch``) use it. A property that a node does not report is not held against it:
its own check at the start of the container is then the last.

Limits: labels match as whole texts; there are no expressions, and no preferences. A requirement is
looked at when a container is placed or waits: one that runs goes on if its node changes.
"""

from __future__ import annotations

from dataclasses import replace

from hrm.core.vocabulary.quick import record

__all__ = [
    "LABEL_PATTERN",
    "UNKNOWN_PROPERTIES",
    "NodeProperties",
    "NodeRequirement",
    "Runtime",
    "among",
    "excluding",
    "lasting",
    "suits",
    "unmet",
]

LABEL_PATTERN = r"^[A-Za-z0-9._/-]+(=[A-Za-z0-9._/-]*)?$"
_NONE: frozenset[str] = frozenset()
_NAMED_MAX = 5


@record
class Runtime:
    """One Spark installation of a node, and what it runs with. Empty: not known.

    ``scala`` and ``python`` are the first two numbers of the version ("2.13", "3.11"), ``java`` is
    the first ("17").
    """

    spark: str
    scala: str = ""
    java: str = ""
    python: str = ""

    def __str__(self) -> str:
        return _versions(self.spark, self.scala, self.java, self.python)


@record
class NodeProperties:
    """What is known of a node. ``runtimes``: its Spark installations, the default one first; None:
    it does not report any, and may have some. ``platform``: the group of like nodes that it is in;
    applications cannot require one."""

    host: str = ""
    labels: frozenset[str] = _NONE
    runtimes: tuple[Runtime, ...] | None = None
    platform: str = ""


UNKNOWN_PROPERTIES = NodeProperties()


@record
class NodeRequirement:
    """What a node must meet; the empty value of a field requires nothing. One Spark installation of
    the node must have all the versions.

    ``excluded_hosts``: hosts, or names of nodes, that get nothing for now.
    """

    labels: frozenset[str] = _NONE
    spark: str = ""
    scala: str = ""
    java: str = ""
    python: str = ""
    excluded_hosts: frozenset[str] = _NONE

    def __str__(self) -> str:
        """What a node must have; nothing of excluded hosts."""
        words = [f"the label {label}" for label in sorted(self.labels)]
        versions = _versions(self.spark, self.scala, self.java, self.python)
        return " and ".join([*words, *([versions] if versions else [])])


def suits(requirement: NodeRequirement, properties: NodeProperties) -> bool:
    """May containers with this requirement be placed on a node with these properties?"""
    if not requirement.labels <= properties.labels:
        return False
    if requirement.excluded_hosts and properties.host in requirement.excluded_hosts:
        return False
    runtimes = properties.runtimes
    if runtimes is None or not _names_versions(requirement):
        return True
    return any(runs(requirement, runtime) for runtime in runtimes)


def unmet(requirement: NodeRequirement | None, properties: NodeProperties) -> str:
    """Why a node does not suit, as words after its name; empty if it does."""
    if requirement is None or suits(requirement, properties):
        return ""
    lacking = sorted(requirement.labels - properties.labels)
    if lacking:
        there = ", ".join(sorted(properties.labels)[:_NAMED_MAX]) or "none"
        return f"has not the label {' nor '.join(lacking)} (its labels: {there})"
    if properties.host in requirement.excluded_hosts:
        return f"is on {properties.host}, which Spark excludes (spark.excludeOnFailure)"
    there = " or ".join(map(str, (properties.runtimes or ())[:_NAMED_MAX]))
    return f"has {there or 'no Spark'}"


def runs(requirement: NodeRequirement, runtime: Runtime) -> bool:
    """Has this installation the versions, as far as they are known?"""
    if requirement.spark and runtime.spark != requirement.spark:
        return False
    return (
        _agree(requirement.scala, runtime.scala)
        and _agree(requirement.java, runtime.java)
        and _agree(requirement.python, runtime.python)
    )


def excluding(requirement: NodeRequirement | None, hosts: frozenset[str]) -> NodeRequirement | None:
    """The same requirement with these hosts excluded, and no others; None: nothing is required."""
    now = replace(requirement or _NOTHING, excluded_hosts=hosts)
    return None if now == _NOTHING else now


def among(requirement: NodeRequirement | None, hosts: frozenset[str]) -> NodeRequirement | None:
    """The same for a cluster on these hosts alone: others need not be excluded."""
    if requirement is None or requirement.excluded_hosts <= hosts:
        return requirement
    return excluding(requirement, requirement.excluded_hosts & hosts)


def lasting(requirement: NodeRequirement | None) -> NodeRequirement | None:
    """What is required whatever Spark excludes for now."""
    if requirement is None or not requirement.excluded_hosts:
        return requirement
    return excluding(requirement, _NONE)


_NOTHING = NodeRequirement()


def _names_versions(requirement: NodeRequirement) -> bool:
    return bool(requirement.spark or requirement.scala or requirement.java or requirement.python)


def _agree(wanted: str, there: str) -> bool:
    return not wanted or not there or wanted == there


def _versions(spark: str, scala: str, java: str, python: str) -> str:
    found = {"Spark": spark, "Scala": scala, "Java": java, "Python": python}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)
