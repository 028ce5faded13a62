"""``hrm master --check`` and similar commands, and a master with a damaged store."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.master import store_file

TIMEOUT_S = 60.0


class Home:
    """An ``HRM_HOME`` with a store, and the commands on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "master"
        self.state.mkdir(parents=True)
        self.store = self.state / "hrm.sqlite"
        store_file.create(self.store, epoch=3, rows={"nodes": [("n1", ""), ("n2", "")]})

    def hrm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hrm.cli", "master", *arguments],
            env={**os.environ, "HRM_HOME": str(self.directory), "HRM_MASTER_PORT": "0"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def damage(self, sql: str = "DELETE FROM meta WHERE key = 'epoch'") -> None:
        with contextlib.closing(sqlite3.connect(self.store)) as db:
            db.execute(sql)
            db.commit()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    yield Home(tmp_path / "home")


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """All of its output."""
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    return line


def test_a_good_store_is_good(home: Home) -> None:
    done = home.hrm("--check")
    assert (done.returncode, done.stderr) == (0, "good: epoch 3\n")
    assert [line.split() for line in done.stdout.splitlines()][:3] == [
        ["KIND", "READABLE"],
        ["applications", "0"],
        ["nodes", "2"],
    ]
    document = json.loads(home.hrm("--check", "--output", "json").stdout)
    assert (document["good"], document["damage"], document["kept"]["nodes"]) == (True, [], 2)


def test_a_damaged_one_stops_the_master_and_is_repaired(home: Home) -> None:
    home.damage()
    done = home.hrm()
    assert done.returncode == 2, "what systemd does not try again"
    line = error_line(done)
    assert "is damaged: its epoch is missing" in line
    assert f"hrm master --repair --state-dir {home.state}" in line

    checked = home.hrm("--check")
    assert checked.returncode == 1
    assert "damaged  hrm.sqlite: its epoch is missing" in checked.stdout
    assert json.loads(home.hrm("--check", "-o", "json").stdout)["good"] is False

    repaired = home.hrm("--repair")
    assert repaired.returncode == 0
    assert "repaired: the next master has epoch 1000001; what was there is" in repaired.stderr
    assert home.hrm("--check").returncode == 0
    assert "there is nothing to repair" in home.hrm("--repair").stderr


def test_a_backup_and_its_way_back(home: Home, tmp_path: Path) -> None:
    made = home.hrm("--backup", str(tmp_path / "kept"))
    assert (made.returncode, made.stderr) == (0, f"written: {tmp_path}/kept (epoch 3)\n")
    home.damage("DELETE FROM nodes")
    restored = home.hrm("--restore", str(tmp_path / "kept"), "-o", "json")
    assert json.loads(restored.stdout)["kept"]["nodes"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("--check", "--repair"), 2, "--check and --repair exclude each other"),
        (("--check", "--state-dir", "/nowhere"), 1, "there is no store in /nowhere"),
        (("--backup", "/nowhere/at/all"), 1, "No such file or directory"),
        (("--restore", "/nowhere"), 1, "there is no backup /nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    home: Home, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    done = home.hrm(*arguments)
    assert done.returncode == code
    assert expected in error_line(done)


def _become(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink(missing_ok=True)
    make(path)


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "the store is a directory": (
        lambda state: _become(state / "hrm.sqlite", Path.mkdir), "it is a directory",
    ),
    "the lock is a directory": (
        lambda state: (state / "lock").mkdir(), "Is a directory: ",
    ),
    "files is a file": (lambda state: (state / "files").touch(), "File exists: "),
    "pipelines is a file": (lambda state: (state / "pipelines").touch(), "Not a directory: "),
    "the address is a directory": (
        lambda state: (state / "address").mkdir(), "Is a directory: ",
    ),
    "modes that are none": (
        lambda state: (state / "policy-modes.json").write_text("{"), "policy-modes.json is damaged",
    ),
    "modes in a pipe": (
        lambda state: os.mkfifo(state / "policy-modes.json"), "policy-modes.json is damaged",
    ),
    "binary modes": (
        lambda state: (state / "policy-modes.json").write_bytes(b"\xff\xfe"),
        "policy-modes.json is damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
def test_whatever_is_wrong_in_its_directory_is_one_line(home: Home, how: str) -> None:
    spoil, expected = WRONG[how]
    spoil(home.state)
    done = home.hrm()
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert expected in lines[0]
    assert "Traceback" not in done.stderr + done.stdout
