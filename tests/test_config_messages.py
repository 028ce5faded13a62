"""What a daemon says about settings that it cannot use: which, set where, and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hrm import config
from hrm.config.problems import FORMER
from hrm.errors import InvalidConfig


def _message(daemon: Any, **flags: Any) -> str:
    with pytest.raises(InvalidConfig) as refusal:
        config.load(daemon, **flags)
    return refusal.value.message


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "its own.toml"
    path.touch()
    monkeypatch.setenv("HRM_CONFIG", str(path))
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[masters]\nport = 1\n", "has the unknown table [masters] (did you mean [master]?);"),
        ("[storage]\n", "has the unknown table [storage]; HRM's tables are [master], [agent]"),
        ("port = 1\n", "port is outside of any table; move it below the line of its daemon's"),
        ("[master]\nprot = 1\n", "prot (set in {toml}, table [master]) is no setting (did you mean "
         "port?); hrm master --help lists the settings"),
        ("[master]\nport = 'x'\n", "port is 'x' (set in {toml}, table [master]); it must be an "
         "integer from 0 to 65535"),
        ("master = 3\n", "[master] must be a table"),
    ],
)  # fmt: skip
def test_the_file_is_read_to_the_last_name(toml: Path, text: str, expected: str) -> None:
    toml.write_text(text)
    assert expected.format(toml=toml) in _message(config.MasterSettings)


def test_each_daemon_reads_its_own_table_alone(toml: Path) -> None:
    toml.write_text("[agent]\ncroes = 1\n[scheduler]\n[master]\nport = 7\n")
    assert config.load(config.MasterSettings).port == 7
    assert "croes" in _message(config.AgentSettings)


def test_an_unknown_variable_of_a_daemon_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HRM_MASTER_PROT", "7481")
    assert _message(config.MasterSettings) == (
        "HRM_MASTER_PROT is no setting of hrm master (did you mean HRM_MASTER_PORT?); correct it, "
        "or unset HRM_MASTER_PROT; hrm master --help lists the settings"
    )
    config.load(config.AgentSettings)
    both = _message(config.MasterSettings, schedulers="0")
    assert "HRM_MASTER_PROT" in both, "all problems come at once"
    assert "schedulers is '0' (set by --schedulers); it must be an integer from 1 to 256" in both


@pytest.mark.parametrize("name", FORMER)
@pytest.mark.parametrize(
    "daemon", [config.MasterSettings, config.AgentSettings, config.SchedulerSettings]
)
def test_what_was_a_setting_says_what_to_write_instead_wherever_it_is(
    toml: Path, monkeypatch: pytest.MonkeyPatch, daemon: Any, name: str
) -> None:
    assert name not in daemon.model_fields
    gone = f"is no setting any more: {FORMER[name]}"
    assert f"{name} (set by --{name.replace('_', '-')}) {gone}" in _message(daemon, **{name: "2"})
    variable = f"HRM_{daemon.table}_{name}".upper()
    monkeypatch.setenv(variable, "2")
    assert f"any more: {FORMER[name]}; unset {variable}" in _message(daemon)
    monkeypatch.delenv(variable)
    toml.write_text(f"[{daemon.table}]\n{name} = 2\n")
    assert _message(daemon) == f"{name} (set in {toml}, table [{daemon.table}]) {gone}"


@pytest.mark.parametrize(
    "variable",
    ["HRM_MASTER", "HRM_TEST_MASTER", "HRM_PYTHON", "HRM_TLS", "hrm_agent_mps"],
)
def test_variables_that_mean_something_else_are_left_alone(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "off")
    for daemon in (config.MasterSettings, config.AgentSettings, config.SchedulerSettings):
        config.load(daemon)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"isolation": "jail"}, "it must be auto, cgroup2, cgroup1 or none"),
        ({"auto_binding": "perhaps"}, "it must be true or false"),
        ({"warm_delay_s": "61"}, "it must be a number from 0 to 60"),
        ({"disk_interval_s": "0"}, "it must be a number, greater than 0"),
        ({"gpu_limit": "all"}, "it must be an integer from 0 to 1024"),
        ({"run_as_groups": ""}, "it must be text that is not empty"),
        ({"gpus": "7"}, "it must be a list of at most 1024 items"),
        ({"gpus": '[{"memory_mib": 0}]'}, "gpus[0].memory_mib is 0 (set by --gpus); it must be an"),
        ({"gpus": '[{"numaa": 1, "memory_mib": 1}]'}, "no setting (did you mean numa?)"),
        ({"gpus": "[{}]"}, "gpus[0].memory_mib is missing (set by --gpus); add it to {}"),
        ({"name": "a b"}, "name is 'a b' (set by --name): letters, digits"),
        ({"master": "7480"}, "'7480' is no address of a master (a port alone); write HOST:PORT"),
        ({"master": "node-1:"}, "'node-1:' is no address of a master; write HOST:PORT"),
    ],
)
def test_what_is_allowed_is_said_in_words(flags: dict[str, str], expected: str) -> None:
    assert expected in _message(config.AgentSettings, **flags)


def test_the_most_specific_place_is_named(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml.write_text("[agent]\ncores = -1\n")
    assert f"set in {toml}, table [agent]" in _message(config.AgentSettings)
    monkeypatch.setenv("HRM_AGENT_CORES", "-2")
    assert "cores is '-2' (set by HRM_AGENT_CORES)" in _message(config.AgentSettings)
    assert "cores is '-3' (set by --cores)" in _message(config.AgentSettings, cores="-3")


def test_a_master_may_be_written_as_clients_write_it() -> None:
    for written in ("hrm://10.0.0.1:7480", "10.0.0.1", "10.0.0.1:7480"):
        assert config.load(config.AgentSettings, master=written).master == "10.0.0.1:7480"


def test_labels_and_sparks_of_an_agent_are_lists_or_texts(toml: Path) -> None:
    toml.write_text('[agent]\nlabels = ["zone=a", "ssd"]\nspark_homes = ["/opt/spark-3.5"]\n')
    settings = config.load(config.AgentSettings)
    assert settings.labels == ("zone=a", "ssd")
    assert settings.spark_homes == (Path("/opt/spark-3.5"),)
    flags = {"labels": "zone=b, hdd", "spark_homes": "/a,/b"}
    settings = config.load(config.AgentSettings, **flags)
    assert settings.labels == ("zone=b", "hdd")
    assert settings.spark_homes == (Path("/a"), Path("/b"))
    with pytest.raises(InvalidConfig, match="labels"):
        config.load(config.AgentSettings, labels="a b")
