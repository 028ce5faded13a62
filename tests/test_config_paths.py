"""Every path of every daemon's settings is absolute, wherever it was written."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest

from hrm import config
from hrm.errors import InvalidConfig

DAEMONS = (config.MasterSettings, config.AgentSettings, config.SchedulerSettings)
PATHS = [
    (daemon, name)
    for daemon in DAEMONS
    for name, field in daemon.model_fields.items()
    if Path in (field.annotation, *typing.get_args(field.annotation))
    and typing.get_origin(field.annotation) is not tuple
]


def test_the_paths_are_those_that_are_known() -> None:
    names = {(daemon.table, name) for daemon, name in PATHS}
    assert {("agent", "work_dir"), ("master", "state_dir"), ("scheduler", "token_file")} <= names
    assert {("master", name) for name in ("tls_ca", "tls_cert", "tls_key")} <= names


@pytest.mark.parametrize(("daemon", "name"), PATHS)
def test_a_relative_path_means_the_directory_of_the_start(
    daemon: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    for written, meant in (
        ("there/it is", tmp_path / "there/it is"),
        ("~/it", Path("/home/ada/it")),
        ("/it", Path("/it")),
    ):
        assert getattr(config.load(daemon, **{name: written}), name) == meant
        monkeypatch.setenv(f"{daemon.model_config['env_prefix']}{name.upper()}", written)
        assert getattr(config.load(daemon), name) == meant
        monkeypatch.delenv(f"{daemon.model_config['env_prefix']}{name.upper()}")
        (tmp_path / "hrm.toml").write_text(f'[{daemon.table}]\n{name} = "{written}"\n')
        assert getattr(config.load(daemon), name) == meant
        (tmp_path / "hrm.toml").unlink()


def test_defaults_are_absolute_under_a_relative_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HRM_HOME", "home")
    assert config.load(config.AgentSettings).work_dir == tmp_path / "home/agent"
    assert config.load(config.MasterSettings).state_dir == tmp_path / "home/master"
    assert config.token_file() == tmp_path / "home/token"
    monkeypatch.setenv("HRM_TOKEN_FILE", "t")
    assert config.load(config.SchedulerSettings).token_file == tmp_path / "t"


def test_the_home_of_nobody_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidConfig, match=r"work_dir.*write the directory itself"):
        config.load(config.AgentSettings, work_dir="~no-such-user/work")
