"""``hrm env`` and ``hrm spark-submit``: the environment that a stock Spark needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from hrm.cli import spark

Run = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fake_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SPARK_HOME whose spark-submit prints its arguments."""
    program = tmp_path / "spark home" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$SPARK_CONF_DIR" "$HRM_TOKEN_FILE" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(program.parents[1]))
    return program


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["app.py"], False),
        (["--master", "local", "app.py"], True),
        (["--master=local", "app.py"], True),
        (["--conf", "spark.master=local", "app.py"], True),
        (["--conf=spark.master=local", "app.py"], True),
        (["--remote", "sc://host", "app.py"], True),
        (["--verbose", "--name", "--master", "app.py"], False),
        (["app.py", "--master", "the application's own"], False),
        (["--class", "Main", "-v", "--conf", "a=b", "app.jar", "--master", "x"], False),
        (["--load-spark-defaults", "--master", "local"], True),
        (["--conf"], False),
        ([], False),
    ],
)
def test_a_master_of_the_users_is_seen(
    arguments: list[str], found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    assert spark.has_master(arguments, tmp_path) is found


def test_a_master_is_looked_for_where_spark_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    (tmp_path / "spark-defaults.conf").write_text("spark.app.name x\nspark.master  hrm://head:1\n")
    own = tmp_path / "own.conf"
    own.write_text("spark.app.name x\n")
    named = ["--properties-file", str(own), "app.py"]
    assert spark.has_master(["app.py"], tmp_path)
    assert not spark.has_master(named, tmp_path), "the defaults do not count then"
    assert spark.has_master(["--load-spark-defaults", *named], tmp_path)
    own.write_text("spark.master=local\n")
    assert spark.has_master(named, tmp_path / "nowhere")
    monkeypatch.setenv("MASTER", "hrm://head:1")
    assert spark.has_master(["app.py"], tmp_path / "nowhere")


def test_exports_survive_a_shell(
    hrm: Run, fake_spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "it's a $token"
    monkeypatch.setenv("HRM_TOKEN_FILE", str(token))
    exports = hrm("env", "--shell", "sh").stdout
    script = f'{exports}\nprintf "%s\\n" "$SPARK_CONF_DIR" "$HRM_PYTHON" "$HRM_TOKEN_FILE" "$PATH"'
    shown = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True, timeout=10
    ).stdout.splitlines()
    assert shown[:3] == [str(ROOT / "spark-conf"), sys.executable, str(token)]
    assert str(fake_spark.parent) in shown[3].split(":")


def test_exports_as_json(hrm: Run, fake_spark: Path) -> None:
    document = json.loads(hrm("env", "--output", "json").stdout)
    assert set(document) == {"SPARK_CONF_DIR", "HRM_PYTHON", "HRM_TOKEN_FILE", "PATH"}


@pytest.mark.parametrize(("shell", "word"), [("fish", "set -gx"), ("csh", "setenv")])
def test_exports_in_other_shells(hrm: Run, fake_spark: Path, shell: str, word: str) -> None:
    lines = hrm("env", "--shell", shell).stdout.splitlines()
    assert all(line.startswith(word) and line.endswith(";") for line in lines)


def _submit(*arguments: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-m", "hrm.cli", "spark-submit", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return result.stdout.splitlines()


def test_spark_submit_adds_the_master(fake_spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HRM_MASTER", "head:7480")
    shown = _submit("--name", "x", "app.py", "--help")
    assert shown[0] == str(ROOT / "spark-conf")
    assert shown[2:] == ["--master", "hrm://head:7480", "--name", "x", "app.py", "--help"]


def test_spark_submit_finds_the_cluster_of_hrm_up(fake_spark: Path) -> None:
    home = Path(os.environ["HRM_HOME"])
    home.mkdir()
    (home / "cluster.json").write_text('{"port": 7999}')
    shown = _submit("app.py")
    assert shown[1:4] == [str(home / "token"), "--master", "hrm://127.0.0.1:7999"]


def test_a_conf_dir_of_the_users_stays(
    hrm: Run, fake_spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "conf"
    theirs.mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(theirs))
    refused = hrm("env")
    assert refused.exit_code == 1
    line = f". {ROOT / 'spark-conf' / 'spark-env.sh'}"
    assert line in refused.stderr
    (theirs / "spark-env.sh").write_text(f"export MINE=1\n{line}\n")
    assert json.loads(hrm("env", "-o", "json").stdout)["SPARK_CONF_DIR"] == str(theirs)
    (theirs / "spark-defaults.conf").write_text("# x\nspark.master  hrm://head:7480\n")
    assert _submit("app.py")[2:] == ["app.py"]  # theirs names the master already


def test_the_plugin_of_a_spark_that_is_not_here(
    hrm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = tmp_path / "old" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.13-4.1.2.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "old"))
    refused = hrm("plugin-jar", "--spark", "4.10")
    assert refused.exit_code == 1
    assert f"no Spark 4.10 is known here (4.1.2 at {tmp_path / 'old'}" in refused.stderr
    assert "--spark-home" in refused.stderr
    broken = hrm("plugin-jar", "--spark", "4.1")
    assert broken.exit_code == 1
    assert "no scala-compiler jar" in broken.stderr
    both = hrm("plugin-jar", "--spark", "4.1", "--spark-home", str(tmp_path))
    assert both.exit_code != 0
    assert "exclude each other" in both.stderr


def test_a_wrong_spark_home_is_named(
    hrm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    result = hrm("env")
    assert result.exit_code == 1
    assert "SPARK_HOME" in result.stderr
