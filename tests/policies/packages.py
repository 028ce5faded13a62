"""Packages with placement policies, where Python finds them: module and dist-info, as an installer
would put them."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from hrm import policies

__all__ = ["install_package"]


def install_package(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    source: str,
    points: dict[str, str],
    group: str = policies.GROUP,
) -> None:
    """``points``: the entry points of ``group``, by the policy's name. The test is to drop
    ``package`` from ``sys.modules``."""
    folder = directory / package
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{package}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    parser = configparser.ConfigParser(delimiters=("=",))
    parser[group] = points
    with (info / "entry_points.txt").open("w") as file:
        parser.write(file)
    monkeypatch.syspath_prepend(folder)
