"""Where a node's configuration directories come from: its settings, else its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm.errors import InvalidConfig
from hrm.spark.conf import conf_dir
from hrm.spark.node_conf import NodeConf, node_conf


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_named(tmp_path: Path) -> None:
    assert node_conf(tmp_path) == NodeConf()
    assert node_conf(tmp_path).class_path({}) == []


def test_a_setting_goes_before_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/x/*")
    found = node_conf(tmp_path / "spark")
    assert found.class_path({}) == [
        f"{tmp_path}/SPARK_CONF_DIR/", f"{tmp_path}/HADOOP_CONF_DIR", f"{tmp_path}/YARN_CONF_DIR",
        "/x/*",
    ]  # fmt: skip
    (tmp_path / "set").mkdir()
    directory = tmp_path / "set"
    found = node_conf(
        tmp_path / "spark", spark_conf_dir=directory, hadoop_conf_dir=directory,
        yarn_conf_dir=directory, dist_classpath="/y/*",
    )  # fmt: skip
    assert found.class_path({}) == [f"{directory}/", str(directory), str(directory), "/y/*"]
    assert found.environment() == {
        "HADOOP_CONF_DIR": str(directory), "YARN_CONF_DIR": str(directory),
    }  # fmt: skip


def test_hrms_own_directory_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may start in a shell with `hrm env`."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf_dir()))
    assert node_conf(tmp_path).spark_conf_dir is None
    (tmp_path / "conf").mkdir()
    assert node_conf(tmp_path).spark_conf_dir == tmp_path / "conf", "where Spark's launcher looks"


def test_a_setting_that_names_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"hadoop_conf_dir is .*/none, which is no directory"):
        node_conf(tmp_path, hadoop_conf_dir=tmp_path / "none")
