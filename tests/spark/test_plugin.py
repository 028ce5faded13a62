"""A real Spark with plugin and AppMaster: real driver, real executors, a master of the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from hrm import ownership_keys
from hrm.v1 import common_pb2
from tests.spark.fake_master import FakeMaster, fake_master, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

REPOSITORY = Path(__file__).parents[2]
HRM_MAX, SPARK_MAX = "hrm.executor.maxFailures", "executor.maxNumFailures"
START_S = 120.0  # a driver's start on a machine that is busy with other tests

HEAD = """
import os, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
here = Path(sys.argv[1])
def wait_for(name):
    deadline = time.monotonic() + 100
    while not (here / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.05)
def say(name, text=""):
    (here / f"{name}.half").write_text(str(text))
    (here / f"{name}.half").rename(here / name)
builder = SparkSession.builder.appName("test")
"""


class Driver:
    """A running application, its output as files in ``directory``."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.process = process
        self.directory = directory

    async def received_text(self, name: str, timeout_s: float = START_S) -> str:
        path = self.directory / name
        await until(lambda: path.exists() or self.process.returncode is not None, timeout_s, name)
        assert path.exists(), self.output()
        return path.read_text()

    def report(self, name: str) -> None:
        (self.directory / name).touch()

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")

    async def exit_status(self, timeout_s: float = START_S) -> int:
        return await asyncio.wait_for(self.process.wait(), timeout_s)

    def java(self) -> psutil.Process:
        root = psutil.Process(self.process.pid)
        return next(p for p in [root, *root.children(True)] if p.name() == "java")

    def appmaster(self) -> psutil.Process:
        alive = [p for p in self.java().children() if p.status() != psutil.STATUS_ZOMBIE]
        return next(p for p in alive if "hrm.spark.appmaster" in p.cmdline())


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[FakeMaster]:
    async with fake_master(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def application(
    master: FakeMaster, directory: Path, body: str, *options: str, submit: bool = True
) -> AsyncIterator[Driver]:
    app = directory / "app.py"
    app.write_text(HEAD + body)
    environment = dict(
        os.environ,
        SPARK_CONF_DIR=str(REPOSITORY / "spark-conf"),
        SPARK_LOCAL_IP="127.0.0.1",
        HRM_TOKEN_FILE=os.environ.get("HRM_TOKEN_FILE", str(master.token_file)),
        HRM_TEST_MASTER=f"hrm://{master.address}",
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )
    spark_submit = [
        "spark-submit", "--master", f"hrm://{master.address}", "--driver-memory", "512m",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=512m", *options,
    ]  # fmt: skip
    command = spark_submit if submit else [sys.executable]
    with (directory / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, str(app), str(directory), env=environment, cwd=directory,
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield Driver(process, directory)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@pytest.mark.extra
async def test_an_application_runs_and_states_how_it_ended(
    master: FakeMaster, tmp_path: Path
) -> None:
    body = """
spark = builder.getOrCreate()
sc = spark.sparkContext
say("result", sc.parallelize(range(1000), 4).map(lambda x: 2 * x).sum())
say("id", sc.applicationId)
say("authenticate", sc.getConf().get("spark.authenticate"))
say("submit_opts", os.environ.get("SPARK_SUBMIT_OPTS"))
spark.stop()
"""
    async with application(master, tmp_path, body, "--queue", "etl") as driver:
        assert await driver.received_text("result") == "999000"
        assert await driver.exit_status() == 0
    assert master.registrations[0].queue == "etl"
    assert (tmp_path / "id").read_text() == master.application_id
    assert (tmp_path / "authenticate").read_text() == "true"
    launch = master.registrations[0].launch
    assert len(launch.environment["_SPARK_AUTH_SECRET"]) == 64
    assert not any(launch.environment["_SPARK_AUTH_SECRET"] in o for o in launch.java_options)
    assert len(master.registrations) == 1
    assert set(master.executors) == {"1", "2"}
    assert master.finished is not None
    assert master.finished.state == common_pb2.APPLICATION_STATE_SUCCEEDED
    reports = [u.progress for _, u in master.updates if u.HasField("progress")]
    assert reports[-1].tasks_completed == 4
    assert reports[-1].mean_task_s > 0
    assert master.classes() == []


async def test_times_of_tasks_are_reported_by_stage_and_executor(
    master: FakeMaster, tmp_path: Path
) -> None:
    """Each once; not those that an executor began before it had ended one, and no failed ones."""
    body = """
spark = builder.getOrCreate()
sc = spark.sparkContext
def work(x):
    time.sleep(0.1)
    if x == 5 and not (here / "failed").exists():
        (here / "failed").touch()
        raise ValueError("once")
    return (x % 2, x)
for _ in range(3):
    sc.parallelize(range(12), 12).map(work).reduceByKey(lambda a, b: a + b, 2).count()
say("done")
spark.stop()
"""
    async with application(master, tmp_path, body) as driver:
        await driver.received_text("done")
        assert await driver.exit_status() == 0
    reports = [u.progress for _, u in master.updates if u.HasField("progress")]
    times = [each for report in reports for each in report.executor_tasks]
    assert {each.executor_id for each in times} <= set(master.executors)
    # What of three jobs of 12 and 2 tasks was begun first, at each executor.
    slots = 3 * 14 - sum(each.tasks for each in times)
    assert len(master.executors) <= slots <= 12
    by_stage: dict[str, list[common_pb2.ExecutorTasks]] = {}
    for each in times:
        by_stage.setdefault(each.stage, []).append(each)
    # In all three jobs the same two stages.
    assert len(by_stage) == 2, by_stage.keys()
    (of_map,) = (some for name, some in by_stage.items() if name.startswith("reduceByKey"))
    (of_reduce,) = (some for name, some in by_stage.items() if name.startswith("count"))
    assert all(each.run_s >= 0.1 * each.tasks for each in of_map)
    assert sum(each.input_bytes for each in of_reduce) > 0


async def test_plain_python_and_an_explicit_no_to_authentication(
    master: FakeMaster, tmp_path: Path
) -> None:
    body = """
spark = (builder.master(os.environ["HRM_TEST_MASTER"]).config("spark.authenticate", "false")
    .config("spark.executor.instances", "1").config("spark.executor.memory", "512m")
    .config("spark.hrm.class", "stream").config("spark.ui.enabled", "false")
    .config("spark.yarn.queue", "other").config("spark.hrm.queue", " root.etl ")
    .config("spark.yarn.tags", "a, b,a,").config("spark.hrm.priority", "-7")
    .config("spark.hrm.tenant", "t").getOrCreate())
say("count", spark.range(100).count())
spark.stop()
"""
    async with application(master, tmp_path, body, submit=False) as driver:
        assert await driver.received_text("count") == "100"
        assert await driver.exit_status() == 0
    assert master.registrations[0].declared_class == common_pb2.WORKLOAD_CLASS_STREAM
    registration = master.registrations[0]
    assert "_SPARK_AUTH_SECRET" not in registration.launch.environment
    assert (registration.queue, registration.priority) == ("root.etl", -7)
    assert list(registration.tags) == ["a", "b"]
    assert "spark.hrm.tenant is no setting any more, and has no effect; write" in driver.output()
    assert set(master.executors) == {"1"}


@pytest.mark.extra
async def test_a_dead_executor_is_reported_with_its_exit_code_and_replaced(
    master: FakeMaster, tmp_path: Path
) -> None:
    body = """
spark = builder.getOrCreate()
say("ready")
wait_for("killed")
say("sum", spark.sparkContext.parallelize(range(100), 2).sum())
wait_for("end")
spark.stop()
"""
    options = ["--conf", "spark.executor.instances=1", "--conf", "spark.log.level=INFO"]
    async with application(master, tmp_path, body, *options) as driver:
        await driver.received_text("ready")
        process = master.executors["1"].process
        assert process is not None
        process.kill()
        await until(lambda: "2" in master.executors, 30, "the replacement")
        driver.report("killed")
        assert await driver.received_text("sum") == "4950"
        await until(lambda: "the process ended with -9" in driver.output(), 30, "the reason")
        driver.report("end")
        assert await driver.exit_status() == 0
    assert set(master.executors) == {"1", "2"}


def assert_one_owner(master: FakeMaster) -> None:
    """All registrations and attachments had one key, and a valid one."""
    keys = {each.ownership_key for each in master.registrations}
    assert keys == {each.ownership_key for each in master.attaches}
    (key,) = keys
    assert ownership_keys.owner_of(key)
    assert key not in master.registrations[0].submission_key


@pytest.mark.extra
async def test_an_appmaster_that_dies_comes_back_and_finds_its_executors(
    master: FakeMaster, tmp_path: Path
) -> None:
    body = """
spark = builder.getOrCreate()
say("ready")
wait_for("back")
say("sum", spark.sparkContext.parallelize(range(100), 2).sum())
spark.stop()
"""
    async with application(
        master, tmp_path, body, "--conf", "spark.executor.instances=1"
    ) as driver:
        await driver.received_text("ready")
        first = driver.appmaster()
        assert not any(len(a) > 60 for a in first.cmdline()), "a secret in an argument"
        assert "_SPARK_AUTH_SECRET" not in first.environ()
        first.kill()
        await until(lambda: master.sessions == 2, 30, "the second session")
        assert master.registrations[1].application_id == master.application_id
        driver.report("back")
        assert await driver.received_text("sum") == "4950"
        assert await driver.exit_status() == 0
    assert set(master.executors) == {"1"}, "the executor was kept"
    assert master.finished is not None
    assert master.finished.state == common_pb2.APPLICATION_STATE_SUCCEEDED
    assert len(master.registrations) >= 2
    assert_one_owner(master)


@pytest.mark.extra
async def test_a_session_that_breaks_is_opened_again_even_with_a_new_master(
    master: FakeMaster, tmp_path: Path
) -> None:
    body = """
spark = builder.getOrCreate()
say("ready")
wait_for("back")
say("sum", spark.sparkContext.parallelize(range(100), 2).sum())
spark.stop()
"""
    async with application(
        master, tmp_path, body, "--conf", "spark.executor.instances=1"
    ) as driver:
        await driver.received_text("ready")
        master.break_session()
        await until(lambda: master.sessions == 2, 30, "the second session")
        master.epoch += 1
        master.break_session()
        await until(lambda: master.sessions == 3, 30, "the third session")
        driver.report("back")
        assert await driver.received_text("sum") == "4950"
        assert await driver.exit_status() == 0
    assert set(master.executors) == {"1"}, "the executor was kept"
    assert {r.submission_key for r in master.registrations[1:]} == {
        master.registrations[0].submission_key
    }
    assert_one_owner(master)


async def test_an_appmaster_that_keeps_dying_ends_the_application(
    master: FakeMaster, tmp_path: Path
) -> None:
    body = """
spark = builder.getOrCreate()
say("ready")
wait_for("killed")
say("sum", spark.sparkContext.parallelize(range(100), 2).sum())
"""
    options = [
        "--conf", "spark.hrm.appmaster.maxRestarts=1", "--conf", "spark.executor.instances=1",
    ]  # fmt: skip
    async with application(master, tmp_path, body, *options) as driver:
        await driver.received_text("ready")
        driver.appmaster().kill()
        await until(lambda: master.sessions == 2, 30, "the second session")
        driver.appmaster().kill()
        await until(lambda: "died 2 times in a row" in driver.output(), 30, "the reason")
        driver.report("killed")
        assert await driver.exit_status() != 0
    assert not (tmp_path / "sum").exists()


async def test_an_appmaster_that_cannot_be_started_again_is_tried_again(
    master: FakeMaster, tmp_path: Path
) -> None:
    body = """
spark = builder.getOrCreate()
say("ready")
wait_for("back")
say("sum", spark.sparkContext.parallelize(range(100), 2).sum())
spark.stop()
"""
    python = tmp_path / "python"  # the first AppMaster is started by spark-env.sh, without it
    options = [
        "--conf", f"spark.hrm.python={python}", "--conf", "spark.hrm.appmaster.maxRestarts=20",
        "--num-executors", "1",
    ]  # fmt: skip
    async with application(master, tmp_path, body, *options) as driver:
        await driver.received_text("ready")
        driver.appmaster().kill()
        await until(lambda: "AppMaster cannot be started" in driver.output(), 30, "the failure")
        half = tmp_path / "python.half"
        half.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        half.chmod(0o755)
        half.rename(python)
        await until(lambda: master.sessions == 2, 30, "the second session")
        driver.report("back")
        assert await driver.received_text("sum") == "4950"
        assert await driver.exit_status() == 0
    assert set(master.executors) == {"1"}, "the executor was kept"


async def test_a_driver_that_ends_without_a_master_does_not_wait_and_did_succeed(
    tmp_path: Path,
) -> None:
    body = """
spark = builder.getOrCreate()
say("ready")
wait_for("end")
spark.stop()
"""
    async with contextlib.AsyncExitStack() as stack:
        async with fake_master(tmp_path) as first:
            driver = await stack.enter_async_context(
                application(first, tmp_path, body, "--num-executors", "1")
            )
            await driver.received_text("ready")
            appmaster = driver.appmaster()
        driver.report("end")
        assert await driver.exit_status(20) == 0
        assert appmaster.is_running(), "it stays behind"
        descriptors = Path(f"/proc/{appmaster.pid}/fd")
        held = [(descriptors / number).readlink() for number in ("1", "2")]
        assert held == [Path("/dev/null")] * 2, "who reads the driver's output need not wait"
        port = int(first.address.rpartition(":")[2])
        async with fake_master(tmp_path, port, epoch=2) as second:
            await until(lambda: second.finished is not None, 20, "the goodbye")
            await until(lambda: not appmaster.is_running(), 10, "the AppMaster ends")
    assert second.finished is not None
    assert second.finished.state == common_pb2.APPLICATION_STATE_SUCCEEDED


async def test_rpc_over_tls_and_a_library_path(master: FakeMaster, tmp_path: Path) -> None:
    store = tmp_path / "store.p12"
    made = await asyncio.create_subprocess_exec(
        "keytool", "-genkeypair", "-alias", "hrm", "-keyalg", "RSA", "-dname", "CN=127.0.0.1",
        "-storetype", "PKCS12", "-storepass", "s3cret-word", "-keystore", str(store),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await made.wait() == 0
    body = """
spark = builder.getOrCreate()
rdd = spark.sparkContext.parallelize(range(2), 2)
say("sum", rdd.sum())
spark.stop()
"""
    settings = {
        "spark.ssl.rpc.enabled": "true", "spark.ssl.rpc.protocol": "TLSv1.3",
        "spark.ssl.rpc.keyStore": store, "spark.ssl.rpc.keyStorePassword": "s3cret-word",
        "spark.ssl.rpc.keyPassword": "s3cret-word",
        "spark.ssl.rpc.trustStore": store, "spark.ssl.rpc.trustStorePassword": "s3cret-word",
        "spark.executor.extraLibraryPath": "/opt/native", "spark.executor.instances": "1",
        "spark.executorEnv.LD_LIBRARY_PATH": "/opt/mine",
    }  # fmt: skip
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    async with application(master, tmp_path, body, *options) as driver:
        assert await driver.received_text("sum") == "1"
        assert await driver.exit_status() == 0
    launch = master.registrations[0].launch
    assert launch.environment["LD_LIBRARY_PATH"] == "/opt/mine:/opt/native"
    assert launch.environment["_SPARK_SSL_RPC_KEY_STORE_PASSWORD"] == "s3cret-word"
    assert not any("s3cret-word" in option for option in launch.java_options)


async def test_a_stream_is_found_when_it_starts_and_forgotten_when_it_ends(
    master: FakeMaster, tmp_path: Path
) -> None:
    body = """
spark = builder.getOrCreate()
(here / "in").mkdir()
(here / "in" / "a.txt").write_text("x")
text = spark.readStream.text(str(here / "in"))
text.writeStream.format("memory").queryName("bounded").trigger(availableNow=True).start() \\
    .awaitTermination()
rate = spark.readStream.format("rate").load()
query = rate.writeStream.format("memory").queryName("rates").start()
say("started", time.time())
wait_for("seen")
query.stop()
say("stopped", time.time())
wait_for("end")
spark.stop()
"""
    options = ["--conf", "spark.executor.instances=1", "--conf", "spark.sql.shuffle.partitions=1"]
    async with application(master, tmp_path, body, *options) as driver:
        started_at_s = float(await driver.received_text("started"))
        await until(lambda: len(master.classes()) == 1, 10)
        driver.report("seen")
        await driver.received_text("stopped")
        await until(lambda: len(master.classes()) == 2, 10)
        driver.report("end")
        assert await driver.exit_status() == 0
    assert master.classes() == [
        common_pb2.WORKLOAD_CLASS_STREAM,
        common_pb2.WORKLOAD_CLASS_BATCH,
    ]
    at_s, change = next((t, u) for t, u in master.updates if u.HasField("class_changed"))
    assert at_s - started_at_s < 1.0
    assert "'rates'" in change.class_changed.evidence
    assert "ProcessingTime" in change.class_changed.evidence


@pytest.mark.extra
async def test_dynamic_allocation_asks_and_releases(master: FakeMaster, tmp_path: Path) -> None:
    body = """
spark = builder.getOrCreate()
slow = spark.sparkContext.parallelize(range(100), 4).map(lambda x: (time.sleep(.1), x)[1])
say("sum", slow.sum())
wait_for("end")
spark.stop()
"""
    settings = {
        "enabled": "true", "shuffleTracking.enabled": "true", "initialExecutors": "0",
        "minExecutors": "0", "maxExecutors": "2", "executorIdleTimeout": "2s",
        "schedulerBacklogTimeout": "1s",
    }  # fmt: skip
    options = [
        part
        for name, value in settings.items()
        for part in ("--conf", f"spark.dynamicAllocation.{name}={value}")
    ]
    async with application(master, tmp_path, body, *options) as driver:
        assert await driver.received_text("sum") == "4950"
        assert 1 <= len(master.executors) <= 2
        await until(lambda: not master.running(), 60, "idle executors go")
        assert all(e.released for e in master.executors.values() if e.end is not None)
        driver.report("end")
        assert await driver.exit_status() == 0


@pytest.mark.extra
async def test_a_driver_that_is_killed_leaves_nothing(master: FakeMaster, tmp_path: Path) -> None:
    body = """
spark = builder.getOrCreate()
say("ready")
wait_for("never")
"""
    async with application(
        master, tmp_path, body, "--conf", "spark.executor.instances=1"
    ) as driver:
        await driver.received_text("ready")
        appmaster = driver.appmaster()
        driver.java().kill()
        await until(lambda: master.finished is not None, 5, "the master hears of it")
        await until(lambda: not appmaster.is_running(), 5, "the AppMaster ends")
    assert master.finished is not None
    assert master.finished.state == common_pb2.APPLICATION_STATE_FAILED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            ["--conf", "spark.executor.cores=99"],
            "99 vcores fits no node; the largest is fake-node",
            marks=pytest.mark.extra,
        ),
        (["--conf", "spark.hrm.class=fast"], "spark.hrm.class must be stream or batch, not 'fast'"),
        (["--conf", "spark.hrm.token.file=/dev/null/none"], "HRM: "),
        pytest.param(
            ["--master", "hrm://127.0.0.1:1"],
            "no HRM master answers at 127.0.0.1:1",
            marks=pytest.mark.extra,
        ),
        (
            ["--conf", "spark.executor.decommission.signal=KILL"],
            "spark.executor.decommission.signal is 'KILL', which is no signal that a Java program",
        ),
        (["--conf", f"spark.{SPARK_MAX}=-3"], f"spark.{SPARK_MAX} is -3; give the executors that"),
        pytest.param(
            ["--conf", f"spark.{HRM_MAX}=-1"],
            f"spark.{HRM_MAX} is -1; give the executors that may fail, 0 or more",
            marks=pytest.mark.extra,
        ),
    ],
    ids=[
        "no node is large enough",
        "bad class",
        "no token",
        "no master",
        "bad signal",
        "failures of Spark",
        "failures of HRM",
    ],
)
async def test_what_cannot_work_is_one_clear_line_and_an_exit_status(
    master: FakeMaster, tmp_path: Path, options: list[str], message: str
) -> None:
    async with application(master, tmp_path, "builder.getOrCreate()\n", *options) as driver:
        assert await driver.exit_status() != 0
        lines = [li for li in driver.output().splitlines() if "SparkException: HRM: " in li]
        assert lines, driver.output()
        assert message in lines[0]
    await until(lambda: not master.running(), 10)


