"""The tree of commands as a whole: help, version, flags that mirror the settings, start-up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from hrm import __version__, address, config, rpc
from hrm.cli.app import COMMANDS
from hrm.config.problems import FORMER
from hrm.errors import InvalidRequest

Run = Callable[..., Result]


def test_version(hrm: Run) -> None:
    assert hrm("--version").stdout == f"hrm {__version__}\n"


def test_help_lists_every_command(hrm: Run) -> None:
    text = hrm("--help").stdout
    assert [name for name in COMMANDS if f" {name} " not in text] == []


def test_a_misspelt_command_is_refused(hrm: Run) -> None:
    result = hrm("statsu")
    assert result.exit_code == 2
    assert "there is no command hrm statsu; did you mean hrm status?" in result.stderr
    assert "hrm --help lists the commands" in hrm("xyzzy").stderr


@pytest.mark.parametrize(
    ("command", "lists"),
    [
        (["app", "show"], "hrm apps --all"), (["submission", "logs"], "hrm submissions --all"),
        (["pipeline", "cancel"], "hrm pipeline list"), (["node", "show"], "hrm nodes"),
        (["node", "drain"], "hrm nodes"), (["policy", "set"], "hrm policy show"),
    ],
)  # fmt: skip
def test_a_missing_argument_comes_with_what_lists_its_values(
    hrm: Run, command: list[str], lists: str
) -> None:
    result = hrm(*command, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr
    assert f"`{lists}` lists them" in result.stderr


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "spark-submit"])
def test_help_names_no_file_that_a_wheel_lacks(hrm: Run, command: str) -> None:
    assert "docs/" not in hrm(command, "--help", env={"COLUMNS": "200"}).stdout


@pytest.mark.parametrize(
    "command",
    [
        *([name] for name in ("app", "node", "submission", "pipeline", "policy", "sim")),
        *(["app", name] for name in ("show", "why", "kill", "logs")),
        *(["submission", name] for name in ("show", "kill", "logs")),
        *(["node", name] for name in ("show", "drain", "bind")),
        *(["pipeline", name] for name in ("run", "cancel")),
        ["policy", "set"], ["policy", "shadow"], ["submit"], ["spark-submit"], [],
    ],
)  # fmt: skip
def test_without_what_it_needs_a_command_shows_its_usage_and_fails(
    hrm: Run, command: list[str]
) -> None:
    result = hrm(*command)
    assert result.exit_code == 2
    assert "Usage: hrm" in result.output


@pytest.mark.parametrize("command", [["status"], ["app", "logs"], ["up"], ["down"], ["env"]])
def test_every_command_has_help(hrm: Run, command: list[str]) -> None:
    result = hrm(*command, "--help")
    assert result.exit_code == 0
    assert "Usage: hrm" in result.stdout


@pytest.mark.parametrize(
    ("command", "settings"), [("master", config.MasterSettings), ("agent", config.AgentSettings)]
)
def test_daemons_have_a_flag_for_every_setting(
    hrm: Run, command: str, settings: type[config.MasterSettings] | type[config.AgentSettings]
) -> None:
    text = hrm(command, "--help", env={"COLUMNS": "200"}).stdout
    flags = ["--" + name.replace("_", "-") for name in settings.model_fields]
    assert [flag for flag in flags if f"{flag} " not in text] == []
    assert [name for name, field in settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["master", "--port", "many"], "port is 'many' (set by --port)"),
        (["master", "--schedulers", "0"], "it must be an integer from 1 to 256"),
        (["agent", "--name", "a b"], "letters, digits"),
        (["agent", "--isolation", "jail"], "cgroup2"),
    ],
)
def test_a_bad_setting_is_one_line_and_status_2(hrm: Run, arguments: list[str], named: str) -> None:
    result = hrm(*arguments)
    assert result.exit_code == 2
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["master", "agent", "scheduler"])
@pytest.mark.parametrize("name", FORMER)
def test_a_flag_that_there_was_says_what_to_write_instead(
    hrm: Run, command: str, name: str
) -> None:
    flag = "--" + name.replace("_", "-")
    result = hrm(command, flag, "2")
    assert result.exit_code == 2
    assert f"{name} (set by {flag}) is no setting any more: {FORMER[name]}" in result.stderr
    assert flag not in hrm(command, "--help", env={"COLUMNS": "200"}).stdout


def test_queries_start_without_the_settings_of_daemons() -> None:
    code = (
        "import sys; sys.argv = ['hrm', 'status'];\n"
        "from hrm.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*[m for m in ('hrm.config', 'numpy', 'structlog', 'hrm.core') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert result.stdout == "\n"


def test_the_light_copies_of_settings_agree_with_the_settings() -> None:
    assert address.state_home() == config.hrm_home()
    assert address.DEFAULT_PORT == config.DEFAULT_PORT


@pytest.mark.parametrize(
    ("text", "meant"),
    [("h:1", "h:1"), ("hrm://h:1", "h:1"), ("h", "h:7480"), ("[::1]:5", "[::1]:5"),
     ("[::1]", "[::1]:7480")],
)  # fmt: skip
def test_addresses(text: str, meant: str) -> None:
    assert address.parse_master(text) == meant


@pytest.mark.parametrize(
    "text", ["", "7480", "hrm://7480", "h:", ":1", "h:0", "h:65536", "h:x", "7480:1"]
)
def test_what_is_no_address_of_a_master(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is no address of a master.*write HOST:PORT"):
        address.parse_master(text)


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_a_host_that_does_not_resolve_is_reported_as_such(
    hrm: Run, allowed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rpc.create_token(tmp_path / "token")
    monkeypatch.setenv("HRM_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("HRM_ALLOW_CLEAR_TEXT", allowed)
    result = hrm("status", "--master", "nowhere.invalid")
    assert result.exit_code == 1
    assert "the host nowhere.invalid of nowhere.invalid:7480 does not resolve" in result.stderr
    assert "HRM_ALLOW_CLEAR_TEXT" not in result.stderr


def test_the_cluster_of_hrm_up_is_the_default(hrm: Run) -> None:
    home = config.hrm_home()
    home.mkdir()
    assert address.default_master() == "127.0.0.1:7480"
    for damaged in ("{", "[]", '{"port": "x"}', "{}"):
        (home / "cluster.json").write_text(damaged)
        assert address.default_master() == "127.0.0.1:7480"
    (home / "cluster.json").write_text('{"port": 7999}')
    assert address.default_master() == "127.0.0.1:7999"
