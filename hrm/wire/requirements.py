"""Properties of nodes and what applications require of them: protobuf to core types and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hrm.core.vocabulary.node_requirement import (
    LABEL_PATTERN,
    NodeProperties,
    NodeRequirement,
    Runtime,
    excluding,
)
from hrm.errors import InvalidRequest
from hrm.v1 import common_pb2 as pb
from hrm.wire import codec

__all__ = [
    "DRIVER_LABEL",
    "LABEL",
    "SUBMITTED_SPARK",
    "driver_requirement",
    "executor_requirement",
    "from_properties",
    "from_requirement",
    "from_runtime",
    "to_hosts",
    "to_labels",
    "to_properties",
    "to_requirement",
    "to_runtimes",
]

LABEL = "spark.hrm.node.label"
DRIVER_LABEL = "spark.hrm.driver.node.label"
SUBMITTED_SPARK = "spark.hrm.submit.spark.version"
_LABEL = re.compile(LABEL_PATTERN)


def from_runtime(value: Runtime) -> pb.SparkRuntime:
    return pb.SparkRuntime(
        spark=value.spark, scala=value.scala, java=value.java, python=value.python
    )


def to_runtimes(messages: Iterable[pb.SparkRuntime]) -> tuple[Runtime, ...] | None:
    """None where there is none: the node has not said."""
    found = tuple(
        Runtime(
            spark=codec.to_text(x.spark, "spark"),
            scala=codec.to_text(x.scala, "scala"),
            java=codec.to_text(x.java, "java"),
            python=codec.to_text(x.python, "python"),
        )
        for x in messages
    )
    return found or None


def to_labels(labels: Iterable[str]) -> frozenset[str]:
    """
    Raises:
        InvalidRequest: one is no label.
    """
    found = frozenset(labels)
    for label in sorted(found):
        if _LABEL.fullmatch(label) is None:
            raise InvalidRequest(
                f"{label[:80]!r} is no label of a node: write name or name=value, of letters, "
                f"digits, '.', '_', '-' and '/'"
            )
    return found


def to_hosts(hosts: Iterable[str]) -> frozenset[str]:
    return frozenset(codec.to_text(x, "hosts") for x in hosts)


def from_properties(value: NodeProperties) -> pb.NodeProperties:
    return pb.NodeProperties(
        host=value.host,
        labels=sorted(value.labels),
        runtimes=[from_runtime(x) for x in value.runtimes or ()],
        platform=value.platform,
    )


def to_properties(message: pb.NodeProperties) -> NodeProperties:
    return NodeProperties(
        host=message.host,
        labels=to_labels(message.labels),
        runtimes=to_runtimes(message.runtimes),
        platform=message.platform,
    )


def from_requirement(value: NodeRequirement | None) -> pb.NodeRequirement | None:
    if value is None:
        return None
    return pb.NodeRequirement(
        labels=sorted(value.labels),
        spark=value.spark,
        scala=value.scala,
        java=value.java,
        python=value.python,
        excluded_hosts=sorted(value.excluded_hosts),
    )


def to_requirement(message: pb.NodeRequirement) -> NodeRequirement | None:
    """None where nothing is required.

    Raises:
        InvalidRequest: a field is malformed.
    """
    requires = NodeRequirement(
        labels=to_labels(message.labels),
        spark=codec.to_text(message.spark, "spark"),
        scala=codec.to_text(message.scala, "scala"),
        java=codec.to_text(message.java, "java"),
        python=codec.to_text(message.python, "python"),
    )
    return excluding(requires, to_hosts(message.excluded_hosts))


def driver_requirement(conf: Mapping[str, str]) -> NodeRequirement | None:
    """What the node of a submitted driver with these settings must meet.

    Raises:
        InvalidRequest: a label is none.
    """
    return _of_settings(conf, DRIVER_LABEL)


def executor_requirement(conf: Mapping[str, str]) -> NodeRequirement | None:
    """What the nodes of its executors must meet, as far as the settings say. Its driver states it
    again when it registers.

    Raises:
        InvalidRequest: a label is none.
    """
    return _of_settings(conf, LABEL)


def _of_settings(conf: Mapping[str, str], label: str) -> NodeRequirement | None:
    labels = to_labels(x.strip() for x in conf.get(label, "").split(",") if x.strip())
    spark = codec.to_text(conf.get(SUBMITTED_SPARK, "").strip(), SUBMITTED_SPARK)
    return excluding(NodeRequirement(labels=labels, spark=spark), frozenset())
