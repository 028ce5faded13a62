"""The command of an executor, up to a real JVM that does not find its driver."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hrm.agent.containers.containers import ContainerSupervisor, Ended
from hrm.agent.isolation import Isolation
from hrm.agent.startup.warm_profile import profile_of
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerSpec,
    Gpu,
    LaunchContext,
    LaunchFile,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import Runtime
from hrm.errors import InvalidConfig, LaunchFailed, Misplaced
from hrm.spark.launch import (
    EXECUTOR_CLASS,
    PROCESSORS_OPTION,
    Java,
    Spark,
    executor_launch,
    find_java,
    find_spark,
    find_sparks,
    runtime_of,
    spark_of,
)
from hrm.spark.node_conf import NodeConf

JAVA = Java(command=Path("/jdk/bin/java"), home=Path("/jdk"), version="17.0.1")
HOME = Path(__file__).parent / "data" / "spark"
"""Its jars are empty files: a class path depends on names and order only."""
SPARK = Spark(home=HOME, version="4.3.0", python_path=(HOME / "pyspark.zip",))
SPEC = ContainerSpec(
    container_id=ContainerId("app-1-x7"),
    application_id=ApplicationId("app-1"),
    executor_id="7",
    resource_profile_id=2,
    workload_class=WorkloadClass.BATCH,
    resources=Resources(3, 1408),
    unit_id=ResourceUnitId("cpu0"),
    heap_mib=1024,
    launch=LaunchContext(
        driver_url="spark://CoarseGrainedScheduler@127.0.0.1:1",
        spark_version="4.3.0",
        environment=(("_SPARK_AUTH_SECRET", "s3cret"), ("PYTHONPATH", "/user/lib")),
        java_options=("-Dfile=/logs/{{APP_ID}}-{{EXECUTOR_ID}}.gc", "-Dspark.driver.port=1"),
        extra_class_path=("/plugin.jar", "/more/*"),
    ),
)


def with_launch(**fields: object) -> ContainerSpec:
    return replace(SPEC, launch=replace(SPEC.launch, **fields))  # type: ignore[arg-type]


def test_the_nodes_settings_follow_sparks_jars() -> None:
    conf = NodeConf(
        spark_conf_dir=Path("/etc/spark"),
        variables={
            "HADOOP_CONF_DIR": "/etc/hadoop",
            "YARN_CONF_DIR": "/etc/yarn",
            "SPARK_DIST_CLASSPATH": "/opt/hadoop/*:/opt/more",
        },
    )

    def launched(**more: str) -> tuple[str, dict[str, str]]:
        environment = (*SPEC.launch.environment, *more.items())
        launch = executor_launch(
            with_launch(environment=environment), spark=SPARK, java=JAVA, host="h",
            work_dir=Path("/work"), conf=conf,
        )  # fmt: skip
        return launch.files["java.args"].splitlines()[1].strip('"'), launch.environment

    jars = f"{HOME}/jars/a_1.jar:{HOME}/jars/spark-core_2.13-4.3.0.jar"
    path, environment = launched()
    rest = "/etc/spark/:/etc/hadoop:/etc/yarn:/opt/hadoop/*:/opt/more"
    assert path == f"/plugin.jar:/more/*:{jars}:{rest}"
    assert environment["HADOOP_CONF_DIR"] == "/etc/hadoop"
    assert "SPARK_DIST_CLASSPATH" not in environment
    path, environment = launched(HADOOP_CONF_DIR="/mine", YARN_CONF_DIR="")
    assert path.endswith(f"{jars}:/etc/spark/:/mine:/etc/yarn:/opt/hadoop/*:/opt/more")
    assert environment["HADOOP_CONF_DIR"] == "/mine", "of the application: spark.executorEnv"


def test_an_executor_counts_its_own_cores_where_it_is_asked_to() -> None:
    spec = with_launch(java_options=(PROCESSORS_OPTION, "-XX:ActiveProcessorCount=9"))
    launch = executor_launch(spec, spark=SPARK, java=JAVA, host="h", work_dir=Path("/work"))
    options = [option for option in launch.argv if "Processor" in option]
    assert options == ["-XX:ActiveProcessorCount=3", "-XX:ActiveProcessorCount=9"], (
        "those of its profile; the user's own option comes last, and wins"
    )


def test_the_command_of_an_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HRM_SOMETHING", "of the agent's")
    monkeypatch.setenv("PATH", "/bin")
    launch = executor_launch(
        SPEC, spark=SPARK, java=JAVA, host="10.0.0.7", work_dir=Path("/work/app-1-x7"),
        stdout_url="http://out", stderr_url="http://err",
    )  # fmt: skip
    before, after = launch.argv[: launch.argv.index(EXECUTOR_CLASS)], launch.argv[-12:]
    assert before == (
        "/jdk/bin/java",
        "@/work/app-1-x7/java.args",
        "-Xms1024m",
        "-Xmx1024m",
        "-Djava.io.tmpdir=/work/app-1-x7/tmp",
        "-Dfile=/logs/app-1-7.gc",
        "-Dspark.driver.port=1",
    )  # fmt: skip
    jars = f"{HOME}/jars/a_1.jar:{HOME}/jars/spark-core_2.13-4.3.0.jar"
    own_first = f"/plugin.jar:/more/*:{jars}"
    assert launch.files == {"java.args": f'"-cp"\n"{own_first}"\n'}, "they may replace classes"
    assert dict(zip(after[::2], after[1::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@127.0.0.1:1",
        "--executor-id": "7",
        "--hostname": "10.0.0.7",
        "--cores": "3",
        "--app-id": "app-1",
        "--resourceProfileId": "2",
    }
    environment = launch.environment
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert environment["PYTHONPATH"] == f"{HOME}/pyspark.zip:/user/lib"
    assert environment["SPARK_LOCAL_DIRS"] == "/work/app-1-x7/local"
    assert environment["SPARK_LOG_URL_STDERR"] == "http://err"
    assert (environment["SPARK_HOME"], environment["JAVA_HOME"]) == (str(HOME), "/jdk")
    assert "HRM_SOMETHING" not in environment


def test_an_executor_has_what_sparks_ui_shows_of_it() -> None:
    given = (("SPARK_EXECUTOR_ATTRIBUTE_RACK", "r7"), ("SPARK_EXECUTOR_ATTRIBUTE_HOST", "mine"))
    spec = replace(with_launch(environment=given), user="ada")
    environment = executor_launch(
        spec, spark=SPARK, java=JAVA, host="10.0.0.7", node="n1", work_dir=Path("/w"),
        stdout_url="https://10.0.0.7:99/containers/app-1-x7/stdout?sig=s", stderr_url="https://e",
    ).environment  # fmt: skip
    prefix = "SPARK_EXECUTOR_ATTRIBUTE_"
    assert {k.removeprefix(prefix): v for k, v in environment.items() if k.startswith(prefix)} == {
        "APP_ID": "app-1",
        "CONTAINER_ID": "app-1-x7",
        "EXECUTOR_ID": "7",
        "HOST": "10.0.0.7",
        "HTTP_ADDRESS": "10.0.0.7:99",
        "HTTP_SCHEME": "https://",
        "LOG_FILES": "stdout,stderr",
        "NODE": "n1",
        "RACK": "r7",
        "USER": "ada",
    }, "the node's own, and what the application adds"


def test_the_working_directory_is_on_the_class_path_of_who_has_files_there() -> None:
    file = LaunchFile(sha256="0" * 64, size_bytes=1, name="log4j2.xml")
    spec = with_launch(files=(file,), extra_class_path=())
    launch = executor_launch(spec, spark=SPARK, java=JAVA, host="h", work_dir=Path("/w"))
    class_path = launch.files["java.args"].splitlines()[-1].strip('"').split(":")
    assert class_path[-1] == ".", "last: an archive of classes needs its own jars first"
    assert "." not in class_path[:-1]
    assert isinstance(profile_of(launch, ":".join(class_path[:-1])), str), "no warm JVM has it"


def test_an_archive_of_classes_is_named_before_the_class_path() -> None:
    launch = executor_launch(
        SPEC, spark=SPARK, java=JAVA, host="h", work_dir=Path("/w"), archive="/a/x.jsa"
    )
    lines = launch.files["java.args"].splitlines()
    assert lines[:2] == ['"-XX:SharedArchiveFile=/a/x.jsa"', '"-Xshare:auto"']
    assert lines[-2] == '"-cp"'


def test_an_executor_sees_all_gpus_of_its_unit() -> None:
    spec = replace(SPEC, resources=Resources(3, 1408, 8192, gpus=2))
    gpus = (Gpu(index=1, memory_mib=16384, uuid="GPU-b"), Gpu(index=3, memory_mib=16384))
    launch = executor_launch(spec, spark=SPARK, java=JAVA, host="h", work_dir=Path("/w"), gpus=gpus)
    (found,) = json.loads(launch.files["resources.json"])
    assert found["addresses"] == ["0", "1"], "as CUDA counts what is visible"
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "GPU-b,3"
    assert launch.environment["HRM_GPU_INDEX"] == "1,3"
    assert launch.environment["HRM_GPU_MEMORY_MIB"] == "8192"


def test_an_executor_sees_its_gpu_and_no_other() -> None:
    spec = replace(SPEC, resources=Resources(3, 1408, 4096))
    gpu = Gpu(index=3, memory_mib=16384, uuid="GPU-abc")
    launch = executor_launch(
        spec, spark=SPARK, java=JAVA, host="h", work_dir=Path("/w"), gpus=(gpu,)
    )
    assert launch.argv[-2:] == ("--resourcesFile", "/w/resources.json")
    assert json.loads(launch.files["resources.json"]) == [
        {"id": {"componentName": "spark.executor", "resourceName": "gpu"}, "addresses": ["0"]}
    ]
    environment = launch.environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    assert (environment["HRM_GPU_INDEX"], environment["HRM_GPU_MEMORY_MIB"]) == ("3", "4096")
    without = executor_launch(
        SPEC, spark=SPARK, java=JAVA, host="h", work_dir=Path("/w"), gpus=(gpu,)
    )
    assert without.environment["CUDA_VISIBLE_DEVICES"] == "", "it holds no device memory"
    assert "--resourcesFile" not in without.argv and list(without.files) == ["java.args"]


def test_the_secret_is_in_the_environment_alone() -> None:
    launch = executor_launch(SPEC, spark=SPARK, java=JAVA, host="h", work_dir=Path("/w"))
    assert launch.environment["_SPARK_AUTH_SECRET"] == "s3cret"
    assert not any("s3cret" in argument for argument in launch.argv)
    assert "s3cret" not in repr(launch)
    assert "s3cret" not in repr(SPEC)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            with_launch(spark_version="3.5.5"),
            r"runs Spark 3.5.5, and this node has 4.3.0 at",
        ),
        (with_launch(driver_url=""), "names no driver"),
        (replace(SPEC, heap_mib=4096), "heap of 4096 MiB does not fit a container of 1408 MiB"),
    ],
)
def test_what_cannot_be_launched(spec: ContainerSpec, problem: str) -> None:
    with pytest.raises(LaunchFailed, match=problem):
        executor_launch(spec, spark=SPARK, java=JAVA, host="h", work_dir=Path("/w"))


def test_a_spark_is_known_by_its_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    with pytest.raises(InvalidConfig, match="is no Spark: it has no jars/spark-core"):
        find_spark(home)
    named = tmp_path / "other"
    (named / "jars").mkdir(parents=True)
    (named / "jars" / "spark-core_2.13-4.0.1-SNAPSHOT.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(named))
    assert find_spark().version == "4.0.1-SNAPSHOT"


def a_spark(home: Path, version: str, scala: str = "2.13") -> Path:
    (home / "jars").mkdir(parents=True)
    (home / "jars" / f"spark-core_{scala}-{version}.jar").touch()
    return home


def test_a_node_has_several_sparks_one_a_version(tmp_path: Path) -> None:
    first = a_spark(tmp_path / "first", "4.3.0")
    second = a_spark(tmp_path / "second", "3.5.5", "2.12")
    sparks = find_sparks(first, [second, first])
    assert [x.version for x in sparks] == ["4.3.0", "3.5.5"]
    assert spark_of("3.5.5", sparks).home == second
    assert spark_of("", sparks).home == first, "the default"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert runtime_of(sparks[1], JAVA) == Runtime(
        spark="3.5.5", scala="2.12", java="17", python=here
    )
    with pytest.raises(Misplaced, match=r"runs Spark 4.0.1, and this node has 4.3.0 at .*3.5.5 at"):
        spark_of("4.0.1", sparks)
    twin = a_spark(tmp_path / "twin", "3.5.5", "2.13")
    with pytest.raises(InvalidConfig, match=r"are both Spark 3.5.5; leave one .* out of spark_hom"):
        find_sparks(first, [second, twin])


def a_java(directory: Path, script: str, release: str = "") -> Path:
    (directory / "bin").mkdir(parents=True)
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if release:
        (directory / "release").write_text(release)
    return directory


def test_javas_that_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = a_java(tmp_path / "a", "exit 1", 'IMPLEMENTOR="x"\nJAVA_VERSION="21.0.2"\n')
    assert find_java(silent).version == "21.0.2"
    responding = a_java(tmp_path / "b", """echo 'openjdk version "17.0.9" 2023' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(responding))
    assert find_java() == Java(command=responding / "bin/java", home=responding, version="17.0.9")


