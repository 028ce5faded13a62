"""Configuration directories and class path that a node's executors and drivers have from the node.

Spark's launcher gives every process that it starts four things: the directory of Spark's settings
(hive-site.xml, log4j2.properties, metrics.properties), Hadoop's, YARN's, and what
``SPARK_DIST_CLASSPATH`` names, which a Spark without Hadoop's classes cannot do without. Executors
are not started by that launcher here, and drivers on nodes start with HRM's settings directory, so
both take from here what it would have given them.

They follow Spark's jars on the class path, in front of which the launcher puts the first: an
archive of Spark's classes requires the jars to be first (``hrm.spark.archive``), and no file of a
settings directory is also in Spark's jars.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hrm.errors import InvalidConfig
from hrm.spark.conf import conf_dir

__all__ = ["DIST_CLASSPATH", "HADOOP_VARIABLES", "NO_CONF", "NodeConf", "node_conf"]

HADOOP_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
DIST_CLASSPATH = "SPARK_DIST_CLASSPATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConf:
    """``spark_conf_dir``: of Spark's settings, never HRM's own. ``variables``: those of
    ``HADOOP_VARIABLES`` and ``DIST_CLASSPATH`` that the node has."""

    spark_conf_dir: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def class_path(self, environment: Mapping[str, str]) -> list[str]:
        """The entries after Spark's jars, for a process whose application sets ``environment``."""
        names = (*HADOOP_VARIABLES, DIST_CLASSPATH)
        found = [environment.get(name) or self.variables.get(name, "") for name in names]
        directory = [] if self.spark_conf_dir is None else [f"{self.spark_conf_dir}/"]
        return [*directory, *filter(None, found)]

    def environment(self) -> dict[str, str]:
        """Variables for programs that a process starts, such as Python workers."""
        return {name: self.variables[name] for name in HADOOP_VARIABLES if name in self.variables}


NO_CONF = NodeConf()


def node_conf(
    spark_home: Path,
    *,
    spark_conf_dir: Path | None = None,
    hadoop_conf_dir: Path | None = None,
    yarn_conf_dir: Path | None = None,
    dist_classpath: str = "",
) -> NodeConf:
    """What the settings of an agent name; where one is empty, what its environment does.

    Raises:
        InvalidConfig: a setting names what is no directory. A variable may: Spark's launcher does
            not mind either.
    """
    given = {"spark_conf_dir": spark_conf_dir, "hadoop_conf_dir": hadoop_conf_dir}
    for name, path in (given | {"yarn_conf_dir": yarn_conf_dir}).items():
        if path is not None and not path.is_dir():
            raise InvalidConfig(f"{name} is {path}, which is no directory here; correct it")
    variables = {
        "HADOOP_CONF_DIR": _named(hadoop_conf_dir) or os.environ.get("HADOOP_CONF_DIR", ""),
        "YARN_CONF_DIR": _named(yarn_conf_dir) or os.environ.get("YARN_CONF_DIR", ""),
        DIST_CLASSPATH: dist_classpath or os.environ.get(DIST_CLASSPATH, ""),
    }
    return NodeConf(
        spark_conf_dir=spark_conf_dir.absolute() if spark_conf_dir else _usual(spark_home),
        variables={name: value for name, value in variables.items() if value},
    )


def _named(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def _usual(spark_home: Path) -> Path | None:
    """Where Spark's launcher would look, unless that is HRM's own directory, which has nothing for
    executors."""
    variable = os.environ.get("SPARK_CONF_DIR")
    for path in (Path(variable).absolute() if variable else None, spark_home / "conf"):
        if path is not None and path.is_dir() and path.resolve() != conf_dir().resolve():
            return path
    return None
