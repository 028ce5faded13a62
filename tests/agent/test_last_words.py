"""The reason of an end in a log: the exception, at whatever position its language puts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm.agent.containers.last_words import LENGTH_MAX, TAIL_BYTES, last_words, read_tail

FRAMES = "\tat org.x.Y.run(Y.scala:12)\n\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
SHUTDOWN = "26/11/22 04:05:06 INFO ShutdownHookManager: Deleting directory /tmp/spark-1\n"
BANNERS = """Picked up JAVA_TOOL_OPTIONS: -Dx=1
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
"""
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/w/app.py", line 3, in <module>\n'
    "    print(x)\n"
    "          ^\n"
    "NameError: name 'x' is not defined\n"
)
OF_SPARK = (
    'Exception in thread "main" org.apache.spark.SparkUserAppException: User application exited '
    f"with 1\n{FRAMES}{SHUTDOWN}"
)
OF_PY4J = (
    "Traceback (most recent call last):\n"
    '  File "/w/app.py", line 9, in <module>\n'
    "    rdd.count()\n"
    "py4j.protocol.Py4JJavaError: An error occurred while calling o30.count.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure\n" + FRAMES
)


@pytest.mark.parametrize(
    ("stderr", "stdout", "expected"),
    [
        (OF_SPARK, f"hello\n{TRACEBACK}", "NameError: name 'x' is not defined"),
        (
            f"{TRACEBACK}HRM: the driver is ended: 3 executors failed; it lived on\n{SHUTDOWN}",
            OF_PY4J,
            "the driver is ended: 3 executors failed; it lived on",
        ),
        (f"warned\n{TRACEBACK}", "bye\n", "NameError: name 'x' is not defined"),
        (
            SHUTDOWN,
            OF_PY4J,
            "org.apache.spark.SparkException: Job aborted due to stage failure",
        ),
        (
            SHUTDOWN,
            f"{OF_PY4J}Caused by: java.io.IOException: no space\n{FRAMES}\t... 15 more\n",
            "org.apache.spark.SparkException: Job aborted due to stage failure, caused by "
            "java.io.IOException: no space",
        ),
        (
            SHUTDOWN,
            f"{OF_PY4J}Caused by: org.apache.spark.SparkException: HRM: an executor requests 64\n"
            f"{FRAMES}\t... 15 more\n",
            "HRM: an executor requests 64",
        ),
        (
            OF_SPARK,
            '  File "/w/app.py", line 1\n    def (\n        ^\nSyntaxError: invalid syntax\n',
            "SyntaxError: invalid syntax",
        ),
        (
            f'Exception in thread "main" java.lang.IllegalStateException: no input\n{FRAMES}'
            f"Caused by: java.io.FileNotFoundException: /in\n{FRAMES}\t... 12 more\n"
            f"{SHUTDOWN * 20}",
            "done 3 of 4\n",
            "java.lang.IllegalStateException: no input, caused by java.io.FileNotFoundException: "
            "/in",
        ),
        (f"{TRACEBACK}", f"{TRACEBACK.replace('NameError', 'KeyError')}", "KeyError: name 'x' is"),
    ],
)
def test_a_driver_is_quoted_with_its_exception(stderr: str, stdout: str, expected: str) -> None:
    found = last_words(stderr, stdout)
    assert found.startswith(expected)
    assert "\n" not in found
    assert "at org.x" not in found


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("first\nfailing\n\n", "the last line of its stderr: failing"),
        (f"failing\n{SHUTDOWN}", "the last line of its stderr: failing"),
        (f"java.io.IOException: no room\n{FRAMES}", "java.io.IOException: no room"),
        (
            f"a.Error: x\n{FRAMES}Caused by: java.io.IOException: y\n{FRAMES}\t... 3 more\n",
            "java.io.IOException: y",
        ),
        (
            f"26/11/22 04:05:06 ERROR Executor: Exiting\n{FRAMES}{SHUTDOWN}",
            "the last line of its stderr: 26/11/22 04:05:06 ERROR Executor: Exiting",
        ),
        (f"failing\n{BANNERS}", "the last line of its stderr: failing"),
        (BANNERS, ""),
        (
            "failing\nHRM: the Connect server is warm after 2.1 s\n",
            "the last line of its stderr: failing",
        ),
        (
            f"{BANNERS}WARNING: the input is empty\n",
            "the last line of its stderr: WARNING: the input is empty",
        ),
        ("", ""),
        (FRAMES, ""),
    ],
)
def test_anything_else_is_quoted_with_the_last_line_that_is_not_empty(
    stderr: str, expected: str
) -> None:
    assert last_words(stderr) == expected


def test_a_stale_traceback_of_a_task_is_not_an_executors_end() -> None:
    assert last_words(f"{TRACEBACK}lost its driver\n").endswith("stderr: lost its driver")


def test_a_long_exception_is_truncated() -> None:
    long = "x" * 10 * LENGTH_MAX
    main = f'Exception in thread "main" a.BException: {long}\nCaused by: c.DError: {long}\n'
    for stderr, stdout in (("", f"{TRACEBACK}{long}"), (main, ""), (long, "")):
        found = last_words(stderr, stdout)
        assert 0 < len(found) <= LENGTH_MAX
    assert "a.BException" in last_words(main) and "caused by c.DError" in last_words(main)
    truncated = last_words("", TRACEBACK.replace("not defined", long))
    assert len(truncated) == LENGTH_MAX and truncated.endswith("…")


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    log.write_bytes(b"\xff" * (3 * TAIL_BYTES) + b"\nlast\n")
    text = read_tail(log)
    assert text.endswith("\nlast\n")
    assert len(text) == TAIL_BYTES
    assert read_tail(tmp_path / "none") == ""
    (tmp_path / "link").symlink_to(log)
    assert read_tail(tmp_path / "link") == "", "whose directory it is may not be whose file it is"
