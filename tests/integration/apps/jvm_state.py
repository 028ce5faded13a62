"""Writes what an application finds in its driver's JVM before and after its first query (JSON)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

RESOURCES = "org.apache.spark.resource"


def entries(map_: Any) -> dict[str, str]:
    return {str(e.getKey()): str(e.getValue()) for e in map_.entrySet()}


def field(jvm: Any, class_name: str, name: str) -> Any:
    """A private field of a Scala object."""
    loader = jvm.Thread.currentThread().getContextClassLoader()
    found = jvm.java.lang.Class.forName(class_name, True, loader)
    declared = found.getDeclaredField(name)
    declared.setAccessible(True)
    return declared.get(found.getField("MODULE$").get(None))


def threads(jvm: Any) -> dict[str, str]:
    """Name, without numbers -> the loader that it would load an application's classes with."""
    found = {}
    for thread in jvm.Thread.getAllStackTraces().keySet():
        loader = thread.getContextClassLoader()
        name = re.sub(r"[-0-9a-f]*[0-9][-0-9a-f]*|@[0-9a-f]+", "#", thread.getName())
        found[name] = "" if loader is None else loader.getClass().getName()
    return found


def early(jvm: Any) -> dict[str, Any]:
    """Before a context exists."""
    context = "org.apache.spark.SparkContext$"
    codegen = "org.apache.spark.metrics.source.CodegenMetrics$"
    user = jvm.org.apache.hadoop.security.UserGroupInformation
    pid = jvm.java.lang.ProcessHandle.current().pid()
    proc = Path(f"/proc/{pid}")
    return {
        "pid": pid,
        "properties": entries(jvm.System.getProperties()),
        "environment": entries(jvm.System.getenv()),
        "threads": threads(jvm),
        "user": str(user.getCurrentUser().getUserName()),
        "secrets": user.getCurrentUser().getCredentials().numberOfSecretKeys(),
        "codegen": field(jvm, codegen, "METRIC_COMPILATION_TIME").getCount(),
        "codegen_mean": field(jvm, codegen, "METRIC_COMPILATION_TIME").getSnapshot().getMean(),
        "read": sum(
            each.getBytesRead() + each.getBytesWritten()
            for each in jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
        ),
        "cached_file_systems": cached(jvm),
        "active": field(jvm, context, f"{context[:-1].replace('.', '$')}$$activeContext").get(),
        "default_session": jvm.SparkSession.getDefaultSession().isDefined(),
        "active_session": jvm.SparkSession.getActiveSession().isDefined(),
        "log_level": str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel()),
        "handler": str(jvm.Thread.getDefaultUncaughtExceptionHandler()),
        "hooks": hooks(jvm),
        "cwd": str((proc / "cwd").readlink()),
        "umask": next(x for x in (proc / "status").read_text().splitlines() if "Umask" in x),
        "limits": (proc / "limits").read_text(),
        "descriptors": sorted(descriptors(proc)),
        "temporary": sorted(x.name for x in Path("/tmp").glob("hrm-rehearsal*")),
    }


def cached(jvm: Any) -> int:
    system = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileSystem")
    cache = system.getDeclaredField("CACHE")
    cache.setAccessible(True)
    kept = cache.get(None)
    inner = kept.getClass().getDeclaredField("map")
    inner.setAccessible(True)
    return int(inner.get(kept).size())


def hooks(jvm: Any) -> int:
    """Those that Spark runs when this JVM ends."""
    home = "org.apache.spark.util.ShutdownHookManager$"
    manager = field(jvm, home, "shutdownHooks")
    if manager is None:
        return 0
    kept = manager.getClass().getDeclaredField("hooks")
    kept.setAccessible(True)
    return int(kept.get(manager).size())


def descriptors(proc: Path) -> list[str]:
    found = []
    for number in (proc / "fd").iterdir():
        try:
            target = str(number.readlink())
        except OSError:
            continue
        standard = number.name in ("0", "1", "2")
        if target.startswith("/") and not standard and not target.endswith((".jar", ".jsa")):
            found.append(re.sub(r"^/tmp/tmp\.\w+", "/tmp/tmp", target))
    return found


def late(spark: Any) -> dict[str, Any]:
    """With a context."""
    context = spark.sparkContext
    jvm = context._jvm
    spark.range(3).selectExpr("sum(id)").collect()
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    return {
        "settings": dict(context.getConf().getAll()),
        "hadoop": entries_of(context._jsc.hadoopConfiguration()),
        "sql": {row.key: row.value for row in spark.sql("SET").collect()},
        "first_execution": executions.head().executionId(),
        "first_rdd": context._jsc.sc().newRddId(),
        "next_profile": field(jvm, f"{RESOURCES}.ResourceProfile$", "nextProfileId"),
        "url_factory": url_factory(jvm),
        "threads": threads(jvm),
        "user": str(
            jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getUserName()
        ),
    }


def entries_of(conf: Any) -> dict[str, str]:
    iterator, found = conf.iterator(), {}
    while iterator.hasNext():
        entry = iterator.next()
        found[entry.getKey()] = entry.getValue()
    return found


def url_factory(jvm: Any) -> str:
    declared = jvm.java.lang.Class.forName("java.net.URL").getDeclaredField("factory")
    declared.setAccessible(True)
    return str(declared.get(None)).partition("@")[0]


def main() -> None:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setAppName("jvm-state").set("spark.executor.instances", "1")
    if len(sys.argv) > 2:
        conf = conf.setMaster(sys.argv[2])
    SparkContext._ensure_initialized(conf=conf)
    found = {"early": early(SparkContext._jvm)}
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    found["late"] = late(spark)
    Path(sys.argv[1]).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