@pytest.mark.parametrize(
    ("limit", "window", "named"),
    [
        (HRM_MAX, "hrm.executor.failures.validityInterval", HRM_MAX),
        (SPARK_MAX, "executor.failuresValidityInterval", SPARK_MAX),
        ("yarn.max.executor.failures", "yarn.executor.failuresValidityInterval", SPARK_MAX),
    ],
    ids=["HRM", "Spark", "YARN"],
)
async def test_executors_that_keep_dying_end_the_application_with_their_exit_code(
    master: FakeMaster, tmp_path: Path, limit: str, window: str, named: str
) -> None:
    """The limit is HRM's, or, as on YARN and Kubernetes, Spark's; the window likewise."""
    body = """
spark = builder.getOrCreate()
say("sum", spark.sparkContext.parallelize(range(10)).sum())
"""
    options = [
        "--conf", "spark.executor.extraJavaOptions=-XX:-IgnoreUnrecognizedVMOptions -XX:NoSuch=1",
        "--conf", "spark.executor.instances=1", "--conf", f"spark.{limit}=3",
        "--conf", f"spark.{window}=30m",
    ]  # fmt: skip
    async with application(master, tmp_path, body, *options) as driver:
        assert await driver.exit_status() != 0
        assert f"3 executors failed within 1800 s (spark.{named} is 3)" in driver.output()
        assert "exit code 1" in driver.output()
        assert not (tmp_path / "sum").exists()
    assert len(master.executors) == 3
