"""spark-env.sh in a real bash: which arguments it rewrites, what it exports, what it refuses."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hrm.spark.hrm_settings import OWN_SETTINGS

CONF = Path(__file__).parents[2] / "spark-conf"
SOURCES = CONF.parent / "hrm" / "spark"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"

# As spark-class does it: sourced in the launcher's shell, with export of all that is set.
LAUNCHER = """
export SPARK_ENV_LOADED=1
set -a
. "$SPARK_CONF_DIR/spark-env.sh"
set +a
printf '%s\\n' "$@" > "$OUT/arguments"
env > "$OUT/environment"
case "${SPARK_SUBMIT_OPTS:-}" in *@*) cat "${SPARK_SUBMIT_OPTS##*@}" > "$OUT/secret" ;; esac
"""


class Launcher:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "HRM_HOME": str(directory),
            "HRM_PYTHON": str(directory / "python"),
            "SPARK_CONF_DIR": str(CONF),
            "SPARK_HOME": "/opt/spark",
            "OUT": str(directory),
        }
        # In place of the Python that has hrm: "builds" a jar at once, records how it was called.
        python = directory / "python"
        python.write_text(
            '#!/bin/sh\necho "$@" >> "$OUT/pythons"\n'
            'case "$*" in *build.py*) [ -z "$FAIL" ] || exit 1; echo /cache/plugin.jar ;;\n'
            '  *appmaster*) exec cat > "$OUT/stdin" ;;\n'
            f'  *renamed_files.py*) exec {sys.executable} "$@" ;; esac\n'
        )
        python.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        for name in ("arguments", "environment", "pythons", "secret"):
            (self.directory / name).unlink(missing_ok=True)
        return subprocess.run(
            ["bash", "-c", LAUNCHER, "spark-class", *arguments],
            env=self.environment | environment, capture_output=True, text=True, check=False,
            timeout=30,
        )  # fmt: skip

    def rewritten(self, *arguments: str, **environment: str) -> list[str]:
        done = self.run(SUBMIT, *arguments, **environment)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        first, *rest = (self.directory / "arguments").read_text().splitlines()
        assert first == SUBMIT
        return rest

    def exported(self) -> dict[str, str]:
        lines = (self.directory / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--master", "hrm://h:7480", "a.py"], ["--master", "spark+hrm://h:7480", "a.py"]),
        (["--master=hrm://h:7480", "a.py"], ["--master=spark+hrm://h:7480", "a.py"]),
        (["--conf", "spark.master=hrm://h:1"], ["--conf", "spark.master=spark+hrm://h:1"]),
        (["-c", "spark.master=hrm://h:1"], ["-c", "spark.master=spark+hrm://h:1"]),
        (["--conf=spark.master=hrm://h:1"], ["--conf=spark.master=spark+hrm://h:1"]),
        (["--master", "hrm://[::1]:7480"], ["--master", "spark+hrm://[::1]:7480"]),
        (["--master", "spark+hrm://h:1"], ["--master", "spark+hrm://h:1"]),
        (
            ["-v", "--name", "two words", "--master", "hrm://h:1", "a.py", "", "--master", "hrm:x"],
            ["-v", "--name", "two words", "--master", "spark+hrm://h:1", "a.py", "", "--master",
             "hrm:x"],
        ),
        (["--load-spark-defaults", "--master", "hrm://h:1"],
         ["--load-spark-defaults", "--master", "spark+hrm://h:1"]),
    ],
)  # fmt: skip
def test_hrm_masters_are_rewritten(
    launcher: Launcher, given: list[str], expected: list[str]
) -> None:
    assert launcher.rewritten(*given) == expected
    exported = launcher.exported()
    assert exported["SPARK_DIST_CLASSPATH"] == "/cache/plugin.jar"
    assert exported["HRM_APPMASTER_PID"].isdecimal()
    assert "SPARK_ENV_LOADED" not in exported


def test_sparks_usual_settings_directory_counts_where_this_one_stands_in_its_place(
    launcher: Launcher, tmp_path: Path
) -> None:
    home = tmp_path / "spark"
    (home / "conf").mkdir(parents=True)
    launcher.rewritten("--master", "hrm://h:1", "a.py", SPARK_HOME=str(home))
    path = launcher.exported()["SPARK_DIST_CLASSPATH"]
    assert path == f"/cache/plugin.jar:{home}/conf"
    launcher.rewritten(
        "--master", "hrm://h:1", "a.py", SPARK_HOME=str(home), SPARK_DIST_CLASSPATH=path,
        HRM_PLUGIN_JAR="/cache/plugin.jar",
    )  # fmt: skip
    assert launcher.exported()["SPARK_DIST_CLASSPATH"] == path, "a driver's start within a driver"
    launcher.rewritten("--master", "local", "a.py", SPARK_HOME=str(home))
    assert "SPARK_DIST_CLASSPATH" not in launcher.exported()
    own = tmp_path / "own"
    own.mkdir()
    (own / "spark-env.sh").write_text(f". {CONF}/spark-env.sh\n")
    launcher.rewritten(
        "--master", "hrm://h:1", "a.py", SPARK_HOME=str(home), SPARK_CONF_DIR=str(own)
    )
    assert launcher.exported()["SPARK_DIST_CLASSPATH"] == "/cache/plugin.jar"


@pytest.mark.parametrize(
    "given",
    [
        ["--master", "local[2]", "a.py", "--master", "hrm://h:1"],
        ["--master", "spark://h:7077", "a.py"],
        ["--conf", "spark.app.master=hrm://h:1", "a.py"],
        ["--name", "--master", "a.py", "hrm://h:1"],
        ["--master", "yarn", "--deploy-mode", "cluster", "--num-executors", "3", "a.py"],
        ["--master", "spark://h:7077", "--total-executor-cores=3", "a.py"],
        ["--version"],
        ["--master", "hrm://h:1", "--help"],
        ["--version", "--master=hrm://h:1", "--deploy-mode", "cluster"],
        ["--conf", "spark.master=hrm://h:1", "-h", "--num-executors", "2"],
        [],
    ],
)
def test_everything_else_is_left_alone(launcher: Launcher, given: list[str]) -> None:
    assert launcher.rewritten(*given) == given
    assert not (launcher.directory / "pythons").exists()
    assert not any(n.startswith("HRM_APP") for n in launcher.exported())
    assert "SPARK_SUBMIT_OPTS" not in launcher.exported()


def test_what_an_application_is_sent_is_no_question_to_spark(launcher: Launcher) -> None:
    asked = ["--master", "hrm://h:1", "a.py", "--help"]
    assert launcher.rewritten(*asked)[1] == "spark+hrm://h:1"
    assert "build.py" in (launcher.directory / "pythons").read_text()


def test_other_programs_are_left_alone(launcher: Launcher) -> None:
    assert launcher.run("org.apache.spark.deploy.worker.Worker", "hrm://h:1").returncode == 0
    assert not (launcher.directory / "pythons").exists()


def test_a_python_shell_is_rewritten_at_its_second_start(launcher: Launcher) -> None:
    """bin/pyspark calls spark-submit to start Python, which calls spark-submit to start Java."""
    shell = ["pyspark-shell-main", "--name", "PySparkShell", "--master", "hrm://h:1"]
    assert launcher.rewritten(*shell) == shell
    assert "SPARK_ENV_LOADED" not in launcher.exported(), "so that the second start comes by"


def test_a_master_in_the_defaults_file(launcher: Launcher) -> None:
    conf = launcher.directory / "conf"
    conf.mkdir()
    shutil.copy(CONF / "spark-env.sh", conf)
    file = conf / "spark-defaults.conf"
    file.write_text("# spark.master hrm://no:1\nspark.app.name x\nspark.master   hrm://h:7480\n")
    python = launcher.directory / "python"
    python.write_text(python.read_text() + 'case "$*" in *print*) echo /x ;; esac\n')
    given = {"SPARK_CONF_DIR": str(conf)}
    assert launcher.rewritten("--name", "n", "a.py", **given) == [
        "--master", "spark+hrm://h:7480", "--name", "n", "a.py",
    ]  # fmt: skip
    assert launcher.rewritten("--master", "local", "a.py", **given) == ["--master", "local", "a.py"]
    other = launcher.directory / "other.conf"
    other.write_text("spark.master=hrm://other:1\n")
    arguments = launcher.rewritten("--properties-file", str(other), "a.py", **given)
    assert arguments[:2] == ["--master", "spark+hrm://other:1"]
    file.write_text("spark.master=local\n")
    assert launcher.rewritten("a.py", **given) == ["a.py"]


def test_the_variable_of_a_master_counts_last(launcher: Launcher) -> None:
    given = {"MASTER": "hrm://h:7480"}
    assert launcher.rewritten("--name", "n", "a.py", **given) == [
        "--master", "spark+hrm://h:7480", "--name", "n", "a.py",
    ]  # fmt: skip
    assert launcher.rewritten("--master", "local", "a.py", **given) == ["--master", "local", "a.py"]
    file = launcher.directory / "p.conf"
    file.write_text("spark.master local\n")
    alone = ["--properties-file", str(file), "a.py"]
    assert launcher.rewritten(*alone, **given) == alone
    remote = ["--remote", "sc://h", "a.py"]
    assert launcher.rewritten(*remote, **given) == remote
    assert launcher.rewritten("a.py", MASTER="yarn") == ["a.py"]
    assert not (launcher.directory / "pythons").exists()


def test_the_variable_of_a_master_goes_on_to_a_submission(launcher: Launcher) -> None:
    given = ["--deploy-mode", "cluster", "a.py", "--master", "its own"]
    done = launcher.run(SUBMIT, *given, MASTER="hrm://h:1")
    assert (done.returncode, done.stderr) == (0, "")
    pythons = (launcher.directory / "pythons").read_text()
    assert pythons == f"-P -m hrm.cli submit --master hrm://h:1 {' '.join(given)}\n"
    launcher.run(SUBMIT, "a.py", MASTER="hrm://h:1", DEPLOY_MODE="cluster")
    assert "-m hrm.cli submit" in (launcher.directory / "pythons").read_text()


def test_both_files_count_where_both_are_asked_for(launcher: Launcher, tmp_path: Path) -> None:
    shutil.copy(CONF / "spark-env.sh", tmp_path)
    (tmp_path / "spark-defaults.conf").write_text("spark.master hrm://default:1\n")
    file = tmp_path / "own.conf"
    file.write_text("spark.app.name x\n")
    given = ["--load-spark-defaults", "--properties-file", str(file), "a.py"]
    # The copied directory has no package next to it: Python is queried for hrm's location.
    python = launcher.directory / "python"
    python.write_text(python.read_text() + 'case "$*" in *print*) echo /x ;; esac\n')
    master = ["--master", "spark+hrm://default:1"]
    assert launcher.rewritten(*given, SPARK_CONF_DIR=str(tmp_path)) == master + given
    assert launcher.rewritten(*given[1:], SPARK_CONF_DIR=str(tmp_path)) == given[1:]
    file.write_text("spark.master=hrm://own:1\n")
    arguments = launcher.rewritten(*given, SPARK_CONF_DIR=str(tmp_path))
    assert arguments[:2] == ["--master", "spark+hrm://own:1"]


def test_a_master_in_code_finds_the_plugin_and_no_secret(launcher: Launcher) -> None:
    given = {"HRM_TOKEN_FILE": "/token", "SPARK_DIST_CLASSPATH": "/mine.jar"}
    assert launcher.rewritten("a.py", **given) == ["a.py"]
    exported = launcher.exported()
    assert exported["SPARK_DIST_CLASSPATH"] == "/cache/plugin.jar:/mine.jar"
    assert "SPARK_SUBMIT_OPTS" not in exported
    assert "HRM_APPMASTER_FD" not in exported
    pythons = (launcher.directory / "pythons").read_text()
    assert pythons.split() == ["-I", "-S", str(SOURCES / "build.py"), "--built", "/opt/spark"]
    for elsewhere in (
        ["--help"],
        ["--remote", "sc://h", "a.py"],
        ["--master", "yarn", "a.py"],
        ["--conf", "spark.master=k8s://h:1", "a.py"],
        ["--master", "spark://h:7077", "a.py"],
    ):
        assert launcher.rewritten(*elsewhere, **given) == elsewhere
        assert launcher.exported()["SPARK_DIST_CLASSPATH"] == "/mine.jar"
    launcher.rewritten("a.py", **given, FAIL="1")
    assert launcher.exported()["SPARK_DIST_CLASSPATH"] == "/mine.jar", "Spark starts without it"


@pytest.mark.parametrize("other", ["local", "local[1]", "local[*]"])
def test_a_later_context_than_a_local_one_finds_the_plugin(launcher: Launcher, other: str) -> None:
    given = ["--master", other, "a.py"]
    assert launcher.rewritten(*given, HRM_TOKEN_FILE="/token") == given
    exported = launcher.exported()
    assert exported["SPARK_DIST_CLASSPATH"] == "/cache/plugin.jar"
    assert "SPARK_SUBMIT_OPTS" not in exported
    assert "HRM_APPMASTER_FD" not in exported
    pythons = (launcher.directory / "pythons").read_text()
    assert "--built" in pythons and "appmaster" not in pythons
    launcher.rewritten(*given)
    assert launcher.exported().get("SPARK_DIST_CLASSPATH", "") == "", "outside of `hrm env`"


def test_the_secret_is_handed_over_in_a_file_that_is_already_gone(launcher: Launcher) -> None:
    launcher.rewritten("--master", "hrm://h:1", "a.py", SPARK_SUBMIT_OPTS="-Duser=1")
    options = launcher.exported()["SPARK_SUBMIT_OPTS"]
    assert options.startswith("-Duser=1 @/proc/self/fd/")
    first = (launcher.directory / "secret").read_text().split()
    assert first[0] == "-Dspark.authenticate=true"
    name, _, secret = first[1].partition("=")
    assert name == "-Dspark.authenticate.secret"
    assert len(secret) == 64
    assert secret not in (launcher.directory / "environment").read_text()
    launcher.rewritten("--master", "hrm://h:1", "a.py")
    assert (launcher.directory / "secret").read_text().split() != first, "every start has its own"


def test_what_an_enclosing_driver_left_is_taken_away(launcher: Launcher) -> None:
    launcher.rewritten("--master", "hrm://h:1", "a.py", SPARK_SUBMIT_OPTS="-Duser=1")
    inherited = launcher.exported()
    launcher.rewritten("--master", "local", "a.py", **inherited)
    exported = launcher.exported()
    assert exported["SPARK_SUBMIT_OPTS"].strip() == "-Duser=1"
    assert exported["SPARK_DIST_CLASSPATH"] == ""
    assert "HRM_APPMASTER_FD" not in exported
    launcher.rewritten("--master", "hrm://h:1", "a.py", **inherited)
    assert launcher.exported()["SPARK_SUBMIT_OPTS"].count("@") == 1
    assert launcher.exported()["SPARK_DIST_CLASSPATH"] == "/cache/plugin.jar"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--num-executors", "3"], ["--conf", "spark.executor.instances=3"]),
        (["--num-executors=3"], ["--conf", "spark.executor.instances=3"]),
        (["a.py", "--num-executors", "3"], ["a.py", "--num-executors", "3"]),
        (["--name", "--num-executors", "a.py"], ["--name", "--num-executors", "a.py"]),
        (["--num-executors"], ["--num-executors"]),
        (["--deploy-mode", "client", "a.py"], ["--deploy-mode", "client", "a.py"]),
        (["--queue", "etl"], ["--conf", "spark.hrm.queue=etl"]),
        (["--queue=root.etl"], ["--conf", "spark.hrm.queue=root.etl"]),
        (["a.py", "--queue", "etl"], ["a.py", "--queue", "etl"]),
    ],
)
def test_a_number_of_executors_and_a_queue_become_the_settings_that_count(
    launcher: Launcher, given: list[str], expected: list[str]
) -> None:
    before = ["--master", "spark+hrm://h:1"]
    assert launcher.rewritten("--master", "hrm://h:1", *given) == before + expected


def test_a_number_of_executors_with_a_master_in_the_defaults_file(launcher: Launcher) -> None:
    file = launcher.directory / "p.conf"
    file.write_text("spark.master hrm://h:1\n")
    assert launcher.rewritten("--num-executors", "2", "--properties-file", str(file), "a.py") == [
        "--master", "spark+hrm://h:1", "--conf", "spark.executor.instances=2",
        "--properties-file", str(file), "a.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        ["--deploy-mode", "cluster"],
        ["--deploy-mode=cluster"],
        ["--conf", "spark.submit.deployMode=cluster"],
        ["-c", "spark.submit.deployMode=cluster"],
        ["--conf=spark.submit.deployMode=cluster"],
        ["--status", "driver-1"],
        ["--kill=driver-1"],
    ],
)
def test_cluster_mode_needs_no_jvm(launcher: Launcher, given: list[str]) -> None:
    arguments = [*given, "--num-executors", "2", "--master", "hrm://h:1", "a.py", "--kill", "x y"]
    done = launcher.run(SUBMIT, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    pythons = (launcher.directory / "pythons").read_text()
    assert pythons == f"-P -m hrm.cli submit {' '.join(arguments)}\n", "as they were given"
    assert not (launcher.directory / "arguments").exists()


@pytest.mark.parametrize("named", [True, False])
def test_cluster_mode_in_a_file_counts(launcher: Launcher, named: bool, tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text("spark.master hrm://h:1\nspark.submit.deployMode = cluster\n")
    given = ["--properties-file", str(file)] if named else []
    shutil.copy(CONF / "spark-env.sh", tmp_path)
    done = launcher.run(SUBMIT, *given, "a.py", SPARK_CONF_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "-m hrm.cli submit" in (launcher.directory / "pythons").read_text()
    launcher.rewritten(*given, "--deploy-mode", "client", "a.py", SPARK_CONF_DIR=str(tmp_path))


def test_pyspark_with_cluster_mode_is_refused_before_python_starts(launcher: Launcher) -> None:
    given = ["--name", "PySparkShell", "--master", "hrm://h:1", "--deploy-mode", "cluster"]
    done = launcher.run(SUBMIT, "pyspark-shell-main", *given)
    assert done.returncode == 1
    assert done.stderr == (
        "HRM: deploy mode cluster cannot run pyspark-shell: its driver would be on a node, away "
        "from your terminal; leave --deploy-mode cluster out\n"
    )
    assert not (launcher.directory / "pythons").exists()


@pytest.mark.parametrize("given", [["--deploy-mode", "cluster"], ["--status", "driver-1"]])
def test_other_masters_keep_their_cluster_mode(launcher: Launcher, given: list[str]) -> None:
    arguments = [*given, "--master", "spark://h:7077", "a.py"]
    assert launcher.rewritten(*arguments) == arguments


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (["--total-executor-cores", "8"], "--total-executor-cores"),
        (["--total-executor-cores=8"], "--total-executor-cores"),
        (["--conf", "spark.cores.max=8"], "spark.cores.max"),
        (["--conf=spark.cores.max=8"], "spark.cores.max"),
    ],
)
def test_a_limit_on_all_cores_is_warned_of(launcher: Launcher, given: list[str], name: str) -> None:
    done = launcher.run(SUBMIT, "--master", "hrm://h:1", *given, "a.py")
    assert done.returncode == 0
    assert done.stderr == (
        f"HRM: warning: {name} has no effect here; set spark.executor.instances and "
        f"spark.executor.cores instead\n"
    )


@pytest.mark.parametrize(
    "given",
    [
        ["--principal", "alice", "--keytab", "{keytab}", "a.py"],
        ["--principal=alice", "--keytab={keytab}", "a.py"],
        ["--conf", "spark.kerberos.principal=alice", "--keytab", "file:{keytab}", "a.py"],
        ["--conf", "spark.kerberos.principal=eve", "--principal", "alice",
         "--conf", "spark.kerberos.keytab=local://{keytab}", "a.py"],
        ["--properties-file", "{file}", "a.py"],
    ],
)  # fmt: skip
def test_a_keytab_logs_the_driver_in_from_its_first_moment(
    launcher: Launcher, given: list[str]
) -> None:
    keytab, file = launcher.directory / "alice.keytab", launcher.directory / "p.conf"
    keytab.touch()
    file.write_text(f"spark.kerberos.principal alice\nspark.kerberos.keytab={keytab}\n")
    filled = [each.format(keytab=keytab, file=file) for each in given]
    assert launcher.rewritten("--master", "hrm://h:1", *filled)[2:] == filled
    exported = launcher.exported()
    assert (exported["KRB5PRINCIPAL"], exported["KRB5KEYTAB"]) == ("alice", str(keytab))
    assert not {"HRM_PRINCIPAL", "HRM_KEYTAB"} & set(exported)


def test_a_keytab_of_another_master_or_of_an_application_is_left_alone(launcher: Launcher) -> None:
    login = ("--principal", "alice", "--keytab", "/none")
    for given in (("--master", "yarn", *login), ("--master", "hrm://h:1", "a.py", *login)):
        assert launcher.run(SUBMIT, *given).returncode == 0
        assert not {"KRB5PRINCIPAL", "KRB5KEYTAB"} & set(launcher.exported())


def test_a_keytab_that_cannot_be_read_is_one_clear_line(launcher: Launcher) -> None:
    done = launcher.run(SUBMIT, "--master", "hrm://h:1", "--principal", "a", "--keytab", "/none")
    assert done.returncode == 1
    assert done.stderr.startswith("HRM: the keytab /none cannot be read on this machine by ")


@pytest.mark.parametrize(
    ("given", "before"),
    [
        (["--files", "{a}#b.txt"], ""),
        (["--files={a}#b.txt"], "--files="),
        (["--conf", "spark.files={a}#b.txt"], "spark.files="),
        (["--conf=spark.files={a}#b.txt"], "--conf=spark.files="),
    ],
)
def test_a_file_gets_its_name(launcher: Launcher, given: list[str], before: str) -> None:
    a = launcher.directory / "a.txt"
    a.write_text("text")
    given = [each.format(a=a) for each in given]
    last = launcher.rewritten(*given, "--master", "hrm://h:1", "a.py")[len(given) - 1]
    link = last.removeprefix(f"{before}file://")
    assert Path(link).name == "b.txt"
    assert Path(link).read_text() == "text"
    assert link.startswith(launcher.exported()["HRM_RENAMED_DIR"])
    assert launcher.rewritten(*given, "--master", "local", "a.py") == [
        *given, "--master", "local", "a.py",
    ]  # fmt: skip
    assert "HRM_RENAMED_DIR" not in launcher.exported()


def test_a_file_of_the_defaults_file_gets_its_name(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    properties = tmp_path / "p.conf"
    properties.write_text(f"spark.files {tmp_path}/a.txt#b.txt\n")
    given = ["--properties-file", str(properties), "--master", "hrm://h:1", "a.py"]
    option, value, *rest = launcher.rewritten(*given)
    assert option == "--conf"
    assert Path(value.removeprefix("spark.files=file://")).read_text() == "text"
    assert rest == [*given[:-2], "spark+hrm://h:1", "a.py"]


def test_a_file_that_cannot_have_its_name_starts_nothing(launcher: Launcher) -> None:
    given = ["--files", "hdfs:///a.txt#b.txt", "--master", "hrm://h:1", "a.py"]
    done = launcher.run(SUBMIT, *given)
    assert done.returncode == 1
    assert done.stderr.startswith("HRM: --files hdfs:///a.txt#b.txt: only a file of this machine")
    assert not list(launcher.directory.glob("tmp*")), "nothing is left"
    assert not (launcher.directory / "arguments").exists()


@pytest.mark.parametrize(
    "master",
    ["hrm://h", "hrm://h:", "hrm://h:port", "hrm://:1", "hrm://h:0", "hrm://h:65536", "hrm:h:1",
     "hrm://h:1/path", "hrm://user@h:1", "hrm+ssl://h:1"],
)  # fmt: skip
def test_a_malformed_master_is_one_clear_line(launcher: Launcher, master: str) -> None:
    for arguments in (["--master", master], [f"--conf=spark.master={master}"]):
        done = launcher.run(SUBMIT, *arguments, "a.py")
        assert done.returncode == 1
        assert done.stderr == (
            f"HRM: '{master}' is not the address of an HRM master; write hrm://HOST:PORT, such as "
            f"hrm://127.0.0.1:7480\n"
        )
        assert not (launcher.directory / "arguments").exists()


def test_a_failed_build_stops_the_start(launcher: Launcher) -> None:
    assert launcher.run(SUBMIT, "--master", "hrm://h:1", "a.py", FAIL="1").returncode == 1
    assert not (launcher.directory / "arguments").exists()


def test_a_python_that_cannot_run(launcher: Launcher) -> None:
    done = launcher.run(SUBMIT, "--master", "hrm://h:1", HRM_PYTHON="/no/python")
    assert done.returncode == 1
    assert "HRM_PYTHON is /no/python, which cannot be run" in done.stderr


def test_the_python_next_to_the_directory_is_found(launcher: Launcher) -> None:
    del launcher.environment["HRM_PYTHON"]
    conf = launcher.directory / "conf"
    shutil.copytree(CONF, conf)
    neighbour_bin = launcher.directory / ".venv" / "bin"
    neighbour_bin.mkdir(parents=True)
    program = (launcher.directory / "python").read_text()
    # The copied directory has no package next to it either: Python is queried for hrm's location.
    (neighbour_bin / "python").write_text(program + 'case "$*" in *print*) echo /x ;; esac\n')
    (neighbour_bin / "python").chmod(0o755)
    launcher.rewritten("--master", "hrm://h:1", "a.py", SPARK_CONF_DIR=str(conf))
    assert launcher.exported()["HRM_PYTHON"] == str(neighbour_bin / "python")
    assert "/x/build.py /opt/spark" in (launcher.directory / "pythons").read_text()


def test_no_python_that_has_hrm(launcher: Launcher) -> None:
    del launcher.environment["HRM_PYTHON"]
    conf = launcher.directory / "conf"
    shutil.copytree(CONF, conf)
    programs = launcher.directory / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to("/bin/false")
    done = launcher.run(
        SUBMIT, "--master", "hrm://h:1",
        SPARK_CONF_DIR=str(conf), PATH=f"{programs}:{os.environ['PATH']}",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("HRM: no Python that has hrm-spark: install it")


def test_the_defaults_file_names_the_settings_that_are_read() -> None:
    listed = re.findall(r"^#   (spark\.hrm\.\S+)", (CONF / "spark-defaults.conf").read_text(), re.M)
    sources = [*(CONF.parent / "hrm" / "spark").rglob("*.scala")]
    sources += (CONF.parent / "hrm" / "spark").glob("*.py")
    sources.append(CONF.parent / "hrm" / "wire" / "requirements.py")
    texts = [path.read_text() for path in sources]
    read = {name for text in texts for name in re.findall(r'"(spark\.hrm\.[\w.]+\w)"', text)}
    assert {*listed, *OWN_SETTINGS} == read
    assert len(listed) == len({*listed})


def test_where_a_warm_server_is_there_the_launcher_becomes_its_client(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "warm").mkdir()
    given = ["--master", "hrm://h:1", "--queue", "root.a", "a.py", "two words"]
    own = ["--master", "spark+hrm://h:1", "--conf", "spark.hrm.queue=root.a", "a.py", "two words"]
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as there:
        address = f"{short}/socket"
        (tmp_path / "warm" / "address").write_text(f"{address}\n")
        launcher.rewritten(*given)  # nothing listens there any more
        there.bind(address)
        assert launcher.run(SUBMIT, *given).returncode == 0
        (called,) = (tmp_path / "pythons").read_text().splitlines()
        words = [address, "", "7", SUBMIT, *given, SUBMIT, *own]
        assert called == " ".join(["-I", "-S", f"{SOURCES}/warm/client.py", *words])
        assert not (tmp_path / "arguments").exists(), "no JVM starts here"
        for environment in ({"HRM_WARM": "off"}, {"HRM_START": 'cold: "this"'}):
            assert launcher.rewritten(*given, **environment) == own
        assert '"-Dspark.hrm.start=cold: \\"this\\""' in (tmp_path / "secret").read_text()
        assert "HRM_START" not in launcher.exported()


def test_a_warm_driver_gets_no_secret_and_no_appmaster_from_its_start(
    launcher: Launcher, tmp_path: Path
) -> None:
    launcher.rewritten("--master", "hrm://h:1", "a.py", HRM_WARM_REPLIES="9")
    assert "HRM_APPMASTER_PID" not in launcher.exported()
    assert (tmp_path / "secret").read_text() == ""
