"""A file that was written exists after a crash, whole; a failed write does no harm."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hrm.durable import write_durably


def test_content_is_on_the_disk_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "modes.json"
    path.write_bytes(b"old")
    settled: list[tuple[bool, bytes]] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        settled.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.read_bytes()))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_durably(path, b"new")
    assert settled == [(False, b"old"), (True, b"new")]
    assert [each.name for each in tmp_path.iterdir()] == ["modes.json"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "modes.json"
    path.write_bytes(b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["modes.json"]
