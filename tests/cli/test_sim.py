"""``hrm sim``: faults, and where the group's former commands went."""

from __future__ import annotations

import importlib
import json

import pytest
from typer.testing import CliRunner

from hrm.cli.app import app
from hrm.cli.sim import MOVED


def test_a_run_with_faults_ends_with_a_line_of_json() -> None:
    result = CliRunner().invoke(app, ["sim", "faults", "--seed", "1"])

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["runs"], found["violations"]) == (1, 0)


@pytest.mark.parametrize(("former", "command"), MOVED.items())
def test_a_former_command_names_the_one_that_runs_now(former: str, command: str) -> None:
    result = CliRunner().invoke(app, ["sim", former, "--output", "json"])

    assert result.exit_code == 1
    assert command in result.stderr
    importlib.import_module(command.removeprefix("python -m "))


def test_what_never_was_a_command_is_none() -> None:
    result = CliRunner().invoke(app, ["sim", "walk"])

    assert result.exit_code == 2
    assert "walk" in result.stderr
