"""Which settings of the submitter's machine travel with a submission."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from hrm.errors import InvalidRequest
from hrm.spark.conf import conf_dir
from hrm.spark.submit import add_conf, driver_spec
from hrm.spark.submit_conf import ARCHIVE_NAME, BYTES_MAX, conf_archive
from hrm.spark.submit_options import parse
from hrm.v1 import submission_pb2 as pb


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Directories of settings, as on the edge node of a Hadoop cluster."""
    files = {
        "spark": ("hive-site.xml", "log4j2.properties", "metrics.properties.template",
                  "spark-env.sh", "spark-env.cmd", "spark-defaults.conf", "fairscheduler.xml"),
        "hadoop": ("core-site.xml", "hdfs-site.xml", "hadoop-env.sh"),
        "yarn": ("yarn-site.xml",),
    }  # fmt: skip
    for directory, names in files.items():
        (tmp_path / directory / "more").mkdir(parents=True)
        for name in names:
            (tmp_path / directory / name).write_text(f"{directory} {name}")
    return {
        "SPARK_CONF_DIR": str(tmp_path / "spark"),
        "HADOOP_CONF_DIR": str(tmp_path / "hadoop"),
        "YARN_CONF_DIR": str(tmp_path / "yarn"),
    }


def entries(data: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_settings_travel_and_scripts_stay(machine: dict[str, str]) -> None:
    data, warnings = conf_archive(machine)
    assert entries(data) == {
        "hadoop/core-site.xml": "hadoop core-site.xml",
        "hadoop/hdfs-site.xml": "hadoop hdfs-site.xml",
        "spark/fairscheduler.xml": "spark fairscheduler.xml",
        "spark/hive-site.xml": "spark hive-site.xml",
        "spark/log4j2.properties": "spark log4j2.properties",
        "yarn/yarn-site.xml": "yarn yarn-site.xml",
    }
    assert warnings == []
    assert conf_archive(machine)[0] == data, "so that the master keeps it once"


def test_one_directory_for_both_of_hadoops_travels_once(machine: dict[str, str]) -> None:
    machine["YARN_CONF_DIR"] = machine["HADOOP_CONF_DIR"]
    assert not any(name.startswith("yarn/") for name in entries(conf_archive(machine)[0]))


def test_sparks_usual_directory_counts_in_place_of_hrms_own(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "hive-site.xml").write_text("x")
    usual = {"SPARK_CONF_DIR": str(conf_dir()), "SPARK_HOME": str(tmp_path)}
    assert entries(conf_archive(usual)[0]) == {"spark/hive-site.xml": "x"}
    assert conf_archive({"SPARK_CONF_DIR": str(conf_dir())}) == (b"", [])
    assert conf_archive({"HADOOP_CONF_DIR": str(tmp_path / "none")}) == (b"", [])


def test_what_is_too_large_stays_and_is_named(machine: dict[str, str]) -> None:
    hadoop = Path(machine["HADOOP_CONF_DIR"])
    (hadoop / "a-large.xml").write_bytes(b"x" * BYTES_MAX)
    (hadoop / "whole.xml").write_bytes(b"x" * (BYTES_MAX // 2))
    data, warnings = conf_archive(machine)
    assert warnings == [f"{hadoop / 'a-large.xml'} is too large to be sent with the other settings"]
    assert {"hadoop/whole.xml", "spark/hive-site.xml"} <= entries(data).keys()


def test_a_submission_has_them_as_one_file(machine: dict[str, str], tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.touch()
    spec, files = driver_spec(parse([str(app)], {}))
    assert add_conf(spec, files, machine) == []
    assert [(x.role, x.name) for x in spec.resources][1:] == [(pb.RESOURCE_ROLE_CONF, ARCHIVE_NAME)]
    file = files[ARCHIVE_NAME]
    file.read_digest()
    with file.open() as opened:
        assert hashlib.sha256(opened.read()).hexdigest() == file.sha256
    file.check()
    spec, files = driver_spec(parse(["local:/app.py"], {}))
    assert (add_conf(spec, files, {}), files) == ([], {}), "where there is nothing to send"


def test_a_file_of_the_archives_name_is_refused(machine: dict[str, str], tmp_path: Path) -> None:
    mine = tmp_path / ARCHIVE_NAME
    mine.touch()
    spec, files = driver_spec(parse(["--files", str(mine), "local:/app.py"], {}))
    with pytest.raises(InvalidRequest, match=rf"{ARCHIVE_NAME} is where the settings"):
        add_conf(spec, files, machine)


def test_they_can_be_kept_back() -> None:
    assert parse(["a.py"], {}).sends_conf
    assert not parse(["--conf", "spark.hrm.submit.confDirs=false", "a.py"], {}).sends_conf


def test_what_cannot_be_read_or_named_is_left_out_with_a_warning(machine: dict[str, str]) -> None:
    spark = Path(machine["SPARK_CONF_DIR"])
    os.close(os.open(os.fsencode(spark) + b"/bad-\xff.xml", os.O_CREAT))
    (spark / "long.xml").symlink_to("x" * 300)
    data, warnings = conf_archive(machine)
    assert warnings == [
        f"{spark}/bad-\\xff.xml is not sent: its name is not valid UTF-8",
        f"{spark}/long.xml is not sent: File name too long",
    ]
    assert "spark/hive-site.xml" in entries(data)
