"""``hrm plugin-jar``: where HRM's plugin for a Spark is, for drivers that no spark-submit starts.

``spark-env.sh`` puts the plugin on the class path of what Spark's own scripts start. A service that
embeds Spark, an IDE or a test starts its JVM by itself, and needs the path::

    java -cp "app.jar:$(hrm plugin-jar):$SPARK_HOME/jars/*" org.example.Main

The plugin is compiled against one Spark, so the command is about one: the one in use, one in a
directory, or one of a version among those that this machine is known to have.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hrm import errors
from hrm.cli.spark_setup import spark_submit
from hrm.spark import build
from hrm.spark.launch import Spark, find_spark

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.command("plugin-jar")
def plugin_jar(
    spark_home: Annotated[
        Path | None,
        typer.Option("--spark-home", help="Directory that holds jars/. Default: of spark-submit."),
    ] = None,
    version: Annotated[
        str, typer.Option("--spark", help="Instead: the version, such as 3.5, of a Spark here.")
    ] = "",
) -> None:
    """Print the path of the jar that makes a Spark understand hrm://, compiled if need be."""
    if spark_home is not None and version:
        raise errors.InvalidRequest("--spark-home and --spark exclude each other; give one of them")
    if spark_home is not None:
        spark = find_spark(spark_home)
    else:
        spark = _of_version(version) if version else _in_use()
    try:
        typer.echo(build.plugin_jar(str(spark.home)))
    except (build.BuildError, OSError) as error:
        raise errors.PluginBuildFailed(str(error)) from error


def _in_use() -> Spark:
    """Raises NotFound where there is none."""
    for spark in _known():
        return spark
    raise errors.NotFound(
        "no Spark here; name the directory that holds its jars/ with --spark-home"
    )


def _of_version(version: str) -> Spark:
    """The first Spark of this version, which may lack its last numbers.

    Raises:
        NotFound: there is none; the message names those that there are.
    """
    known = list(_known())
    for spark in known:
        if f"{spark.version}.".startswith(f"{version}."):
            return spark
    there_are = ", ".join(f"{spark.version} at {spark.home}" for spark in known) or "no other"
    raise errors.NotFound(
        f"no Spark {version} is known here ({there_are}); name the directory that holds its jars/ "
        f"with --spark-home"
    )


def _known() -> Iterator[Spark]:
    """The Sparks that commands and the agent of this machine would use, the one in use first."""
    for home in dict.fromkeys(_homes()):
        try:
            yield find_spark(home)
        except errors.InvalidConfig:
            continue  # it is no Spark; another place may have one


def _homes() -> Iterator[Path | None]:
    """None: of this Python's pyspark."""
    if named := os.environ.get("SPARK_HOME"):
        yield Path(named).resolve()
    with contextlib.suppress(errors.NotFound):
        yield spark_submit().resolve().parent.parent
    if not named:
        yield None
    with contextlib.suppress(errors.InvalidConfig):  # an agent would report it
        yield from _of_the_agent()


def _of_the_agent() -> Iterator[Path]:
    from hrm.config import AgentSettings, load

    home = load(AgentSettings).spark_home
    if home is not None:
        yield home.resolve()
