"""What a submission's settings may not be is refused where it is submitted, in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hrm.cli import driver_submit
from hrm.errors import InvalidRequest
from hrm.spark.hrm_settings import SPARK_SETTINGS, unknown_names
from hrm.spark.submit import driver_spec
from hrm.spark.submit_options import parse

UNDECODABLE = os.fsdecode(b"x\xff y")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "app.py"
    path.write_text("")
    return str(path)


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("spark.driver.cores=99999999999999999999", "give a whole number from 1 to"),
        ("spark.driver.cores=2000000", "give a whole number from 1 to"),
        ("spark.driver.memory=9999999t", "at most"),
        ("spark.driver.memory=" + "9" * 5_000, "give a size such as"),
        ("spark.driver.memoryOverhead=9999999t", "at most"),
        ("spark.driver.memoryOverheadFactor=inf", "give a number such as 0.1"),
        ("spark.driver.memoryOverheadFactor=nan", "give a number such as 0.1"),
        ("spark.driver.memoryOverheadFactor=-1", "give a number such as 0.1"),
        ("spark.hrm.class=foo", "write stream or batch"),
        ("spark.hrm.gang.min=NaN", "give a whole number from 0 on"),
        ("spark.hrm.stream.min=-2", "give a whole number from 0 on"),
        ("spark.hrm.localize=xx", "write named, all or none"),
        ("spark.hrm.priority=high", "give a whole number, such as 10"),
        ("spark.yarn.tags=" + ",".join(map(str, range(99))), "at most 64 are allowed"),
        ("spark.hrm.submit.confDirs=maybe", "write true or false"),
        ("spark.hrm.submit.waitAppCompletion=maybe", "write true or false"),
        ("spark.hrm.driverEnv.=x", "names no variable"),
        (f"spark.app.name={UNDECODABLE}", "is not valid UTF-8"),
        (f"spark.{UNDECODABLE}=x", "is not valid UTF-8"),
    ],
)
def test_a_value_that_no_driver_could_use_is_refused(
    program: str, setting: str, advice: str
) -> None:
    with pytest.raises(InvalidRequest, match=advice):
        driver_spec(parse(["--conf", setting, program], {}))


@pytest.mark.parametrize(
    "setting",
    [
        "spark.hrm.class=STREAM",
        "spark.hrm.gang.min=2",
        "spark.hrm.submit.confDirs=False",
        "spark.hrm.driverEnv.NAME=x=y",
        "spark.driver.memoryOverheadFactor=0",
        "spark.app.name=Übung",
    ],
)
def test_others_go_along(program: str, setting: str) -> None:
    spec, _ = driver_spec(parse(["--conf", setting, program], {}))
    key, _, value = setting.partition("=")
    assert [each.value for each in spec.conf if each.key == key] == [value]


@pytest.mark.parametrize(
    "arguments",
    [[f"{UNDECODABLE}.py"], ["PROGRAM", UNDECODABLE], ["--kill", UNDECODABLE]],
    ids=["application", "argument", "id"],
)
def test_bytes_that_are_no_text_are_one_line(
    program: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = driver_submit.main([program if each == "PROGRAM" else each for each in arguments])
    errors = capsys.readouterr().err
    assert status == 2
    assert "x\\xff y" in errors
    assert "is not valid UTF-8" in errors
    assert len(errors.splitlines()) == 1


def test_a_mistyped_name_is_reported_with_the_nearest() -> None:
    names = ["spark.hrm.gang.mim", "spark.hrm.driverEnv.X", "spark.hrm.class", "spark.my.own"]
    assert unknown_names(names) == [
        "spark.hrm.gang.mim is no setting of HRM, and has no effect; did you mean "
        "spark.hrm.gang.min?"
    ]
    (warning,) = parse(["--conf", "spark.hrm.submit.tide=true", "app.py"], {}).warnings
    assert warning.endswith("did you mean spark.hrm.submit.tied?")


def test_a_tenant_is_reported_with_the_setting_that_took_its_place() -> None:
    assert unknown_names(["spark.hrm.tenant"]) == [
        "spark.hrm.tenant is no setting any more, and has no effect; write spark.hrm.queue=NAME"
    ]


def test_what_is_in_the_table_or_not_meant_for_hrm_gets_no_warning() -> None:
    others = ("spark.executor.cores", "spark.hrm.driverEnv.PATH", "spark.hrmx.class")
    assert unknown_names([*SPARK_SETTINGS, *others]) == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("spark.hrm.gang.mim", "spark.hrm.gang.min"),
        ("spark.hrm.gangMin", "spark.hrm.gang.min"),
        ("spark.hrm.executor.maxfailures", "spark.hrm.executor.maxFailures"),
        ("spark.hrm.stop.timeOut", "spark.hrm.stop.timeout"),
    ],
)
def test_the_nearest_name_is_found_whatever_the_letters_case(name: str, nearest: str) -> None:
    assert unknown_names([name]) == [
        f"{name} is no setting of HRM, and has no effect; did you mean {nearest}?"
    ]
