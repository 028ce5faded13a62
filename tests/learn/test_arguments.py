"""The arguments of trainers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hrm.learn.arguments import parsed


@dataclass(frozen=True, kw_only=True)
class Args:
    """Two parameters."""

    out: Path = Path("x.npz")
    """the file
    to write"""
    learn_after: int = 4_096
    """steps, of which 5 % are random"""
    options: str = ""


def test_help_shows_what_each_parameter_means_and_its_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(Args, ["--help"], module="m", about="Trains.")
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "the file to write (default: x.npz)",
        "--learn-after LEARN_AFTER steps, of which 5 % are random (default: 4096)",
        "--options OPTIONS (default: none)",
    ):
        assert part in shown
    assert parsed(Args, ["--learn-after", "1"], module="m", about=None) == Args(learn_after=1)
