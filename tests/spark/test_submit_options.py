"""spark-submit's options as cluster deploy mode reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm.errors import InvalidRequest
from hrm.executor_size import memory_mib
from hrm.spark.conf import properties_text
from hrm.spark.submit_options import KEYTAB, PRINCIPAL, parse, read_properties
from hrm.spark_servers import THRIFT_CLASS


def test_options_end_at_the_application() -> None:
    found = parse(
        ["--class", "a.B", "--conf", "spark.x=1=2", "-c", "spark.y= z", "--supervise",
         "--driver-memory=2g", "app.jar", "--supervise", "--conf", "spark.z=1", ""],
        {},
    )  # fmt: skip
    assert (found.main, found.main_class, found.supervise) == ("app.jar", "a.B", True)
    assert found.arguments == ("--supervise", "--conf", "spark.z=1", "")
    assert found.conf == {"spark.x": "1=2", "spark.y": " z", "spark.driver.memory": "2g"}


def test_the_most_specific_value_counts(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.a defaults\nspark.d defaults\n")
    file = tmp_path / "own.conf"
    file.write_text("spark.a=file\nspark.b=file\nspark.executor.memory=file\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path)}
    given = ["--conf", "spark.b=conf", "--executor-memory", "3g"]
    conf = ["--conf", "spark.executor.memory=4g"]

    assert parse(given, environment).conf["spark.a"] == "defaults"
    named = parse(["--properties-file", str(file), *given, *conf], environment).conf
    assert named == {"spark.a": "file", "spark.b": "conf", "spark.executor.memory": "3g"}
    both = parse(["--load-spark-defaults", f"--properties-file={file}"], environment).conf
    assert (both["spark.a"], both["spark.d"]) == ("file", "defaults")


def test_each_option_of_a_setting_is_that_setting() -> None:
    found = parse(
        ["--master", "hrm://h:1", "--deploy-mode", "cluster", "--name", "n", "--py-files", "a,b",
         "--jars", "j", "--files", "f", "--archives", "z#y", "--packages", "g:a:v",
         "--num-executors", "4", "--driver-cores", "2", "--queue", "etl", "--proxy-user", "u",
         "a.py"],
        {},
    )  # fmt: skip
    assert found.conf == {
        "spark.master": "hrm://h:1", "spark.submit.deployMode": "cluster", "spark.app.name": "n",
        "spark.submit.pyFiles": "a,b", "spark.jars": "j", "spark.files": "f",
        "spark.archives": "z#y", "spark.jars.packages": "g:a:v", "spark.executor.instances": "4",
        "spark.driver.cores": "2", "spark.hrm.queue": "etl",
    }  # fmt: skip
    assert found.passed_on == ("--proxy-user", "u")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("./environment/bin/python", "./environment/bin/python"),
        ("environment/bin/python", "environment/bin/python"),
        ("/home/me/venv/bin/python", None),
        ("python3.11", None),
        ("", None),
    ],
)
def test_a_python_in_an_archive_goes_with_the_submission(given: str, expected: str | None) -> None:
    environment = {"PYSPARK_PYTHON": given, "PYSPARK_DRIVER_PYTHON": "python"}
    assert parse(["a.py"], environment).conf.get("spark.pyspark.python") == expected
    own = parse(["--conf", "spark.pyspark.python=python3.12", "a.py"], environment)
    assert own.conf["spark.pyspark.python"] == "python3.12"


def test_what_has_no_effect_is_reported() -> None:
    found = parse(["--total-executor-cores", "4", "a.py"], {})
    assert "spark.executor.instances" in found.warnings[0]
    found = parse(["--conf", "spark.executor.logs.rolling.strategy=time", "a.py"], {})
    assert found.warnings[0].startswith("spark.executor.logs.rolling.strategy has no effect here: ")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--nonsense", "x"], "--nonsense is no option"),
        (["--class"], "--class needs a value"),
        (["--conf", "spark.x"], "NAME=VALUE"),
        (["--keytab", "local:/k"], "belong together; give both, or none"),
        (["--conf", "spark.yarn.principal=u"], "belong together; give both, or none"),
        (
            ["--principal", "u", "--keytab", "/k"],
            "no keytab is sent to nodes; .* write --keytab local:/PATH; or .* run kinit",
        ),
        (
            ["--principal", "u", "--keytab", "local:/k", "--proxy-user", "v"],
            "--proxy-user and --keytab exclude each other",
        ),
        (["--properties-file", "/no/such.conf"], "/no/such.conf"),
    ],
)
def test_bad_options_are_refused(given: list[str], expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        parse([*given], {})


def test_a_keytab_of_the_nodes_is_a_setting() -> None:
    for old in ("spark.kerberos", "spark.yarn"):
        given = ["--conf", f"{old}.principal=u", "--conf", f"{old}.keytab=local:///k", "a.py"]
        found = parse(given, {})
        assert found.conf == {PRINCIPAL: "u", KEYTAB: "local:///k"}
    assert parse(["--principal", "u", "--keytab", "local:/k", "a.py"], {}).proxy_user == ""
    assert parse(["--proxy-user", "v", "a.py"], {}).proxy_user == "v"


@pytest.mark.parametrize(
    ("given", "shell"),
    [
        (["--class", "org.apache.spark.repl.Main", "--name", "Spark shell"], "spark-shell"),
        (["pyspark-shell"], "pyspark-shell"),
        (["--class", "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver"], "spark-sql"),
        (["--class", "my.Main", "a.jar"], ""),
    ],
)
def test_shells_are_known(given: list[str], shell: str) -> None:
    assert parse(given, {}).shell() == shell


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ([], ()),
        (["spark-internal"], ()),
        (["spark-internal", "--hiveconf", "a=b"], ("--hiveconf", "a=b")),
        (["--hiveconf", "a=b", "--conf", "spark.x=1", "--hiveconf=c=d"],
         ("--hiveconf", "a=b", "--hiveconf=c=d")),
    ],
)  # fmt: skip
def test_a_server_has_no_file_and_options_of_its_own(
    given: list[str], arguments: tuple[str, ...]
) -> None:
    found = parse(["--class", THRIFT_CLASS, *given], {})
    assert (found.main, found.arguments, found.shell()) == ("spark-internal", arguments, "")
    assert found.conf == ({"spark.x": "1"} if "--conf" in given else {})


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("2g", 2048),
        ("512m", 512),
        ("1024", 1024),
        ("1048576k", 1024),
        ("3GB", 3072),
        ("1t", 1 << 20),
    ],
)
def test_sizes(text: str, mib: int) -> None:
    assert memory_mib(text, "spark.driver.memory") == mib


@pytest.mark.parametrize("text", ["", "g", "-1g", "1.5g", "1x", "12b"])
def test_what_is_no_size_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"spark\.driver\.memory"):
        memory_mib(text, "spark.driver.memory")


def test_properties_are_read_as_they_are_written(tmp_path: Path) -> None:
    settings = [
        ("spark.a", "x=1 y:2 #no !comment"),
        ("spark.b", "  leading, and a \\ in it"),
        ("spark.c", "two\nlines\tand tabs"),
        ("spark.d", ""),
        ("spark.e=:f", "ümlaut"),
    ]
    path = tmp_path / "x.conf"
    path.write_text(properties_text(settings))
    assert read_properties(path) == {key: value.strip() for key, value in settings}


def test_properties_as_users_write_them(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    path.write_text(
        "# a comment\n\nspark.master   hrm://h:1\nspark.a=b\nspark.c : d e\nother.x y\n"
        "spark.long one,\\\n   two\nspark.empty\n"
    )
    assert read_properties(path) == {
        "spark.master": "hrm://h:1", "spark.a": "b", "spark.c": "d e", "spark.long": "one,two",
        "spark.empty": "",
    }  # fmt: skip