def test_javas_that_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = a_java(tmp_path / "old", "", 'JAVA_VERSION="1.8.0_392"\n')
    with pytest.raises(InvalidConfig, match=r"is Java 1.8.0_392; Spark needs 17 or newer"):
        find_java(old)
    failing = a_java(tmp_path / "mute", "echo broken; exit 2")
    with pytest.raises(InvalidConfig, match=r"does not report its version .exit status 2"):
        find_java(failing)
    with pytest.raises(InvalidConfig, match="no Java at"):
        find_java(tmp_path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidConfig, match="no Java on this node"):
        find_java()


@pytest.mark.spark
async def test_a_real_executor_starts_and_reports_that_it_finds_no_driver(tmp_path: Path) -> None:
    ends: asyncio.Queue[Ended] = asyncio.Queue()
    containers = ContainerSupervisor(
        tmp_path,
        Isolation(),
        rebuild=lambda _: Isolation(),
        log_bytes_max=1 << 20,
        log_files_max=2,
        on_end=lambda _, ended: ends.put_nowait(ended),
    )
    spark = find_spark()
    modules = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch")
    spec = with_launch(
        spark_version=spark.version,
        java_options=tuple(f"--add-opens={module}=ALL-UNNAMED" for module in modules),
        environment=(("SPARK_LOCAL_IP", "127.0.0.1"),),
        extra_class_path=(),
    )
    launch = executor_launch(
        replace(spec, heap_mib=256), spark=spark, java=find_java(), host="127.0.0.1",
        work_dir=containers.work_dir(spec.container_id),
    )  # fmt: skip
    await containers.start(spec, launch)
    async with asyncio.timeout(90):
        ended = await ends.get()
    await containers.close()
    assert ended.exit_code == 1
    stderr = (tmp_path / "containers" / spec.container_id / "stderr").read_text()
    assert "Connection refused: /127.0.0.1:1" in stderr
